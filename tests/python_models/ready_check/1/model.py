"""Answers the question for its readiness as the last request told it to: true, false, none, raise."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.how = "true"

    def is_ready(self):
        if self.how == "raise":
            raise ValueError("not to be asked")
        return {"true": True, "false": False, "none": None}[self.how]

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = request.inputs()[0].as_numpy()
            self.how = tensor[0].decode()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]))
        return responses
