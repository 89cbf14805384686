"""An execute that is a coroutine, whose parts wait for each other."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def double(self, request, others, here):
        value = int(request.inputs()[0].as_numpy()[0][0])
        here.append(value)
        while len(here) < others:
            await asyncio.sleep(0.001)
        if value == -1:
            raise ValueError("a coroutine raised")
        array = np.array([[2 * value]], dtype=np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("DOUBLED", array)])

    async def execute(self, requests):
        here = []
        return await asyncio.gather(*[self.double(request, len(requests), here) for request in requests])
