"""Text to the numbers of its word pieces, padded to the longest text of the request."""

import json
import os

import triton_python_backend_utils as pb_utils
from wordpiece import TextError, WordPiece


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        vocabulary = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vocab.txt")
        self.wordpiece = WordPiece(vocabulary, int(parameters["tokens_max"]["string_value"]))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
        try:
            input_ids, attention_mask = self.wordpiece.encode_batch(texts)
        except TextError as error:
            # Only the request that holds the text fails, and its client is told that it is its own mistake.
            return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("input_ids", input_ids), pb_utils.Tensor("attention_mask", attention_mask)]
        )
