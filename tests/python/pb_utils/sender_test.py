"""InferenceResponseSender: what is told, and every row of its misuse in the order of the tests."""

import threading
import unittest

import fake
import numpy as np
from nereid_python import kinds, wire

import triton_python_backend_utils as pb_utils

EMPTY = pb_utils.InferenceResponse()
UNSUPPORTED = "Unable to send response. Unsupported flag provided."
MISSING = "Inference Response object must be provided when the response flags is set to zero."
CLOSED = "Unable to send response. Response sender has been closed."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
EARLY = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
OWN = "Unable to send response. Response sender has no reference to the decoupled state of the model."
SENT = ((), (), None)


class Senders(unittest.TestCase):
    # Is the model decoupled (None: a request of its own); what is sent, one after the other; what comes of the last.
    TABLE = [
        (True, [(EMPTY, 2)], UNSUPPORTED),
        (True, [(None, 3)], UNSUPPORTED),
        (True, [(None, 0)], MISSING),
        (False, [(None, 0)], MISSING),
        (None, [(EMPTY, 2)], UNSUPPORTED),
        (None, [(None, 0)], MISSING),
        (None, [(EMPTY, 0)], OWN),
        (None, [(None, 1)], OWN),
        (False, [(None, 1)], EARLY),
        (False, [(EMPTY, 0), (EMPTY, 0)], SECOND),
        (False, [(EMPTY, 0), (EMPTY, 1)], SECOND),
        (False, [(EMPTY, 1), (EMPTY, 1)], SECOND),
        (False, [(EMPTY, 1), (None, 1)], CLOSED),
        (False, [(EMPTY, 0), (None, 1)], None),
        (False, [(EMPTY, 0), (None, 1), (EMPTY, 0)], SECOND),
        (False, [(EMPTY, 0), (None, 1), (None, 1)], CLOSED),
        (False, [(EMPTY, 0), (None, 1), (None, 2)], UNSUPPORTED),
        (True, [(None, 1)], None),
        (True, [(None, 1), (EMPTY, 0)], CLOSED),
        (True, [(EMPTY, 0), (EMPTY, 0), (EMPTY, 1)], None),
        (True, [(EMPTY, 1), (None, 1)], CLOSED),
    ]

    def test_misuse(self):
        for decoupled, sends, text in self.TABLE:
            server = fake.Server()
            sender = fake.request(token=11, decoupled=decoupled).get_response_sender()
            for response, flags in sends[:-1]:
                sender.send(response, flags)
            outcome = fake.outcome(lambda: sender.send(*sends[-1]))
            self.assertEqual(outcome, None if text is None else ("TritonModelException", text), (decoupled, sends))
            taken = sends if text is None else sends[:-1]
            expected = [("SEND", 11, None if response is None else SENT, flags) for response, flags in taken]
            self.assertEqual(server.told, expected)

    def test_arguments(self):
        sender = fake.request(decoupled=True).get_response_sender()
        for arguments in ((5,), ("x", 0), (EMPTY, None), (EMPTY, "1"), (EMPTY, -1), (EMPTY, 1.0)):
            self.assertEqual(fake.outcome(lambda: sender.send(*arguments))[0], "TypeError", arguments)
        server = fake.Server()
        sender.send(response=EMPTY, flags=np.int64(0))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.assertEqual([told[2:] for told in server.told], [(SENT, 0), (None, 1)])

    def test_outputs_that_nobody_wants_are_left_out(self):
        server = fake.Server()
        sender = fake.request(decoupled=True, outputs=("b",)).get_response_sender()
        outputs = [pb_utils.Tensor(name, np.zeros(1, np.int8)) for name in ("a", "b")]
        sender.send(pb_utils.InferenceResponse(outputs))
        self.assertEqual(server.told[0][2], ((("b", 6, (1,), b"\0"),), (), None))

    def test_a_response_that_cannot_be_sent_leaves_the_request_open(self):
        server = fake.Server()
        sender = fake.request(decoupled=False).get_response_sender()
        bad = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(["\ud800"], dtype=object))])
        self.assertEqual(fake.outcome(lambda: sender.send(bad, 1))[0], "TritonModelException")
        sender.send(EMPTY, 1)
        self.assertEqual(server.told, [("SEND", 3, SENT, 1)])

    def test_now_and_then_a_sender_waits_for_the_server(self):
        server = fake.Server()
        sender = fake.request(decoupled=True).get_response_sender()
        for _ in range(3 * kinds.SENDS_BETWEEN_QUERIES):
            sender.send(EMPTY)
        self.assertEqual((len(server.asked), len(server.told)), (3, 3 * kinds.SENDS_BETWEEN_QUERIES - 3))
        server.answer = lambda kind, payload: wire.Refused(1, "no room")
        for _ in range(kinds.SENDS_BETWEEN_QUERIES - 1):
            sender.send(EMPTY)
        expected = ("TritonModelException", "An error occurred while sending a response. no room")
        self.assertEqual(fake.outcome(lambda: sender.send(EMPTY)), expected)

    def test_memory_of_the_servers_is_passed_on_before_it_is_given_back(self):
        server = fake.Server()
        data = server.share(b"\1" * 8000)
        request = fake.request([("OUT", 2, (8000,), data)], decoupled=True)
        response = pb_utils.InferenceResponse(request.inputs())
        sender = request.get_response_sender()
        sender.send(response)
        thread = threading.Thread(target=lambda: (sender.send(response), sender.send(EMPTY), sender.send(response, 1)))
        thread.start()
        thread.join()
        passed = ((("OUT", 2, (8000,), data),), (), None)
        self.assertEqual(server.told, [("SEND", 3, passed, 0), ("SEND", 3, SENT, 0)])
        self.assertEqual(server.asked, [("SEND", 3, passed, 0), ("SEND", 3, passed, 1)])

    def test_of_many_threads_one_ends_it(self):
        for _ in range(20):
            server = fake.Server()
            sender = fake.request(decoupled=True).get_response_sender()
            outcomes = []
            barrier = threading.Barrier(8)

            def end():
                barrier.wait()
                outcomes.append(fake.outcome(lambda: sender.send(None, 1)))

            threads = [threading.Thread(target=end) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(outcomes.count(None), 1)
            self.assertEqual(outcomes.count(("TritonModelException", CLOSED)), 7)
            self.assertEqual(len(server.told), 1)


if __name__ == "__main__":
    unittest.main()
