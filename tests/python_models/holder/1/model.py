"""Keeps inputs as long as it likes, and makes outputs of every kind of memory."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        self.shared = pb_utils.Tensor("OUT", np.full(50_000, 7, dtype=np.uint8))

    def execute(self, requests):
        responses = []
        for request in requests:
            how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0].decode()
            data = pb_utils.get_input_tensor_by_name(request, "DATA")
            outputs = getattr(self, how)(None if data is None else data.as_numpy())
            responses.append(
                pb_utils.InferenceResponse(
                    [one if isinstance(one, pb_utils.Tensor) else pb_utils.Tensor(*one) for one in outputs]
                )
            )
        return responses

    def keep(self, data):
        """Keeps the input, and tells the sums of all that are kept."""
        self.kept.append(data)
        return self.sums(data)

    def sums(self, data):
        return [("SUMS", np.array([int(one.sum()) for one in self.kept], dtype=np.int64))]

    def forget(self, data):
        self.kept.clear()
        return self.sums(data)

    def same(self, data):
        return [("OUT", data)]

    def views(self, data):
        """Two views of one input, of which one is not contiguous."""
        return [("OUT", data[100:-100]), ("AGAIN", data[::-2])]

    def twice(self, data):
        """One array under two names."""
        own = data + np.uint8(1)
        return [("OUT", own), ("AGAIN", own)]

    def always_the_same(self, data):
        return [self.shared]

    def written(self, data):
        """Written to in place, and given back."""
        data[:] = data[::-1].copy()
        return [("OUT", data)]

    def large(self, data):
        """As many MiB as the input has bytes, of its first value."""
        return [("OUT", np.full(len(data) << 20, data[0], dtype=np.uint8))]
