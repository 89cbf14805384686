"""Gives its numbers back, and says what its request was like."""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT")
            facts = {
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "texts": None if texts is None else [text.decode() for text in texts.as_numpy().tolist()],
            }
            wait_ms = facts["parameters"].get("wait_ms", 0)
            if wait_ms:
                time.sleep(wait_ms / 1000)
            facts = np.array([json.dumps(facts).encode()], dtype=object)
            outputs = [pb_utils.Tensor("OUT", numbers), pb_utils.Tensor("FACTS", facts)]
            parameters = {"count": len(numbers), "is_echo": True, "name": "echo"}
            responses.append(pb_utils.InferenceResponse(outputs, parameters=parameters))
        return responses
