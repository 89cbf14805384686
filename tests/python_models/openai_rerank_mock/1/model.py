"""A mock of a cross-encoder: a query and a document to a score, which is the share of the query's words that the
document has; a document with `<<score X>>` has that score, and `<<fail>>` makes the request an error."""

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


def text(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0].decode("utf-8", "replace")


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(text(request, "query"), text(request, "document")) for request in requests]

    def answer(self, query, document):
        if "<<fail>>" in document:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the mock fails"))
        score = np.array([score_of(query, document)], dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("score", score)])
