"""Sends each input back under the name of its output."""

import triton_python_backend_utils as pb_utils


def output(tensor):
    name = tensor.name().replace("INPUT", "OUTPUT")
    return pb_utils.Tensor(name, tensor.as_numpy())


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([output(tensor) for tensor in request.inputs()]) for request in requests]
