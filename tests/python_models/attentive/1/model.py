"""Says whether it is ready as its last `be …` told it to; `wait <path>` works until there is such a file."""

import asyncio
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def wait(path):
    while not os.path.exists(path):
        time.sleep(0.002)


class TritonPythonModel:
    def initialize(self, args):
        self.mood = "true"
        self.asked = 0

    def is_ready(self):
        self.asked += 1
        word, _, rest = self.mood.partition(" ")
        if word == "raise":
            raise ValueError(rest)
        if word == "exit":
            os._exit(int(rest))
        if word == "wait":
            wait(rest)
            return True
        if word == "later":
            return self.later(rest == "true")
        return {"true": True, "false": False, "none": None, "one": 1, "numpy": np.True_}[word]

    async def later(self, is_ready):
        await asyncio.sleep(0.001)
        return is_ready

    def execute(self, requests):
        responses = []
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy().reshape(-1)[0].decode()
            word, _, rest = words.partition(" ")
            if word == "be":
                self.mood = rest
            elif word == "wait":
                wait(rest)
            done = str(self.asked) if word == "asked" else "done"
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("DONE", np.array([done], dtype=np.object_))]))
        return responses
