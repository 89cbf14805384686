"""An execute that is a coroutine, whose parts wait for each other."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

# Requests of smaller values are answered by tasks; of yet smaller ones beside a task that raises SystemExit.
LATER = -99
LEAVES = -999


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

    async def later(self, request, others, here):
        """Sends after execute has returned, which others may have done before."""
        response = await self.double(request, others, here)
        await self.returned.wait()
        request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def leave(self):
        raise SystemExit(3)

    async def execute(self, requests):
        here = []
        values = [int(request.inputs()[0].as_numpy()[0][0]) for request in requests]
        if min(values) < LATER:
            self.returned = asyncio.Event()
            self.tasks = [asyncio.create_task(self.later(request, len(requests), here)) for request in requests]
            if min(values) < LEAVES:
                self.tasks.append(asyncio.create_task(self.leave()))
            asyncio.get_running_loop().call_later(0.01, self.returned.set)
            return None
        if -2 in values:
            raise SystemExit(2)
        return await asyncio.gather(*[self.double(request, len(requests), here) for request in requests])
