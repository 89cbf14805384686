"""Keeps something of every request for a while, in all the ways there are, and looks whether it changes.

All elements of a request are the number in its id. Its inputs are passed on: untouched, seen, or as new tensors.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

KEPT = 12


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        self.count = 0

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS")
        words = pb_utils.get_input_tensor_by_name(request, "WORDS")
        value = int(request.request_id())
        way = self.count % 5
        self.count += 1
        if way == 0:
            # Neither was looked at.
            held = lambda: (numbers.as_numpy(), words.as_numpy())  # noqa: E731
        elif way == 1:
            arrays = (numbers.as_numpy(), words.as_numpy())
            held = lambda: arrays  # noqa: E731
        elif way == 2:
            # Views of views, of whose tensors nothing is left.
            part = numbers.as_numpy()[3:][::2].reshape(1, -1)
            held = lambda: (part, np.array([], dtype=object))  # noqa: E731
        elif way == 3:
            adopted = pb_utils.Tensor.from_dlpack("X", numbers.to_dlpack())
            held = lambda: (adopted.as_numpy(), words.as_numpy())  # noqa: E731
        else:
            held = lambda: (np.array([value]), np.array([], dtype=object))  # noqa: E731
        self.kept.append((value, way == 0, held))
        broken = 0
        if len(self.kept) > KEPT:
            broken += self.is_broken(*self.kept.pop(0), at_last=True)
        for value, is_unseen, held in self.kept:
            broken += self.is_broken(value, is_unseen, held)
        outputs = [numbers, words]
        if way == 1:
            outputs = [pb_utils.Tensor("NUMBERS", numbers.as_numpy()), pb_utils.Tensor("WORDS", words.as_numpy())]
        return pb_utils.InferenceResponse(outputs + [pb_utils.Tensor("BROKEN", np.array([broken]))])

    @staticmethod
    def is_broken(value, is_unseen, held, at_last=False):
        if is_unseen and not at_last:
            return 0
        numbers, words = held()
        return int((numbers != value).any()) + int(not set(words.tolist()) <= {b"%d" % value})
