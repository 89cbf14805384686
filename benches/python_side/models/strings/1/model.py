"""The same strings, in an array of its own."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = pb_utils.Tensor("OUTPUT0", array.copy())
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses
