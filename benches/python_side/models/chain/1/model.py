"""The second tensor added twice to the first, by asking another model twice."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            once = pb_utils.get_output_tensor_by_name(self.ask(left, right), "OUTPUT0")
            once = pb_utils.Tensor("INPUT0", once.as_numpy())
            twice = pb_utils.get_output_tensor_by_name(self.ask(once, right), "OUTPUT0")
            output = pb_utils.Tensor("OUTPUT0", twice.as_numpy())
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses

    def ask(self, left, right):
        request = pb_utils.InferenceRequest(
            model_name="sums", requested_output_names=["OUTPUT0"], inputs=[left, right]
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return response
