"""Text to embedding in one model, which calls the encoder itself.

What an ensemble cannot: the texts of all requests that the scheduler put together go to the encoder in one call, though
they differ in length, and a request with a bad text is answered before that.
"""

import json
import os

import triton_python_backend_utils as pb_utils
from pooling import pool
from wordpiece import TextError, WordPiece


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        vocabulary = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vocab.txt")
        self.wordpiece = WordPiece(vocabulary, int(parameters["tokens_max"]["string_value"]))
        self.encoder = parameters["encoder"]["string_value"]

    def execute(self, requests):
        rows, responses, shares = [], [], []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
            try:
                encoded = [self.wordpiece.encode_bytes(text, at, len(texts)) for at, text in enumerate(texts)]
            except TextError as error:
                refusal = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse([], refusal))
                shares.append(None)
                continue
            responses.append(None)
            shares.append(slice(len(rows), len(rows) + len(encoded)))
            rows += encoded
        if not rows:
            return responses
        embeddings, failure = self.embed(rows)
        for at, share in enumerate(shares):
            if share is None:
                continue
            if failure is not None:
                responses[at] = pb_utils.InferenceResponse([], failure)
            else:
                # A slice of rows lies in one piece: it is sent from where it is.
                responses[at] = pb_utils.InferenceResponse([pb_utils.Tensor("embedding", embeddings[share])])
        return responses

    def embed(self, rows):
        """The embeddings of token rows, or the error that the encoder answered."""
        input_ids, attention_mask = self.wordpiece.pad(rows)
        answer = pb_utils.InferenceRequest(
            model_name=self.encoder,
            requested_output_names=["token_vectors"],
            inputs=[pb_utils.Tensor("input_ids", input_ids), pb_utils.Tensor("attention_mask", attention_mask)],
        ).exec()
        if answer.has_error():
            return None, answer.error()
        token_vectors = pb_utils.get_output_tensor_by_name(answer, "token_vectors").as_numpy()
        return pool(token_vectors, attention_mask), None
