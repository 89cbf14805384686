"""Sends one response a round, every other one from another thread, and puts the request back until the last."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.rounds = {}

    def execute(self, requests):
        for request in requests:
            key, count = request.correlation_id(), int(request.inputs()[0].as_numpy()[0][0])
            number = self.rounds.get(key, 0)
            output = pb_utils.Tensor("ROUND", np.array([[number]], dtype=np.int32))
            response, sender = pb_utils.InferenceResponse([output]), request.get_response_sender()
            if number % 2:
                thread = threading.Thread(target=sender.send, args=(response,))
                thread.start()
                thread.join()
            else:
                sender.send(response)
            if number + 1 < count:
                self.rounds[key] = number + 1
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                self.rounds.pop(key, None)
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
