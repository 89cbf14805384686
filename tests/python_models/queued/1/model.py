"""Sleeps as long as it is told, or until its request is cancelled where that is negative; tells the timeout."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            wait_ms = int(request.inputs()[0].as_numpy()[0][0])
            print("queued: DIFFERENTIAL executes", flush=True)
            if wait_ms < 0:
                while not request.is_cancelled():
                    time.sleep(0.005)
                error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            time.sleep(wait_ms / 1000)
            timeout = np.array([[request.timeout()]], dtype=np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TIMEOUT", timeout)]))
        return responses
