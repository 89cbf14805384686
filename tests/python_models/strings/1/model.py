"""Turns every string around and counts its bytes."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            turned = np.array([text[::-1] for text in texts.reshape(-1)] or [], dtype=np.object_)
            lengths = np.array([len(text) for text in texts.reshape(-1)], dtype=np.int32)
            outputs = [
                pb_utils.Tensor("TURNED", turned.reshape(texts.shape)),
                pb_utils.Tensor("LENGTHS", lengths.reshape(texts.shape)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
