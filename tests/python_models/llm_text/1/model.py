"""The steps before and after an engine: a text to token identifiers, or identifiers to a text."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT")
            if text is not None:
                ids = np.array([[ord(one) for one in text.as_numpy()[0][0].decode()]], dtype=np.int32)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("IDS", ids)]))
            else:
                ids = pb_utils.get_input_tensor_by_name(request, "IDS").as_numpy()[0]
                text = np.array([["".join(map(chr, ids))]], dtype=np.object_)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
