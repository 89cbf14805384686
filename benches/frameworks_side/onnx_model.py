"""A session of ONNX Runtime in a model of the Python backend."""

import os

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        file = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT__0").as_numpy()
            (result,) = self.session.run(["OUTPUT__0"], {"INPUT__0": given})
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT__0", result)]))
        return responses
