"""Reads the responses of a decoupled model that leaves them on a device, and has the last one doubled there."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        asked = pb_utils.InferenceRequest(model_name="gpu_stream", inputs=[given], requested_output_names=["OUT"])
        kept = []
        for response in asked.exec(decoupled=True):
            if response.has_error():
                raise RuntimeError(response.error().message())
            kept += response.output_tensors()
        seen = [list(tensor.__dlpack_device__()) for tensor in kept]
        doubled = pb_utils.InferenceRequest(
            model_name="affine",
            inputs=[pb_utils.Tensor.from_dlpack("INPUT0", kept[-1])],
            requested_output_names=["OUTPUT0"],
        ).exec()
        if doubled.has_error():
            raise RuntimeError(doubled.error().message())
        out = pb_utils.Tensor.from_dlpack("OUT", doubled.output_tensors()[0])
        text = np.array([json.dumps(seen).encode()], dtype=object)
        return pb_utils.InferenceResponse([out, pb_utils.Tensor("SEEN", text)])
