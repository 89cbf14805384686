"""triton_python_backend_utils, asked from within a model: every name, every method, every text and default."""

from wire import Ask, Unwell

# Each is a piece of Python that leaves what is to be compared in `value`; see tests/python_models/evaluate.
PIECES = {
    "names": "value = sorted(name for name in NAMES if hasattr(pb, name))",
    "constants": """
value = {name: getattr(pb, name) for name in dir(pb) if name.startswith("TRITONSERVER_")}
value = {name: one if isinstance(one, int) else [type(one).__name__, str(one), int(one)] for name, one in value.items()}
""",
    "types by number": "value = {number: pb.triton_to_numpy_type(number) for number in [-1, *range(16)]}",
    "numbers by type": """
types = ["bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
         "float64", "object_", "bytes_", "str_", "complex64", "datetime64"]
value = {name: raised(pb.numpy_to_triton_type, getattr(np, name)) for name in types}
""",
    "types by name": """
value = {name: raised(pb.triton_string_to_numpy, name) for name in [*pb.TRITON_STRING_TO_NUMPY, "TYPE_BF16", "FP32", ""]}
""",
    "serialised": """
arrays = {
    "objects": np.array([b"a", b"", b"ccc"], dtype=np.object_),
    "rows": np.array([[b"a", b"b"], [b"c", b"d"]], dtype=np.object_),
    "texts": np.array(["é", 7, None, 1.5], dtype=np.object_),
    "fixed": np.array([b"a", b"bcd"]),
    "none": np.array([], dtype=np.object_),
    "numbers": np.array([1, 2]),
}
value = {name: raised(pb.serialize_byte_tensor, array) for name, array in arrays.items()}
""",
    "deserialised": r"""
inputs = [b"", b"\x01\x00\x00\x00a", b"\x00\x00\x00\x00\x02\x00\x00\x00bc", b"\x05\x00\x00\x00a", b"\x01\x00"]
value = [raised(pb.deserialize_bytes_tensor, one) for one in inputs]
""",
    "there and back": """
array = np.array([b"one", b"", "zwölf".encode()], dtype=np.object_)
value = pb.deserialize_bytes_tensor(pb.serialize_byte_tensor(array).item())
""",
    "configurations": """
config = {"input": [{"name": "A", "dims": [1]}], "output": [{"name": "B"}], "model_transaction_policy": {"decoupled": True}}
value = [
    pb.get_input_config_by_name(config, "A"), pb.get_input_config_by_name(config, "B"),
    pb.get_output_config_by_name(config, "B"), pb.get_output_config_by_name(config, "A"),
    raised(pb.get_input_config_by_name, {}, "A"), raised(pb.get_output_config_by_name, {}, "A"),
    pb.using_decoupled_model_transaction_policy(config),
    raised(pb.using_decoupled_model_transaction_policy, {"model_transaction_policy": {}}),
    raised(pb.using_decoupled_model_transaction_policy, {}),
]
""",
    "by name": """
response = pb.InferenceResponse([ints("Y", 1)])
value = [pb.get_input_tensor_by_name(request, "CODE") is None, pb.get_input_tensor_by_name(request, "nothing"),
         pb.get_output_tensor_by_name(response, "Y"), pb.get_output_tensor_by_name(response, "Z")]
""",
    # --- Tensor
    "tensors": """
value = {}
for dtype in ["bool_", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]:
    tensor = pb.Tensor(dtype, np.zeros((2, 3), dtype=getattr(np, dtype)))
    value[dtype] = [tensor.name(), tensor.shape(), tensor.is_cpu(), str(tensor.as_numpy().dtype)]
""",
    "the types of tensors": "value = raised(ints('a', 1).triton_dtype)",
    "tensors that cannot be": """
good = np.zeros(1)
value = [raised(pb.Tensor, *one) for one in [
    (), ("a",), ("", good), (None, good), ("a", None), (7, good), ("a", np.zeros(1, dtype=np.complex64)),
    ("a", np.array(["text"])), ("a", np.zeros(1, dtype="datetime64[s]")), ("a", np.zeros(1, dtype="i4,f4")),
]]
""",
    "tensors of other things": """
value = [raised(pb.Tensor, "a", one) for one in [[1, 2], 7, "text", (1.5,), b"bytes", {}]]
""",
    "odd layouts": """
whole = np.arange(12, dtype=np.int32).reshape(3, 4)
value = [pb.Tensor("a", one) for one in [whole.T, whole[:, ::2], whole[::-1], np.asfortranarray(whole), np.int32(7)[()]]
         if isinstance(one, np.ndarray)]
value.append(pb.Tensor("s", np.array(7, dtype=np.int32)).shape())
value.append(pb.Tensor("e", np.zeros((2, 0, 3), dtype=np.int8)).shape())
""",
    "strings of a tensor": """
arrays = [
    np.array([b"a", b"bc"], dtype=np.object_), np.array(["é", "text"], dtype=np.object_),
    np.array([[b"a"], [b"b"]], dtype=np.object_), np.array([b"a", b"bcd"], dtype=np.bytes_),
    np.array([], dtype=np.object_), np.array([1, 2.5, None], dtype=np.object_),
]
value = [raised(lambda array: [pb.Tensor("a", array), pb.Tensor("a", array).as_numpy()], array) for array in arrays]
""",
    "an input": """
tensor = pb.get_input_tensor_by_name(request, "X")
array = tensor.as_numpy()
value = [array, array.flags["C_CONTIGUOUS"], array.flags["ALIGNED"], array.dtype.str]
""",
    "an input as strings": """
tensor = pb.get_input_tensor_by_name(request, "CODE")
value = [tensor.as_numpy().dtype, tensor.as_numpy().shape, type(tensor.as_numpy()[0]).__name__, tensor.shape()]
value[0] = str(value[0])
""",
    "views": """
array = np.arange(4, dtype=np.int32)
tensor = pb.Tensor("a", array)
array[0] = 99
value = [tensor.as_numpy(), tensor.as_numpy() is tensor.as_numpy(), np.shares_memory(tensor.as_numpy(), array)]
""",
    # --- DLPack
    "capsules": """
tensor = ints("a", 1, 2, 3)
capsule = tensor.to_dlpack()
back = pb.Tensor.from_dlpack("b", capsule)
value = [repr(capsule).split()[0:3], tensor.__dlpack_device__(), back]
value[0] = value[0][:2]
value[1] = [int(one) for one in value[1]]
""",
    "a used capsule": """
capsule = ints("a", 1).to_dlpack()
pb.Tensor.from_dlpack("b", capsule)
value = repr(capsule).split()[2].strip('"')
""",
    "DLPack of odd layouts": """
whole = np.arange(6, dtype=np.int32).reshape(2, 3)
value = [raised(pb.Tensor.from_dlpack, "a", one) for one in [whole.T, whole[:, ::2]]]
""",
    "DLPack of other things": """
value = [raised(pb.Tensor.from_dlpack, "a", one) for one in [7, "text", [1]]]
""",
    "DLPack with a wrong name": "value = [raised(pb.Tensor.from_dlpack, one, np.zeros(1)) for one in ['', None]]",
    "DLPack of strings": "value = raised(pb.Tensor('a', np.array([b'x'], dtype=np.object_)).to_dlpack)",
    # --- InferenceResponse, TritonError
    "errors": """
E = pb.TritonError
value = [raised(lambda: [plain(one), one.message(), int(one.code())]) for one in [E("x"), E("y", E.NOT_FOUND), E("")]]
value += [raised(E), raised(E, None), raised(E, "x", None), raised(E, "x", "y"), raised(E, 7)]
""",
    "codes": """
names = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"]
value = {name: [str(getattr(pb.TritonError, name)), int(getattr(pb.TritonError, name))] for name in names}
""",
    "an exception": """
error = pb.TritonModelException("text")
value = [str(error), isinstance(error, Exception), type(error).__mro__[1].__name__]
""",
    "responses": """
R = pb.InferenceResponse
value = [raised(one) for one in [
    lambda: R([]), lambda: R(), lambda: R([ints("a", 1)]), lambda: R(output_tensors=[ints("a", 1), ints("b", 2)]),
    lambda: R([], pb.TritonError("e")), lambda: R(error=pb.TritonError("e")), lambda: R([], None),
    lambda: R([None]), lambda: R([ints("a", 1), None]), lambda: R(None), lambda: R([7]), lambda: R(error="e"),
]]
""",
    "a response": """
one = pb.InferenceResponse([ints("a", 1)])
two = pb.InferenceResponse(error=pb.TritonError("e", pb.TritonError.UNSUPPORTED))
value = [one.has_error(), one.error(), [t.name() for t in one.output_tensors()], two.has_error(), two.error()]
value += [raised(two.output_tensors)]
""",
    "parameters of a response": """
R = pb.InferenceResponse
cases = [None, {}, {"a": 1}, {"a": True}, {"a": "x"}, {"a": -(2**63)}, {"a": 1.5}, {"a": None}, {"a": [1]}, {"a": {}}, {1: 2}, {None: 1},
         [], "text", 7, {"a": b"x"}, {"a": 2**63}]
value = [raised(lambda one: R([], parameters=one).parameters(), one) for one in cases]
""",
    # --- InferenceRequest
    "a request": """
one = pb.InferenceRequest(model_name="m", requested_output_names=["B", "A"], inputs=[ints("I", 1)])
value = [one.request_id(), one.correlation_id(), one.flags(), one.timeout(), sorted(one.requested_output_names()),
         one.inputs(), one.parameters(), one.is_cancelled() if False else None]
""",
    "a full request": """
one = pb.InferenceRequest(request_id="i", correlation_id="c", inputs=[ints("I", 1)], requested_output_names=["A"],
                          model_name="m", model_version=3, flags=1, timeout=9, preferred_memory=pb.PreferredMemory(
                          pb.TRITONSERVER_MEMORY_CPU, 0), parameters={"a": 1, "b": True, "c": "x"})
value = [one.request_id(), one.correlation_id(), one.flags(), one.timeout(), one.requested_output_names(),
         one.inputs(), one.parameters()]
one.set_flags(2)
value.append(one.flags())
""",
    "correlation ids": """
make = lambda one: pb.InferenceRequest(model_name="m", requested_output_names=["A"], inputs=[], correlation_id=one).correlation_id()
value = [raised(make, one) for one in [0, 7, 2**64 - 1, -1, 2**64, "", "text", 1.5, None, True, b"b"]]
""",
    "requests that cannot be": """
def make(**more):
    arguments = dict(model_name="m", requested_output_names=["A"], inputs=[ints("I", 1)])
    arguments.update(more)
    return pb.InferenceRequest(**{key: one for key, one in arguments.items() if one != "left out"}) and "made"
cases = [{}, {"inputs": None}, {"inputs": []}, {"inputs": [None]}, {"inputs": [7]}, {"inputs": "left out"},
         {"requested_output_names": None}, {"requested_output_names": []}, {"requested_output_names": [""]},
         {"requested_output_names": [None]}, {"requested_output_names": "left out"}, {"model_name": None},
         {"model_name": ""}, {"model_name": "left out"}, {"model_version": None}, {"request_id": None}, {"flags": None},
         {"parameters": {"a": 1.5}}, {"parameters": {1: 1}}, {"parameters": []}, {"parameters": {"a": None}},
         {"timeout": -1}, {"request_id": "i", "inputs": [None]}, {"request_id": "i", "requested_output_names": [""]},
         {"preferred_memory": 7}, {"trace": None}]
value = [raised(make, **one) for one in cases]
""",
    "the request": """
value = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.is_cancelled(),
         sorted(one.name() for one in request.inputs()), sorted(request.requested_output_names()), request.parameters()]
""",
    "its trace": "trace = request.trace(); value = [type(trace).__name__, trace.get_context()]",
    "preferred memory": """
P = pb.PreferredMemory
value = [raised(lambda one: type(P(*one)).__name__, one) for one in [
    (pb.TRITONSERVER_MEMORY_CPU,), (pb.TRITONSERVER_MEMORY_GPU, 1), (), (7,), (None,), (pb.TRITONSERVER_MEMORY_CPU, "x")]]
""",
    # --- senders of a model that answers once
    "a sender": """
sender = request.get_response_sender()
value = [sender.is_cancelled(), raised(sender.send), raised(sender.send, None, 0), raised(sender.send, None, 7),
         raised(sender.send, respond(1), 2), raised(sender.send, flags=FINAL), raised(sender.send, "text")]
""",
    "a sender of a call": """
one = pb.InferenceRequest(model_name="m", requested_output_names=["A"], inputs=[])
value = raised(lambda: one.get_response_sender().send(respond(1)))
""",
    "sent": """
request.get_response_sender().send(respond("sent"), FINAL)
answer = [None]
""",
    "sent and ended": """
sender = request.get_response_sender()
sender.send(respond("sent"))
sender.send(flags=FINAL)
answer = [None]
""",
    "sent and told": """
sender = request.get_response_sender()
sender.send(respond("sent"), FINAL)
model.kept["told"] = [raised(sender.send, respond("again")), raised(sender.send, flags=FINAL),
                      raised(request.get_response_sender().send, respond("again"))]
answer = [None]
""",
    "what was told": "value = model.kept.get('told')",
    "sent and returned": """
request.get_response_sender().send(respond("sent"), FINAL)
answer = [respond("returned")]
""",
    "ended without a response": """
sender = request.get_response_sender()
answer = [respond([raised(sender.send, flags=FINAL), "returned"])]
""",
    "reschedule": """
value = [raised(request.set_release_flags, one) for one in [0, 1, 3, 7]]
""",
    "rescheduled without being iterative": """
value = raised(request.set_release_flags, pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
""",
    # --- Logger
    "the logger": """
L = pb.Logger
value = [raised(one) for one in [
    lambda: L.log("DIFFERENTIAL plain"), lambda: L.log("DIFFERENTIAL info", L.INFO),
    lambda: L.log("DIFFERENTIAL warning", L.WARNING), lambda: L.log("DIFFERENTIAL error", L.ERROR),
    lambda: L.log("DIFFERENTIAL verbose", L.VERBOSE), lambda: L.log_info("DIFFERENTIAL by log_info"),
    lambda: L.log_warn("DIFFERENTIAL by log_warn"), lambda: L.log_error("DIFFERENTIAL by log_error"),
    lambda: L.log_verbose("DIFFERENTIAL by log_verbose"), lambda: L.log(message="DIFFERENTIAL named", level=L.INFO),
    lambda: L.log(None), lambda: L.log("x", None), lambda: L.log(), lambda: L.log_info(), lambda: L.log_info(None),
    lambda: L.log("x", 2), lambda: L.log_info("DIFFERENTIAL with\\na second line"), lambda: L.log_info("DIFFERENTIAL é"),
]]
""",
    "levels": "value = [[str(one), int(one)] for one in [pb.Logger.INFO, pb.Logger.WARNING, pb.Logger.ERROR, pb.Logger.VERBOSE]]",
    # --- metrics
    "families that cannot be": """
F = pb.MetricFamily
value = [raised(one) for one in [
    lambda: F("only_a_name"), lambda: F(name="n", description="d"), lambda: F(name=None, description="d", kind=F.GAUGE),
    lambda: F(name="n", description="d", kind=7), lambda: F(),
]]
""",
    "a family twice": """
F = pb.MetricFamily
first = F(name="differential_twice", description="d", kind=F.GAUGE)
second = F(name="differential_twice", description="another", kind=F.GAUGE)
one, two = first.Metric(labels={"a": "b"}), second.Metric(labels={"a": "b"})
one.set(3)
value = two.value()
""",
    "a metric without its family": """
F = pb.MetricFamily
family = F(name="differential_gone", description="d", kind=F.GAUGE)
one = family.Metric(labels={"a": "b"})
one.set(1)
del family
import gc
gc.collect()
value = [raised(one.set, 2), raised(one.increment, 1), raised(one.value)]
""",
    "kinds": "F = pb.MetricFamily; value = [[str(one), int(one)] for one in [F.COUNTER, F.GAUGE, F.HISTOGRAM]]",
    # --- model control
    "the directory": "value = pb.get_model_dir()",
    "a load with files that are none": "value = raised(pb.load_model, 'life', '{}', [])",
}

NAMES = [
    "get_input_tensor_by_name get_output_tensor_by_name get_input_config_by_name get_output_config_by_name",
    "using_decoupled_model_transaction_policy triton_to_numpy_type numpy_to_triton_type triton_string_to_numpy",
    "serialize_byte_tensor deserialize_bytes_tensor ModelConfig TRITON_STRING_TO_NUMPY",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITONSERVER_REQUEST_RELEASE_ALL TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_MEMORY_GPU TRITONSERVER_MEMORY_CPU Tensor InferenceRequest InferenceResponse TritonError",
    "TritonModelException PreferredMemory Logger MetricFamily load_model unload_model is_model_ready get_model_dir",
]

# What is done to a metric. Not what the server refuses: 2.51 answers that through a lock that may be gone already, and
# ends with an exception of it (and at a negative increment in any case). The same goes for refused model control.
METRIC = """
F = pb.MetricFamily
family = F(name="differential_{kind}", description="d", kind=F.{kind})
one = family.Metric(labels={{"a": "b"}}, buckets={buckets})
value = {what}
"""
DONE = {
    "COUNTER": ["[one.increment(2), one.value()]", "[one.increment(0), one.increment(0.5), one.value()]"],
    "GAUGE": ["[one.set(2.5), one.value()]", "[one.increment(-1), one.value(), one.set(-7), one.value()]"],
    "HISTOGRAM": ["[one.observe(2), one.observe(-1)]"],
}
for kind, all_done in DONE.items():
    buckets = [1, 2.5] if kind == "HISTOGRAM" else None
    for done in [*all_done, "[raised(one.increment), raised(one.increment, 'x'), raised(one.increment, None)]"]:
        PIECES[f"{done} of a {kind.lower()}"] = METRIC.format(kind=kind, buckets=buckets, what=done)
REFUSED = {
    "labels in a list": ("COUNTER", "labels=[]"),
    "labels in a text": ("COUNTER", "labels='x'"),
    "buckets of a counter": ("COUNTER", "buckets=[1]"),
    "a number of buckets": ("COUNTER", "buckets=7"),
    "no buckets": ("HISTOGRAM", ""),
    "empty buckets": ("HISTOGRAM", "buckets=[]"),
    "buckets in a dictionary": ("HISTOGRAM", "buckets={}"),
    "buckets of texts": ("HISTOGRAM", "buckets=['x']"),
}
for name, (kind, arguments) in REFUSED.items():
    PIECES[f"metric with {name}"] = f"""
F = pb.MetricFamily
family = F(name="differential_refused_{kind}", description="d", kind=F.{kind})
value = raised(lambda: type(family.Metric({arguments})).__name__)
"""

READINESS = [("add_sub",), ("add_sub", "1"), ("add_sub", "7"), ("absent",), ("life",), ("add_sub", ""), (None,), ()]
for arguments in READINESS:
    PIECES[f"is_model_ready{arguments}"] = f"value = raised(pb.is_model_ready, *{arguments})"
PIECES["control"] = """
value = [raised(one) for one in [
    lambda: pb.is_model_ready("life"), lambda: pb.load_model("life"), lambda: pb.is_model_ready("life"),
    lambda: pb.unload_model("life"), lambda: pb.load_model(), lambda: pb.load_model(None), lambda: pb.unload_model(None),
]]
"""

# The same with a sender that may answer often.
DECOUPLED = {
    "misuse": """
value = [sender.is_cancelled(), raised(sender.send), raised(sender.send, None, 0), raised(sender.send, None, 7),
         raised(sender.send, respond(1), 2), raised(sender.send, "text")]
""",
    "after the end": """
sender.send(respond("first"), FINAL)
model.kept["told"] = [raised(sender.send, respond("again")), raised(sender.send, flags=FINAL)]
unfinished = True
""",
    "what was told": "value = model.kept.get('told')",
    "responses and an exception": """
sender.send(respond("first"))
raise ValueError("between")
""",
    "two senders": """
other = request.get_response_sender()
sender.send(respond("one"))
other.send(respond("two"))
value = "three"
""",
    "an error and the end": """
sender.send(pb.InferenceResponse(error=pb.TritonError("no", pb.TritonError.NOT_FOUND)), FINAL)
unfinished = True
""",
    "from a thread that outlives execute": """
import threading
def later():
    sender.send(respond("later"))
    sender.send(flags=FINAL)
threading.Timer(0.05, later).start()
unfinished = True
""",
}


def evaluated(model, code, **more):
    return Ask(model, [("CODE", "BYTES", [1], [code]), ("X", "INT32", [3], [1, 2, 3])], **more)


def of_a_worker(name, answer):
    """The answer, unless it says that the model's worker is gone, as all that follows would."""
    if "not healthy" in str(answer):
        raise Unwell(f"the worker died of {name!r}")
    return answer


def cases(server):
    names = f"NAMES = {' '.join(NAMES).split()!r}\n"
    for name, code in PIECES.items():
        answer = server.infer_grpc(evaluated("evaluate", names + code, request_id="e"))
        yield name, of_a_worker(name, answer)
    for name in ["sent", "sent and ended", "sent and returned"]:
        answer = server.infer_grpc(evaluated("evaluate_async", PIECES[name]))
        yield f"{name}, async", of_a_worker(name, answer)
        answer = server.stream([evaluated("evaluate", PIECES[name])], want_final=False)
        yield f"{name}, stream", of_a_worker(name, answer)
    for name, code in DECOUPLED.items():
        yield f"decoupled: {name}", of_a_worker(name, server.stream([evaluated("evaluate_decoupled", code)]))
        answer = server.stream([evaluated("evaluate_decoupled_async", code)])
        yield f"decoupled, async: {name}", of_a_worker(name, answer)
