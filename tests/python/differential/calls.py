"""BLS: requests that a model makes to others, in every form, and what comes of those that fail."""

from interface import evaluated, of_a_worker

ASK = """
def ask(name, outputs=("OUTPUT0", "OUTPUT1"), inputs=None, **more):
    if inputs is None:
        inputs = [pb.Tensor(one, np.array(values, dtype=np.float32))
                  for one, values in (("INPUT0", [1, 2, 3, 4]), ("INPUT1", [10, 20, 30, 40]))]
    return pb.InferenceRequest(model_name=name, requested_output_names=list(outputs), inputs=inputs, **more)
def text(name, *values):
    return pb.Tensor(name, np.array([one.encode() for one in values], dtype=np.object_))
def failing(how, **more):
    return ask("failing", ["OUT"], [text("HOW", how)], **more)
def counting(count, how="plain", outputs=("OUT",), **more):
    return ask("decoupled", outputs, [ints("COUNT", count), text("HOW", how)], **more)
def echo(**more):
    return ask("echo_request", ["TOLD"], [ints("IN", 1)], **more)
def told(response):
    if response.has_error():
        return plain(response)
    return json.loads(response.output_tensors()[0].as_numpy()[0])
def all_of(iterator):
    return [plain(one) for one in iterator]
"""

PIECES = {
    "one": "value = ask('add_sub').exec()",
    "one output": "value = ask('add_sub', ['OUTPUT1']).exec()",
    "no outputs": "value = ask('add_sub', []).exec()",
    "an unknown output": "value = ask('add_sub', ['OUTPUT9']).exec()",
    "an unknown model": "value = ask('absent').exec()",
    "a model that is not loaded": "value = ask('life', ['ARGS'], [ints('IN', 1)]).exec()",
    "by version": "value = [ask('add_sub', model_version=one).exec() for one in (1, 7, -1)]",
    "no inputs": "value = ask('add_sub', inputs=[]).exec()",
    "another input": "value = ask('add_sub', inputs=[ints('INPUT0', 1)]).exec()",
    "another type": "value = ask('add_sub', inputs=[ints(one, 1, 2, 3, 4) for one in ('INPUT0', 'INPUT1')]).exec()",
    "errors of the callee": """
value = [failing(how).exec() for how in ("raise_value_error", "plain_error", "code NOT_FOUND", "code CANCELLED",
                                         "too_many", "no_outputs", "fine")]
""",
    "an ensemble": "value = ask('pipeline', ['TWICE'], [text('TEXT', 'ab', '')]).exec()",
    "a chain": "value = ask('chain').exec()",
    "what the callee sees": """
value = [told(echo().exec()), told(echo(request_id="i", timeout=7, parameters={"a": 1, "b": True, "c": "x"}).exec()),
         told(echo(correlation_id=9, flags=3).exec()), told(echo(correlation_id="nine").exec()),
         told(echo(trace=request.trace()).exec())]
""",
    "response parameters": """
def parameters(given):
    response = echo(parameters={"answer": json.dumps(given)}).exec()
    return response.parameters() if not response.has_error() else response
value = [parameters(None), parameters({"a": 1, "b": True, "c": "x"})]
""",
    "preferred memory": "value = ask('add_sub', preferred_memory=pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU)).exec()",
    "passed through": """
x = pb.get_input_tensor_by_name(request, "X")
value = ask("identity", ["OUT_INT32"], [pb.Tensor.from_dlpack("IN_INT32", x.to_dlpack())]).exec()
""",
    "every type": """
def of(dtype):
    name = {"bool_": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"}.get(dtype, dtype.upper())
    values = np.array([0, 1], dtype=getattr(np, dtype))
    return ask("identity", ["OUT_" + name], [pb.Tensor("IN_" + name, values)]).exec()
value = [of(one) for one in ("bool_", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
                             "float16", "float32", "float64")]
value.append(ask("identity", ["OUT_BYTES"], [text("IN_BYTES", "", "a", "b" * 100)]).exec())
""",
    "no elements": "value = ask('identity', ['OUT_INT32'], [ints('IN_INT32')]).exec()",
    "a large one": """
big = np.arange(1_000_000, dtype=np.int32)
response = ask("identity", ["OUT_INT32"], [pb.Tensor("IN_INT32", big)]).exec()
value = bool(np.array_equal(response.output_tensors()[0].as_numpy(), big))
""",
    "a decoupled callee": "value = counting(3).exec()",
    "iterated": "value = all_of(counting(3).exec(decoupled=True))",
    "iterated to nothing": "value = all_of(counting(0).exec(decoupled=True))",
    "iterated together": "value = all_of(counting(2, 'together').exec(decoupled=True))",
    "iterated over errors": "value = all_of(counting(3, 'errors').exec(decoupled=True))",
    "iterated over a plain model": "value = all_of(ask('add_sub').exec(decoupled=True))",
    "iterated over a failing model": "value = all_of(failing('plain_error').exec(decoupled=True))",
    "iterated over an unknown model": "value = raised(lambda: all_of(ask('absent').exec(decoupled=True)))",
    "iterated over many": "value = len(all_of(counting(128).exec(decoupled=True)))",
    "iterated twice": """
found = counting(2).exec(decoupled=True)
value = [all_of(found), all_of(found)]
""",
    "next by next": """
found = counting(1).exec(decoupled=True)
value = [plain(next(found)), plain(next(found)), raised(next, found), type(iter(found)).__name__]
""",
    "dropped early": """
found = counting(50).exec(decoupled=True)
value = [plain(next(found))]
del found
value.append(plain(ask("add_sub", ["OUTPUT0"]).exec()))
""",
    "cancelled": """
found = counting(2).exec(decoupled=True)
value = [plain(next(found)), raised(found.cancel)]
""",
    "many at once": """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    sums = list(pool.map(lambda _: plain(ask("add_sub", ["OUTPUT0"]).exec()), range(64)))
value = [len(sums), all(one == sums[0] for one in sums), sums[0]]
""",
    "arguments of exec": "value = [raised(ask('add_sub').exec, one) for one in (None, 7, 'x')]",
    "async from a plain execute": "value = raised(asyncio.run, ask('add_sub', ['OUTPUT0']).async_exec())",
}

ASYNC = {
    "one": "value = await ask('add_sub').async_exec()",
    "several": "value = await asyncio.gather(*(ask('add_sub', ['OUTPUT0']).async_exec() for _ in range(20)))",
    "an unknown model": "value = await ask('absent').async_exec()",
    "errors": "value = await asyncio.gather(failing('plain_error').async_exec(), failing('code NOT_FOUND').async_exec())",
    "iterated": "value = all_of(await counting(3).async_exec(decoupled=True))",
    "a decoupled callee": "value = await counting(3).async_exec()",
    "blocking": "value = ask('add_sub', ['OUTPUT1']).exec()",
}


def cases(server):
    for name, code in PIECES.items():
        answer = server.infer_grpc(evaluated("evaluate", ASK + code, request_id="b"))
        yield name, of_a_worker(name, answer)
    for name, code in ASYNC.items():
        answer = server.infer_grpc(evaluated("evaluate_async", ASK + code))
        yield f"async: {name}", of_a_worker(name, answer)
    for name in ["one", "iterated", "errors of the callee", "an unknown model"]:
        answer = server.stream([evaluated("evaluate_decoupled", ASK + PIECES[name])])
        yield f"decoupled: {name}", of_a_worker(name, answer)
