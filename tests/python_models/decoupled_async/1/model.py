"""Answers COUNT times from a coroutine, which gives way between the responses."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            count = int(request.inputs()[0].as_numpy()[0])
            sender = request.get_response_sender()
            for number in range(count):
                await asyncio.sleep(0)
                output = pb_utils.Tensor("OUT", np.array([number], dtype=np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
