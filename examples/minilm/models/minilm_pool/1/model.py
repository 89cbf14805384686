"""The vectors of a sentence's tokens to the one vector of the sentence."""

import triton_python_backend_utils as pb_utils
from pooling import pool


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        token_vectors = pb_utils.get_input_tensor_by_name(request, "token_vectors").as_numpy()
        attention_mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", pool(token_vectors, attention_mask))])
