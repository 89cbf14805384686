"""Sum and difference of two tensors, by asking another model once."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="sums", requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=request.inputs()
            )
            response = call.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            outputs = [pb_utils.Tensor(output.name(), output.as_numpy()) for output in response.output_tensors()]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
