"""Answers COUNT times in the way that HOW names, from several threads, for clients that read slowly or go away."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
FILL = np.arange(1 << 18, dtype=np.uint8)


def response(number, fill=False):
    outputs = [pb_utils.Tensor("NUMBER", np.array([number], dtype=np.int32))]
    if fill:
        outputs.append(pb_utils.Tensor("FILL", FILL))
    return pb_utils.InferenceResponse(outputs)


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []
        self.kept = []

    def execute(self, requests):
        for request in requests:
            how, count = [tensor.as_numpy()[0] for tensor in request.inputs()]
            getattr(self, how.decode())(request, request.get_response_sender(), int(count))

    def finalize(self):
        for thread in self.threads:
            thread.join()

    def start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments)
        self.threads.append(thread)
        thread.start()
        return thread

    def in_turns(self, request, sender, count):
        """This thread and others take turns, each waits for the one before."""
        for number in range(count):
            if number % 2:
                self.start(sender.send, response(number)).join()
            else:
                sender.send(response(number))
        sender.send(flags=FINAL)

    def ends_elsewhere(self, request, sender, count):
        for number in range(count):
            sender.send(response(number))
        self.start(sender.send, None, FINAL).join()

    def fails_behind_others(self, request, sender, count):
        """Another thread has sent, and then execute raises."""
        for number in range(count):
            self.start(sender.send, response(number)).join()
        raise ValueError("behind the responses")

    def from_many(self, request, sender, count):
        """Several threads at once, after execute has returned."""

        def part(first):
            for number in range(first, count, 4):
                sender.send(response(number))

        threads = [threading.Thread(target=part, args=(first,)) for first in range(4)]

        def all_of_it():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sender.send(flags=FINAL)

        self.start(all_of_it)

    def flood(self, request, sender, count):
        """From a thread, with a quarter of a MiB each: faster than anybody reads."""

        def send():
            for number in range(count):
                sender.send(response(number, fill=True))
            sender.send(flags=FINAL)

        self.start(send)

    def never(self, request, sender, count):
        """Nothing more follows."""
        for number in range(count):
            sender.send(response(number))
        self.kept.append(sender)

    def until_cancelled(self, request, sender, count):
        """Sends until nobody waits any more, and says so."""

        def send():
            number = 0
            while not sender.is_cancelled():
                if number < count:
                    sender.send(response(number))
                    number += 1
                else:
                    time.sleep(0.001)
            print("stream: a thread saw the cancellation", flush=True)
            sender.send(flags=FINAL)

        self.start(send)

    def until_cancelled_here(self, request, sender, count):
        """Execute itself looks, once it has said that it is there."""
        for number in range(count):
            sender.send(response(number))
        print("stream: execute waits", flush=True)
        while not request.is_cancelled():
            time.sleep(0.001)
        print("stream: execute saw the cancellation", flush=True)
        sender.send(flags=FINAL)

    def is_cancelled(self, request, sender, count):
        """Tells whether it is cancelled, and is not."""
        sender.send(response(int(request.is_cancelled())), FINAL)
