"""InferenceResponse: its constructor, its methods, and what of it goes into messages."""

import json
import unittest

import fake
import numpy as np
from nereid_python import response

import triton_python_backend_utils as pb_utils

Response = pb_utils.InferenceResponse


def tensors(*names):
    return [pb_utils.Tensor(name, np.arange(3, dtype=np.int8)) for name in names]


class Responses(unittest.TestCase):
    def setUp(self):
        fake.Server()

    def test_defaults(self):
        made = Response()
        self.assertEqual((made.output_tensors(), made.has_error(), made.error()), ([], False, None))
        self.assertEqual(made.parameters(), "{}")
        self.assertEqual(made.pack(("x",)), ((), (), None))

    def test_outputs(self):
        outputs = tensors("a", "b")
        for given in (outputs, tuple(outputs)):
            made = Response(given)
            self.assertEqual(made.output_tensors(), outputs)
        outputs.append(None)
        self.assertEqual(len(made.output_tensors()), 2)
        self.assertEqual(len(Response(output_tensors=[], error=None, parameters=None).output_tensors()), 0)

    def test_an_error_hides_the_outputs_from_clients_only(self):
        error = pb_utils.TritonError("bad", pb_utils.TritonError.NOT_FOUND)
        made = Response(tensors("a"), error)
        self.assertEqual((made.has_error(), made.error(), len(made.output_tensors())), (True, error, 1))
        self.assertEqual(made.pack(("a",)), ((), (), (2, "bad")))

    def test_only_what_is_wanted_is_sent(self):
        made = Response(tensors("a", "b", "c"), parameters={"x": 1})
        for wanted, expected in ((("a", "c"), ["a", "c"]), ({"c", "d"}, ["c"]), ((), [])):
            outputs, parameters, error = made.pack(wanted)
            self.assertEqual(([output[0] for output in outputs], parameters, error), (expected, (("x", 1),), None))
            self.assertTrue(all(output[1:] == (6, (3,), b"\0\1\2") for output in outputs))

    def test_argument_errors(self):
        tensor = tensors("a")[0]
        for arguments in ((None,), (5,), ("ab",), (tensor,), ([1],), ([], "x"), (None, None), ([], 5), ({},)):
            self.assertEqual(fake.outcome(lambda: Response(*arguments))[0], "TypeError", arguments)
        expected = ("TritonModelException", "Output tensor for inference response should not be empty.")
        self.assertEqual(fake.outcome(lambda: Response([None])), expected)
        self.assertEqual(fake.outcome(lambda: Response([tensor, None])), expected)

    def test_parameters(self):
        values = {"a": True, "b": -(2**63), "c": "\u00fc", "d": 2**63 - 1, "": ""}
        made = Response(parameters=values)
        self.assertEqual(json.loads(made.parameters()), values)
        self.assertEqual(made.pack(())[1], tuple(values.items()))
        self.assertEqual([type(value) for _, value in made.pack(())[1]], [bool, int, str, int, str])
        self.assertEqual(Response(parameters={}).parameters(), "{}")
        keys = "Expect parameters keys to have type str, found type "
        kinds = "Expect parameters values to have type bool/int/str, found type "
        for values, text in (
            ({1: 2}, keys + "<class 'int'>"),
            ({None: 2}, keys + "<class 'NoneType'>"),
            ({"a": 1.5}, kinds + "<class 'float'>"),
            ({"a": None}, kinds + "<class 'NoneType'>"),
            ({"a": [1]}, kinds + "<class 'list'>"),
            ({"a": b"x"}, kinds + "<class 'bytes'>"),
            ({"a": np.int64(1)}, kinds + "<class 'numpy.int64'>"),
            ({"a": 2**63}, "Unsupported value type on parameters: 'a' does not fit into 64 bits"),
        ):
            self.assertEqual(fake.outcome(lambda: Response(parameters=values)), ("TritonModelException", text))
        for values in (5, [], [("a", 1)], "x"):
            self.assertEqual(fake.outcome(lambda: Response(parameters=values))[0], "TritonModelException")

    def test_what_comes_from_other_models(self):
        wire = (fake.tensor("a", np.arange(2.0)),)
        made = response.incoming((wire, (("x", 1), ("y", 2.5), ("z", "t")), None))
        self.assertEqual(made.output_tensors()[0].as_numpy().tolist(), [0.0, 1.0])
        self.assertEqual(json.loads(made.parameters()), {"x": 1, "y": 2.5, "z": "t"})
        self.assertEqual((made.has_error(), made.error()), (False, None))
        failed = response.incoming(((), (), (4, "busy")))
        self.assertTrue(failed.has_error())
        self.assertEqual((failed.error().message(), failed.error().code()), ("busy", pb_utils.TritonError.UNAVAILABLE))
        self.assertEqual(response.incoming(((), (), (77, "x"))).error().code(), pb_utils.TritonError.UNKNOWN)


if __name__ == "__main__":
    unittest.main()
