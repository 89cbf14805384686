"""The sum of its inputs, of which the second is 10 and 20 if it is left out."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            first, second = (pb_utils.get_input_tensor_by_name(request, f"INPUT__{at}") for at in range(2))
            added = np.array([10, 20], np.float32) if second is None else second.as_numpy()
            output = pb_utils.Tensor("OUTPUT__0", first.as_numpy() + added)
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
