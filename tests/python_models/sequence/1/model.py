"""Sums the values of each sequence; tells the sum, the correlation id and the flags of the request."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            correlation, flags = request.correlation_id(), request.flags()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            controls = {
                name: pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1).tolist()
                for name in ("START", "END", "READY", "CORRID")
            }
            # A slot without a sequence: the scheduler fills it up.
            if not any(controls["READY"]):
                responses.append(pb_utils.InferenceResponse([]))
                continue
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[correlation] = 0
            self.sums[correlation] += int(values.sum())
            facts = {"correlation_id": correlation, "flags": flags, "controls": controls}
            text = json.dumps(facts, sort_keys=True, default=lambda value: value.decode()).encode()
            shape = (1, 1)
            outputs = [
                pb_utils.Tensor("SUM", np.full(shape, self.sums[correlation], dtype=np.int64)),
                pb_utils.Tensor("TOLD", np.full(shape, text, dtype=np.object_)),
            ]
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[correlation]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
