"""Puts a request back into the queue ROUNDS times before it answers how often it has seen it."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            rounds = int(request.inputs()[0].as_numpy()[0][0])
            key = request.correlation_id()
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] <= rounds:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            seen = np.array([[self.seen.pop(key)]], dtype=np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", seen)]))
        return responses
