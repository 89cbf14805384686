"""The 31 names, the indirect types, the type maps and the functions of the module."""

import unittest

import fake
import numpy as np

import c_python_backend_utils as native
import triton_python_backend_utils as pb_utils


class Names(unittest.TestCase):
    def test_all_31_names_are_there(self):
        names = """get_input_tensor_by_name get_output_tensor_by_name get_input_config_by_name get_output_config_by_name
            using_decoupled_model_transaction_policy triton_to_numpy_type numpy_to_triton_type triton_string_to_numpy
            serialize_byte_tensor deserialize_bytes_tensor ModelConfig TRITON_STRING_TO_NUMPY
            TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
            TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITONSERVER_REQUEST_RELEASE_ALL
            TRITONSERVER_REQUEST_RELEASE_RESCHEDULE TRITONSERVER_MEMORY_GPU TRITONSERVER_MEMORY_CPU Tensor
            InferenceRequest InferenceResponse TritonError TritonModelException PreferredMemory Logger MetricFamily
            load_model unload_model is_model_ready get_model_dir""".split()
        self.assertEqual(len(names), 31)
        self.assertEqual(sorted(pb_utils.__all__), sorted(names))
        for name in names:
            self.assertTrue(hasattr(pb_utils, name), name)

    def test_constants(self):
        for name, value in (
            ("REQUEST_FLAG_SEQUENCE_START", 1),
            ("REQUEST_FLAG_SEQUENCE_END", 2),
            ("RESPONSE_COMPLETE_FINAL", 1),
            ("REQUEST_RELEASE_ALL", 1),
            ("REQUEST_RELEASE_RESCHEDULE", 2),
        ):
            self.assertEqual(getattr(pb_utils, "TRITONSERVER_" + name), value)
        self.assertEqual(repr(pb_utils.TRITONSERVER_MEMORY_GPU), "<MemoryType.TRITONSERVER_MEMORY_GPU: 0>")
        self.assertEqual(str(pb_utils.TRITONSERVER_MEMORY_CPU), "MemoryType.TRITONSERVER_MEMORY_CPU")

    def test_the_native_module_has_the_indirect_types(self):
        for name in "InferenceResponseSender ResponseIterator Metric MetricKind InferenceTrace MemoryType".split():
            self.assertTrue(isinstance(getattr(native, name), type), name)
        for name in "InferenceResponseSender ResponseIterator Metric InferenceTrace Logger".split():
            self.assertEqual(fake.outcome(getattr(native, name))[0], "TypeError", name)
        self.assertEqual(native.MetricKind(1), native.MetricKind.GAUGE)
        self.assertIs(pb_utils.Tensor, native.Tensor)

    def test_arguments_of_wrong_types_are_told_as_by_the_original(self):
        """As the official 2.51 writes them, but for addresses, and the argument that later releases have."""
        known = "incompatible %s arguments. The following argument types are supported:\n    1. "
        made, called = known % "constructor", known % "function"
        native_name = "c_python_backend_utils."
        array = np.array([1], np.int32)
        tensor = pb_utils.Tensor("x", array)
        logged = "log(): " + called + "(message: str, level: %sLogger.LogLevel = <LogLevel.INFO: 0>) -> None"
        request = {"inputs": [tensor], "model_name": "m", "requested_output_names": ["o"]}
        cases = (
            (
                lambda: pb_utils.Tensor(None, array),
                "__init__(): %s%sTensor(arg0: str, arg1: numpy.ndarray)" % (made, native_name),
                "None, array([1], dtype=int32)",
            ),
            (lambda: pb_utils.Tensor("x", None), "", "'x', None"),
            (
                lambda: pb_utils.Tensor.from_dlpack(None, array),
                "from_dlpack(): %s(self: str, arg0: object) -> %sTensor" % (called, native_name),
                "None, array([1], dtype=int32)",
            ),
            (lambda: pb_utils.InferenceResponse([3]), "", "[3]"),
            (lambda: pb_utils.TritonError("x", 3), "", "'x', 3"),
            (lambda: pb_utils.TritonError(None), "", "None"),
            (lambda: pb_utils.Logger.log(None), logged % native_name, "None"),
            (lambda: pb_utils.Logger.log("x", 3), logged % native_name, "'x', 3"),
            (
                lambda: pb_utils.load_model(None),
                "load_model(): " + called + "(model_name: str, config: str = '', files: object = None) -> None",
                "None",
            ),
            (lambda: pb_utils.is_model_ready("x", 3), "", "'x', 3"),
            (lambda: pb_utils.PreferredMemory(None), "", "None"),
            (
                lambda: pb_utils.InferenceRequest(**dict(request, inputs=None)),
                "__init__(): %s%sInferenceRequest(request_id: str = '', " % (made, native_name),
                "kwargs: inputs=None, requested_output_names=['o'], model_name='m'",
            ),
            (
                lambda: pb_utils.MetricFamily(3, "d", pb_utils.MetricFamily.COUNTER),
                "__init__(): %s%sMetricFamily(name: str, description: str, kind: %sMetricKind)"
                % (made, native_name, native_name),
                "3, 'd', <MetricKind.COUNTER: 0>",
            ),
        )
        for call, begins, invoked in cases:
            kind, text = fake.outcome(call)
            self.assertEqual(kind, "TypeError")
            self.assertTrue(text.startswith(begins) and "arguments. The following" in text, text)
            self.assertEqual(text.partition("\n\nInvoked with: ")[2], invoked)
        kind, text = fake.outcome(lambda: pb_utils.InferenceRequest(**request).set_flags("x"))
        self.assertIn("InferenceRequest object at 0x", text)
        self.assertTrue(text.endswith(">, 'x'"), text)
        # What the model's own functions are called is nobody's affair.
        def set_flags(self, value):
            pb_utils.MetricFamily(self, value, 3)

        self.assertIn("MetricFamily(name: str", fake.outcome(lambda: set_flags("a", 1))[1])

    def test_type_maps(self):
        types = [None, np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64]
        types += [np.float16, np.float32, np.float64, np.object_]
        for number, kind in enumerate(types):
            self.assertIs(pb_utils.triton_to_numpy_type(number), kind)
            if kind is not None:
                self.assertEqual(pb_utils.numpy_to_triton_type(kind), number)
                self.assertEqual(pb_utils.numpy_to_triton_type(np.dtype(kind)), number)
        # As the official 2.51 answers.
        for unknown in (14, 15, -1, None, "x"):
            self.assertIsNone(pb_utils.triton_to_numpy_type(unknown), unknown)
        self.assertIs(pb_utils.triton_to_numpy_type(10.0), np.float16)
        self.assertEqual(pb_utils.numpy_to_triton_type(np.bytes_), 13)
        for unknown in (None, "int32", int, float, bytes, np.complex64, np.dtype(">i4"), np.dtype("S5"), 5):
            self.assertIsNone(pb_utils.numpy_to_triton_type(unknown), unknown)

    def test_configuration_names_of_types(self):
        known = pb_utils.TRITON_STRING_TO_NUMPY
        self.assertEqual(len(known), 13)
        for name, kind in (("TYPE_FP32", np.float32), ("TYPE_STRING", np.object_), ("TYPE_UINT64", np.uint64)):
            self.assertIs(pb_utils.triton_string_to_numpy(name), kind)
        self.assertEqual(pb_utils.triton_string_to_numpy("TYPE_BOOL"), bool)
        for name in ("TYPE_BF16", "FP32", ""):
            self.assertEqual(fake.outcome(lambda: pb_utils.triton_string_to_numpy(name))[0], "KeyError")

    def test_lookups(self):
        config = {"input": [{"name": "A", "dims": [1]}], "output": [{"name": "B"}]}
        self.assertEqual(pb_utils.get_input_config_by_name(config, "A"), {"name": "A", "dims": [1]})
        self.assertIsNone(pb_utils.get_input_config_by_name(config, "B"))
        self.assertEqual(pb_utils.get_output_config_by_name(config, "B"), {"name": "B"})
        self.assertIsNone(pb_utils.get_output_config_by_name({}, "B"))
        policy = "model_transaction_policy"
        for config, expected in (({}, False), ({policy: {}}, False), ({policy: {"decoupled": True}}, True)):
            self.assertIs(pb_utils.using_decoupled_model_transaction_policy(config), expected)
        fake.Server()
        request = fake.request([fake.tensor("A", np.zeros(2)), fake.tensor("B", np.ones(2))])
        self.assertEqual(pb_utils.get_input_tensor_by_name(request, "B").as_numpy().tolist(), [1, 1])
        self.assertIsNone(pb_utils.get_input_tensor_by_name(request, "C"))
        response = pb_utils.InferenceResponse(request.inputs())
        self.assertIs(pb_utils.get_output_tensor_by_name(response, "A"), request.inputs()[0])
        self.assertIsNone(pb_utils.get_output_tensor_by_name(response, "C"))

    def test_tensors_of_stand_ins_by_name(self):
        class StandIn:
            """As models wrap a request or a response: it has the public methods."""

            def inputs(self):
                return [pb_utils.Tensor("A", np.zeros(1)), pb_utils.Tensor("B", np.ones(2))]

            output_tensors = inputs

        for find in (pb_utils.get_input_tensor_by_name, pb_utils.get_output_tensor_by_name):
            self.assertEqual(find(StandIn(), "B").as_numpy().tolist(), [1, 1])
            self.assertIsNone(find(StandIn(), "C"))
            with self.assertRaisesRegex(AttributeError, "'list' object has no attribute '(inputs|output_tensors)'"):
                find([StandIn()], "B")

    def test_errors(self):
        codes = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
        for number, name in enumerate(codes):
            code = getattr(pb_utils.TritonError, name)
            error = pb_utils.TritonError("text", code)
            self.assertEqual((error.message(), int(error.code()), error.code().name), ("text", number, name))
            self.assertTrue(code == number and number == code and code != number + 1)
        self.assertEqual(pb_utils.TritonError("x").code(), pb_utils.TritonError.INTERNAL)
        self.assertEqual(pb_utils.TritonError(message=b"x", code=pb_utils.TritonError.CANCELLED).message(), "x")
        for arguments in ((), (None,), (5,), ("x", None), ("x", 3), ("x", "y")):
            self.assertEqual(fake.outcome(lambda: pb_utils.TritonError(*arguments))[0], "TypeError", arguments)
        self.assertTrue(issubclass(pb_utils.TritonModelException, Exception))
        self.assertEqual(fake.outcome(lambda: pb_utils.TritonError.INTERNAL < pb_utils.TritonError.UNKNOWN)[0], "TypeError")

    def test_preferred_memory(self):
        memory = pb_utils.PreferredMemory
        self.assertEqual(memory(pb_utils.TRITONSERVER_MEMORY_CPU)._wire, (0, 0))
        wanted = memory(preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_GPU, preferred_device_id=1)
        self.assertEqual(wanted._wire, (2, 1))
        for arguments in ((), (None,), (0,), (pb_utils.TRITONSERVER_MEMORY_CPU, None)):
            self.assertEqual(fake.outcome(lambda: memory(*arguments))[0], "TypeError", arguments)


if __name__ == "__main__":
    unittest.main()
