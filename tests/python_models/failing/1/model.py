"""Fails in the way that the input asks for: every wrong result of execute, every error with each code."""

import sys

import numpy as np
import triton_python_backend_utils as pb_utils


def good():
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([7], dtype=np.int32))])


def error(text, *code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, *code))


def deep(levels):
    if levels == 0:
        raise KeyError("down here")
    deep(levels - 1)


class Odd(Exception):
    def __str__(self):
        return "an odd one"


class TritonPythonModel:
    def execute(self, requests):
        how = requests[0].inputs()[0].as_numpy()[0].decode()
        if how.startswith("code "):
            name = how[len("code ") :]
            return [error(f"with the code {name}", getattr(pb_utils.TritonError, name))]
        return getattr(self, how)()

    def fine(self):
        return [good()]

    def raise_value_error(self):
        raise ValueError("a \"value\" that is wrong: é")

    def raise_deep(self):
        deep(3)

    def raise_odd(self):
        raise Odd()

    def raise_empty(self):
        raise RuntimeError()

    def raise_lines(self):
        raise RuntimeError("one\ntwo")

    def raise_model_exception(self):
        raise pb_utils.TritonModelException("the model's own")

    def raise_chained(self):
        try:
            deep(0)
        except KeyError as cause:
            raise RuntimeError("because of it") from cause

    def raise_syntax(self):
        exec("a b")

    def raise_assertion(self):
        assert 1 == 2, "not equal"

    def plain_error(self):
        return [error("without a code")]

    def empty_error(self):
        return [error("")]

    def error_beside_outputs(self):
        outputs = [pb_utils.Tensor("OUT", np.array([7], dtype=np.int32))]
        return [pb_utils.InferenceResponse(outputs, pb_utils.TritonError("beside outputs"))]

    def none(self):
        return None

    def nothing(self):
        return []

    def too_many(self):
        return [good(), good()]

    def list_of_none(self):
        return [None]

    def list_of_text(self):
        return ["text"]

    def a_tuple(self):
        return (good(),)

    def a_number(self):
        return 7

    def a_response(self):
        return good()

    def no_outputs(self):
        return [pb_utils.InferenceResponse([])]

    def other_output(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.array([7], dtype=np.int32))])]

    def other_type(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([7.5], dtype=np.float64))])]

    def other_shape(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[7]], dtype=np.int32))])]

    def no_elements(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([], dtype=np.int32))])]

    def scalar(self):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(7, dtype=np.int32))])]

    def same_output_twice(self):
        values = [np.array([value], dtype=np.int32) for value in (7, 8)]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value) for value in values])]

    def turned_around(self):
        values = np.arange(6, dtype=np.int32)[::-2]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)])]

    def prints(self):
        print("a line on the standard output")
        print("a line on the standard error", file=sys.stderr)
        return [good()]
