"""Fails in the way that its request asks for."""

import os

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0].decode()
            if how == "raise":
                raise ValueError("raised on purpose")
            if how == "die":
                os.kill(os.getpid(), 9)
            if how == "error":
                error = pb_utils.TritonError("nowhere to be found", pb_utils.TritonError.NOT_FOUND)
                responses.append(pb_utils.InferenceResponse(error=error))
            if how == "no outputs":
                responses.append(pb_utils.InferenceResponse([]))
        return responses
