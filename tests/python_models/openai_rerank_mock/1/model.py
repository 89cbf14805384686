"""A mock of a cross-encoder: pairs of a query and a document to scores, in batches. A score is the share of the query's
words that the document has; a document with `<<score X>>` has that score, and `<<fail>>` makes its request an error."""

import re

import numpy as np
import triton_python_backend_utils as pb_utils

SCORE = re.compile(r"<<score (\S+?)>>")


def score_of(query, document):
    asked = SCORE.search(document)
    if asked:
        return float(asked.group(1))
    words = set(query.lower().split())
    return len(words & set(document.lower().split())) / max(len(words), 1)


def texts(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
    return [text.decode("utf-8", "replace") for text in tensor.reshape(-1)]


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(texts(request, "query"), texts(request, "document")) for request in requests]

    def answer(self, queries, documents):
        if any("<<fail>>" in document for document in documents):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the mock fails"))
        scores = [[score_of(query, document)] for query, document in zip(queries, documents)]
        return pb_utils.InferenceResponse([pb_utils.Tensor("score", np.array(scores, dtype=np.float32))])
