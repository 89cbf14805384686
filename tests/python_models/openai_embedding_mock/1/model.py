"""A mock of an embedding model with the inputs and outputs of Triton's vLLM backend (contract/openai.md section 3.2):
`embedding_request` is JSON, `text_output` the vector as JSON text.

The vector of an input has `dimensions` numbers, 8 without it, and the length 1; it depends on the input's text or token
ids alone. It is all that `<<vector JSON>>` has, if that stands in the text; `<<fail>>` makes the request an error, and
`<<request>>` the answer embedding_request itself instead of a vector. A token is a word or an id."""

import json
import re
import zlib

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
VECTOR = re.compile(r"<<vector (.*?)>>")
DIMENSIONS = 8


def vector_of(given, dimensions):
    text = given if isinstance(given, str) else json.dumps(given)
    asked = VECTOR.search(text)
    if asked:
        return json.loads(asked.group(1))
    vector = np.random.default_rng(zlib.crc32(text.encode("utf-8", "surrogatepass"))).normal(size=dimensions)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tolist()


def first(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(self.answer(request), FINAL)
        return None

    def answer(self, request):
        asked = first(request, "embedding_request")
        if asked is None:
            error = pb_utils.TritonError("this model writes no texts", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        try:
            asked = asked.decode()
            embedding = json.loads(asked)
            given = embedding["input"]
            if "<<fail>>" in given:
                raise ValueError("the mock fails")
            if "<<request>>" in given:
                text = asked
            else:
                dimensions = embedding["pooling_params"].get("dimensions", [DIMENSIONS])[0]
                text = json.dumps(vector_of(given, dimensions))
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("Error generating stream: %s" % error))
        outputs = [pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))]
        counts = {"num_input_tokens": len(given.split() if isinstance(given, str) else given), "num_output_tokens": 0}
        for name, count in counts.items():
            if first(request, "return_" + name):
                outputs.append(pb_utils.Tensor(name, np.array([count], dtype=np.uint32)))
        return pb_utils.InferenceResponse(outputs)
