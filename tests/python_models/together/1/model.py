"""Says with how many others a request was executed, and which shape it had there."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            rows = values.shape[0]
            outputs = [
                pb_utils.Tensor("OUT", values + 1),
                pb_utils.Tensor("REQUESTS", np.full((rows, 1), len(requests), dtype=np.int32)),
                pb_utils.Tensor("SHAPE", np.tile(np.array(values.shape, dtype=np.int64), (rows, 1))),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
