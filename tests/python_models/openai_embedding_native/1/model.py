"""A mock of an embedding model as the example `minilm` is one: texts to vectors, in batches. The vector of a text is
the share of a, e, i and o among its characters; a text with `<<fail>>` makes its request an error."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "text").as_numpy()) for request in requests]

    def answer(self, texts):
        texts = [text.decode("utf-8", "replace") for text in texts.reshape(-1)]
        if any("<<fail>>" in text for text in texts):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the mock fails"))
        shares = [[text.count(letter) / max(len(text), 1) for letter in "aeio"] for text in texts]
        vectors = np.array(shares, dtype=np.float32).reshape(len(texts), 4)
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors)])
