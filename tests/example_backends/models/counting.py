"""Decoupled: answers n with n responses from a thread of its own, and looks whether anybody still listens."""

import threading
import time

import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, arguments):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            count = int(utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            thread = threading.Thread(target=self.answer, args=(request.get_response_sender(), count))
            self.threads.append(thread)
            thread.start()
        return None

    def answer(self, sender, count):
        for index in range(count):
            if sender.is_cancelled():
                utils.Logger.log_info("counting saw the cancellation")
                break
            sender.send(utils.InferenceResponse([utils.Tensor("OUT", numpy.array([index], numpy.int32))]))
            # The official server queues without a bound what comes faster than it can send.
            time.sleep(0.01)
        sender.send(flags=utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
