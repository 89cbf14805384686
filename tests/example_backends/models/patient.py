"""Answers when its client has left, and not before."""

import time

import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            utils.Logger.log_info("patient waits")
            while not request.is_cancelled():
                time.sleep(0.005)
            utils.Logger.log_info("patient saw the cancellation")
            error = utils.TritonError("nobody listens", utils.TritonError.CANCELLED)
            responses.append(utils.InferenceResponse(error=error))
        return responses
