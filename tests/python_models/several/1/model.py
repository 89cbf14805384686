"""Answers COUNT times from a thread of its own, each time with SIZE equal numbers. A negative COUNT goes on until its
request is cancelled."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            size = int(pb_utils.get_input_tensor_by_name(request, "SIZE").as_numpy()[0])
            thread = threading.Thread(target=self.answer, args=(request.get_response_sender(), count, size))
            self.threads = [one for one in self.threads if one.is_alive()] + [thread]
            thread.start()

    def answer(self, sender, count, size):
        at = 0
        while at != count and not sender.is_cancelled():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size, at, np.int32))]))
            at += 1
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
