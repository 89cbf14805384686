"""Gives its numbers back, and says what its request was like."""

import json
import time
from pathlib import Path

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
            self.meet(**facts["parameters"])
            facts = np.array([json.dumps(facts).encode()], dtype=object)
            outputs = [pb_utils.Tensor("OUT", numbers), pb_utils.Tensor("FACTS", facts)]
            parameters = {"count": len(numbers), "is_echo": True, "name": "echo"}
            responses.append(pb_utils.InferenceResponse(outputs, parameters=parameters))
        return responses

    def meet(self, meet="", number=0, **_):
        """Waits for another execution that does the same under the other number."""
        if meet:
            (Path(meet) / str(number)).touch()
            while not (Path(meet) / str(1 - number)).exists():
                time.sleep(0.005)
