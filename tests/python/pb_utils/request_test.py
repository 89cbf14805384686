"""InferenceRequest: of clients, as the loop makes it, and the model's own."""

import unittest

import fake
import numpy as np

import triton_python_backend_utils as pb_utils

Request = pb_utils.InferenceRequest
A = pb_utils.Tensor("x", np.arange(3))


def made(**changes):
    arguments = dict(inputs=[A], requested_output_names=["y"], model_name="m")
    arguments.update(changes)
    return Request(**{name: value for name, value in arguments.items() if value is not Ellipsis})


class OfClients(unittest.TestCase):
    def setUp(self):
        self.server = fake.Server()

    def test_what_it_says(self):
        inputs = [fake.tensor("a", np.arange(2)), fake.tensor("b", np.zeros(0))]
        request = fake.request(
            inputs, id="n1", correlation="seq", flags=3, timeout=77, parameters='{"a":1.5}', outputs=("OUT", "MORE")
        )
        self.assertEqual([one.name() for one in request.inputs()], ["a", "b"])
        self.assertIs(request.inputs()[0], request.inputs()[0])
        self.assertEqual((request.request_id(), request.correlation_id(), request.flags()), ("n1", "seq", 3))
        self.assertEqual((request.timeout(), request.parameters()), (77, '{"a":1.5}'))
        # A set, as the official binding gives it.
        self.assertEqual(request.requested_output_names(), {"OUT", "MORE"})
        self.assertIs(request.get_response_sender(), request.get_response_sender())

    def test_memory_of_the_server_is_held(self):
        data = self.server.share(b"\0" * 8000)
        fake.request([("a", 9, (1000,), data), fake.tensor("b", np.zeros(1))])
        self.assertEqual(self.server.held, [data])

    def test_traces(self):
        for context, expected in ((None, None), ("", None), ('{"traceparent":"x"}', '{"traceparent":"x"}')):
            trace = fake.request(token=9, trace=context).trace()
            self.assertEqual(trace.get_context(), expected)
            self.assertEqual(trace._token, None if context is None else 9)

    def test_cancellation_is_a_shared_byte(self):
        request = fake.request(token=(7 << 32) | 5)
        sender = request.get_response_sender()
        self.assertFalse(request.is_cancelled() or sender.is_cancelled())
        fake.link.cancelled[5] = 1
        self.assertTrue(request.is_cancelled() and sender.is_cancelled())
        self.assertFalse(fake.request(token=4).is_cancelled())
        self.assertEqual(self.server.told + self.server.asked, [])

    def test_flags(self):
        request = fake.request(flags=1)
        request.set_flags(2)
        self.assertEqual(request.flags(), 2)
        for flags in (None, -1, "x", 2**32, 1.0):
            self.assertEqual(fake.outcome(lambda: request.set_flags(flags))[0], "TypeError", flags)
            self.assertEqual(fake.outcome(lambda: request.set_release_flags(flags))[0], "TypeError", flags)
        self.assertFalse(request.is_rescheduled())
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        self.assertTrue(request.is_rescheduled())
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
        self.assertFalse(request.is_rescheduled())

    def test_who_is_left_to_answer_when_a_batch_fails(self):
        response = pb_utils.InferenceResponse()
        untouched, asked, returned, sent, ended = (fake.request() for _ in range(5))
        asked.get_response_sender()
        returned.get_response_sender()
        returned.answer(response)
        sent.get_response_sender().send(response)
        ended.get_response_sender().send(response, 1)
        requests = (untouched, asked, returned, sent, ended)
        self.assertEqual([request.close() for request in requests], [True, True, True, True, False])
        closed = "Unable to send response. Response sender has been closed."
        early = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
        for request, text in zip(requests, (early, early, closed, closed, closed)):
            outcome = fake.outcome(lambda: request.get_response_sender().send(None, 1))
            self.assertEqual(outcome, ("TritonModelException", text))

    def test_requests_with_nothing_but_a_response_are_plain(self):
        plain, asked, rescheduled = (fake.request() for _ in range(3))
        asked.get_response_sender()
        rescheduled.set_release_flags(2)
        self.assertEqual([request.is_plain() for request in (plain, asked, rescheduled)], [True, False, False])

    def test_a_returned_response_counts_as_sent(self):
        response = pb_utils.InferenceResponse()
        request = fake.request()
        request.get_response_sender().send(response, 1)
        self.assertEqual(
            fake.outcome(lambda: request.answer(response)),
            (
                "TritonModelException",
                "Unable to send response. Non-decoupled model cannot send more than one response.",
            ),
        )
        other = fake.request()
        sender = other.get_response_sender()
        other.answer(response)
        self.assertEqual(
            fake.outcome(lambda: sender.send(response))[1],
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        )


class OfModels(unittest.TestCase):
    def setUp(self):
        fake.Server()

    def test_defaults(self):
        request = made()
        self.assertEqual((request.request_id(), request.correlation_id(), request.flags()), ("", 0, 0))
        self.assertEqual((request.timeout(), request.parameters(), request.requested_output_names()), (0, "{}", {"y"}))
        self.assertEqual((request.inputs(), request.is_cancelled()), ([A], False))
        self.assertIsNone(request.trace().get_context())
        self.assertFalse(request.get_response_sender().is_cancelled())

    def test_the_order_of_positional_arguments(self):
        request = Request("id", 5, [A], ["y", "z", "y"], "m", 2, 3, 4)
        self.assertEqual((request.request_id(), request.correlation_id(), request.flags()), ("id", 5, 3))
        self.assertEqual((request.timeout(), request._facts[6], request._callee), (4, ("y", "z"), ("m", 2, (), None)))

    def test_arguments_that_are_taken(self):
        memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)
        for name, value, expected in (
            ("inputs", [], []),
            ("inputs", (A,), [A]),
            ("requested_output_names", [], set()),
            ("requested_output_names", ("a", "b", "a"), {"a", "b"}),
            ("correlation_id", "abc", "abc"),
            ("correlation_id", "", ""),
            ("correlation_id", 2**64 - 1, 2**64 - 1),
            ("correlation_id", True, 1),
            ("flags", np.int64(3), 3),
            ("timeout", 2**63, 2**63),
            ("request_id", "\u00fc", "\u00fc"),
        ):
            self.assertEqual(getattr(made(**{name: value}), name)(), expected, (name, value))
        made(model_name="", preferred_memory=memory, trace=fake.request(trace="{}").trace())
        self.assertEqual(made(parameters={"a": True, "c": "\u00fc"}).parameters(), '{"a": true, "c": "\\u00fc"}')

    def test_arguments_that_are_not(self):
        for name, values in (
            ("inputs", (None, ..., [1], "ab", A, {})),
            ("requested_output_names", (None, ..., [None], "ab", {"a"}, [5])),
            ("model_name", (None, ..., 5)),
            ("model_version", (None, "1", 1.0, 2**63)),
            ("correlation_id", (None, -1, 2**64)),
            ("request_id", (None, 5)),
            ("flags", (None, -1, 2**32, "1")),
            ("timeout", (None, -1, 2**64, 1.5)),
            ("trace", (None, "x")),
            ("preferred_memory", (None, 0)),
            ("nonsense", (1,)),
        ):
            for value in values:
                self.assertEqual(fake.outcome(lambda: made(**{name: value}))[0], "TypeError", (name, value))
        kinds = "Expect parameters values to have type bool/int/str, found type "
        for changes, text in (
            (dict(correlation_id=1.5), "Correlation ID must be integer or string"),
            (dict(correlation_id=[]), "Correlation ID must be integer or string"),
            (
                dict(inputs=[A, None], request_id="i"),
                "Input tensor for request with id 'i' and model name 'm' should not be empty.",
            ),
            (
                dict(requested_output_names=["a", ""]),
                "Requested output name for request with id '' and model name 'm' should not be empty.",
            ),
            (dict(parameters={1: 2}), "Expect parameters keys to have type str, found type <class 'int'>"),
            (dict(parameters={"a": 1.5}), kinds + "<class 'float'>"),
        ):
            self.assertEqual(fake.outcome(lambda: made(**changes)), ("TritonModelException", text))


if __name__ == "__main__":
    unittest.main()
