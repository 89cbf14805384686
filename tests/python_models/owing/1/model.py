"""Answers after its execution has returned: `count N` so often, `hold` once and then no more, `exit N` never."""

import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.held = []

    def execute(self, requests):
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy().reshape(-1)[0].decode()
            word, _, rest = words.partition(" ")
            sender = request.get_response_sender()
            if word == "count":
                threading.Thread(target=self.answer, args=(sender, int(rest))).start()
            elif word == "hold":
                self.held.append(sender)
                self.send(sender, "held")
            elif word == "exit":
                os._exit(int(rest))
        return None

    def answer(self, sender, count):
        for number in range(count):
            self.send(sender, str(number))
        sender.send(flags=FINAL)

    def send(self, sender, text):
        done = pb_utils.Tensor("DONE", np.array([text], dtype=np.object_))
        sender.send(pb_utils.InferenceResponse([done]))
