"""A mock of a cross-encoder: a query and documents to scores, one for each document. A score is the share of the
query's words that the document has; a document with `<<score X>>` has that score, and `<<fail>>` makes the request an
error."""

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
    return [text.decode("utf-8", "replace") for text in pb_utils.get_input_tensor_by_name(request, name).as_numpy()]


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(texts(request, "query"), texts(request, "documents")) for request in requests]

    def answer(self, query, documents):
        if any("<<fail>>" in document for document in documents):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the mock fails"))
        scores = np.array([score_of(query[0], document) for document in documents], dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("scores", scores)])
