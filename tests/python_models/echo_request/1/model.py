"""Tells as JSON all that a model can learn of its request, and with the parameter `answer` returns parameters."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def told(request):
    correlation = request.correlation_id()
    trace = request.trace()
    return {
        "id": request.request_id(),
        "correlation_id": [type(correlation).__name__, correlation],
        "flags": request.flags(),
        "timeout": request.timeout(),
        "requested_outputs": sorted(request.requested_output_names()),
        "parameters": json.loads(request.parameters() or "null"),
        "inputs": [[one.name(), str(one.as_numpy().dtype), list(one.shape()), one.is_cpu()] for one in request.inputs()],
        "cancelled": request.is_cancelled(),
        "trace": [type(trace).__name__, trace.get_context()],
    }


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            facts = told(request)
            text = json.dumps(facts, sort_keys=True).encode()
            outputs = [
                pb_utils.Tensor("TOLD", np.array([text], dtype=np.object_)),
                pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()),
            ]
            wanted = (facts["parameters"] or {}).get("answer")
            # Release 2.51 knows no parameters of responses.
            more = {} if wanted is None else {"parameters": json.loads(wanted)}
            responses.append(pb_utils.InferenceResponse(outputs, **more))
        return responses
