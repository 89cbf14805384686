"""Calls other models: one that answers once, and one that answers often."""

import json

import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = utils.get_input_tensor_by_name(request, "IN").as_numpy()
        target = json.loads(request.parameters()).get("model", "add_sub")
        if target == "counting":
            call = utils.InferenceRequest(
                model_name=target, requested_output_names=["OUT"], inputs=[utils.Tensor("IN", value[:1])]
            )
            total = 0
            for response in call.exec(decoupled=True):
                if response.has_error():
                    return utils.InferenceResponse(error=response.error())
                for tensor in response.output_tensors():
                    total += int(tensor.as_numpy()[0])
            return utils.InferenceResponse([utils.Tensor("OUT", numpy.array([total, 0], numpy.int32))])
        row = value.reshape(1, 2)
        call = utils.InferenceRequest(
            model_name=target,
            requested_output_names=["SUM"],
            inputs=[utils.Tensor("A", row), utils.Tensor("B", row)],
        )
        response = call.exec()
        if response.has_error():
            return utils.InferenceResponse(error=response.error())
        total = utils.get_output_tensor_by_name(response, "SUM").as_numpy()
        return utils.InferenceResponse([utils.Tensor("OUT", total.reshape(2))])
