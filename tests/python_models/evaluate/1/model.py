"""Runs the Python that a request brings and tells what came of it: the way in which tests ask pb_utils everything.

The code finds `request`, `pb`, `np`, `model` and the module-level helpers of this file. What it leaves in `value` is
told as JSON, an exception by its type and text. A list in `answer` is returned from execute in place of all that.
"""

import ast
import asyncio
import inspect
import json

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def plain(value):
    """What JSON can say of a value."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": plain(value.tolist())}
    if isinstance(value, np.generic):
        return {"dtype": str(value.dtype), "value": plain(value.item())}
    if isinstance(value, type):
        return {"type": value.__name__}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set)):
        values = sorted(value) if isinstance(value, set) else value
        return {type(value).__name__: [plain(one) for one in values]}
    if isinstance(value, pb_utils.Tensor):
        return {"tensor": value.name(), "shape": list(value.shape()), "values": plain(value.as_numpy())}
    if isinstance(value, pb_utils.InferenceResponse):
        outputs = None if value.has_error() else [plain(one) for one in value.output_tensors()]
        return {"outputs": outputs, "error": plain(value.error()) if value.has_error() else None}
    if isinstance(value, pb_utils.TritonError):
        return {"error": value.message(), "code": str(value.code()), "number": int(value.code())}
    return {"object": type(value).__name__}


def raised(call, *args, **kwargs):
    """What a call ends with."""
    try:
        return plain(call(*args, **kwargs))
    except BaseException as error:
        return {"raised": type(error).__name__, "text": "" if isinstance(error, TypeError) else str(error)}


def respond(value, name="RESULT"):
    text = json.dumps(plain(value), sort_keys=True).encode()
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array([text], dtype=np.object_))])


def ints(name, *values):
    return pb_utils.Tensor(name, np.array(values, dtype=np.int32))


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = {}
        config = json.loads(args["model_config"])
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.is_async = "async" in args["model_name"]
        if self.is_async:
            self.execute = self.execute_async

    def execute(self, requests):
        answers = [self.answer(request) for request in requests]
        return None if self.is_decoupled else [answer for answers in answers for answer in answers]

    async def execute_async(self, requests):
        answers = []
        for request in requests:
            answers.extend(await self.answer_async(request))
        return None if self.is_decoupled else answers

    def names(self, request):
        names = dict(globals())
        names.update(request=request, pb=pb_utils, model=self, value=None, asyncio=asyncio)
        names.update(sender=request.get_response_sender() if self.is_decoupled else None)
        return names

    def code(self, request):
        return pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()

    def answer(self, request):
        names = self.names(request)
        try:
            exec(compile(self.code(request), "the code", "exec"), names)
        except BaseException as error:
            names["value"] = {"raised": type(error).__name__, "text": str(error)}
        return self.end(names)

    async def answer_async(self, request):
        names = self.names(request)
        try:
            code = compile(self.code(request), "the code", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            names["value"] = {"raised": type(error).__name__, "text": str(error)}
        return self.end(names)

    def end(self, names):
        if "answer" in names:
            return names["answer"]
        if self.is_decoupled:
            if names.get("unfinished") is None:
                names["sender"].send(respond(names["value"]), FINAL)
            return []
        return [respond(names["value"])]
