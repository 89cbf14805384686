"""Requests and responses of KServe's gRPC protocol, as far as a replica needs them.

The messages are described here in place of generated code: that would bind the package to one release of protobuf,
and Ray has its own wish.
"""

from __future__ import annotations

import struct
from typing import Any, Iterable, Mapping, Optional

import numpy
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nereid.ray._errors import InferenceError

SERVICE = "/inference.GRPCInferenceService/"

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "nereid.ray"
# Message by message: name, number, type (a message's is its name) and whether it is repeated.
_MESSAGES: dict[str, list[tuple[str, int, Any, bool]]] = {
    "Parameter": [
        ("bool_param", 1, _Field.TYPE_BOOL, False),
        ("int64_param", 2, _Field.TYPE_INT64, False),
        ("string_param", 3, _Field.TYPE_STRING, False),
        ("double_param", 4, _Field.TYPE_DOUBLE, False),
    ],
    # What a map is on the wire.
    "Entry": [("key", 1, _Field.TYPE_STRING, False), ("value", 2, "Parameter", False)],
    "Tensor": [
        ("name", 1, _Field.TYPE_STRING, False),
        ("datatype", 2, _Field.TYPE_STRING, False),
        ("shape", 3, _Field.TYPE_INT64, True),
    ],
    "Output": [("name", 1, _Field.TYPE_STRING, False)],
    "Request": [
        ("model_name", 1, _Field.TYPE_STRING, False),
        ("model_version", 2, _Field.TYPE_STRING, False),
        ("id", 3, _Field.TYPE_STRING, False),
        ("parameters", 4, "Entry", True),
        ("inputs", 5, "Tensor", True),
        ("outputs", 6, "Output", True),
        ("raw_input_contents", 7, _Field.TYPE_BYTES, True),
    ],
    "Response": [
        ("model_name", 1, _Field.TYPE_STRING, False),
        ("model_version", 2, _Field.TYPE_STRING, False),
        ("id", 3, _Field.TYPE_STRING, False),
        ("outputs", 5, "Tensor", True),
        ("raw_output_contents", 6, _Field.TYPE_BYTES, True),
    ],
    "StreamResponse": [("error_message", 1, _Field.TYPE_STRING, False), ("infer_response", 2, "Response", False)],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="nereid/ray/wire.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, is_repeated in fields:
            label = _Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL
            if isinstance(kind, str):
                of = f".{_PACKAGE}.{kind}"
                message.field.add(name=field, number=number, label=label, type=_Field.TYPE_MESSAGE, type_name=of)
            else:
                message.field.add(name=field, number=number, label=label, type=kind)
        if name == "Parameter":
            # One of them, so that a value of zero is sent, too.
            message.oneof_decl.add(name="choice")
            for described in message.field:
                described.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    named = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in named.items()}


_CLASSES = _messages()
Request, Response, StreamResponse = (_CLASSES[name] for name in ("Request", "Response", "StreamResponse"))

_DATATYPES = {
    "BOOL": numpy.bool_,
    "UINT8": numpy.uint8,
    "UINT16": numpy.uint16,
    "UINT32": numpy.uint32,
    "UINT64": numpy.uint64,
    "INT8": numpy.int8,
    "INT16": numpy.int16,
    "INT32": numpy.int32,
    "INT64": numpy.int64,
    "FP16": numpy.float16,
    "FP32": numpy.float32,
    "FP64": numpy.float64,
}
_NAMES = {numpy.dtype(kind): name for name, kind in _DATATYPES.items()}


def request_of(
    model: str,
    inputs: Mapping[str, Any],
    version: int,
    outputs: Optional[Iterable[str]],
    parameters: Mapping[str, Any],
    request_id: str,
) -> Any:
    """The request of these inputs, each an array or what numpy makes one of."""
    request = Request(model_name=model, model_version="" if version < 0 else str(version), id=request_id)
    for key, value in parameters.items():
        parameter = request.parameters.add(key=key).value
        # A bool is an int, too.
        kinds = [(bool, "bool_param"), (int, "int64_param"), (float, "double_param"), (str, "string_param")]
        field = next((field for kind, field in kinds if isinstance(value, kind)), None)
        if field is None:
            text = f"parameter '{key}' is a {type(value).__name__}: give a str, int, bool or float"
            raise InferenceError(text, "INVALID_ARGUMENT")
        setattr(parameter, field, value)
    for name, value in inputs.items():
        array = numpy.asarray(value)
        datatype, content = _encoded(name, array)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(content)
    for name in outputs or ():
        request.outputs.add(name=name)
    return request


def _encoded(name: str, array: numpy.ndarray) -> tuple[str, bytes]:
    if array.dtype.kind in "OSU":
        items = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
        wrong = next((item for item in items if not isinstance(item, bytes)), None)
        if wrong is not None:
            raise InferenceError(f"input '{name}' has a {type(wrong).__name__}: give str or bytes", "INVALID_ARGUMENT")
        return "BYTES", b"".join(struct.pack("<I", len(item)) + item for item in items)
    datatype = _NAMES.get(array.dtype.newbyteorder("="))
    if datatype is None:
        text = f"input '{name}' has elements of {array.dtype}, which the protocol does not have: convert it"
        raise InferenceError(text, "INVALID_ARGUMENT")
    little = array.dtype.newbyteorder("<")
    return datatype, numpy.ascontiguousarray(array, dtype=little).tobytes()


def outputs_of(response: Any) -> dict[str, numpy.ndarray]:
    """The outputs by name, in the model's order; elements of BYTES are `bytes`."""
    pairs = zip(response.outputs, response.raw_output_contents)
    return {tensor.name: _decoded(tensor, content) for tensor, content in pairs}


def _decoded(tensor: Any, content: bytes) -> numpy.ndarray:
    shape = tuple(tensor.shape)
    if tensor.datatype == "BYTES":
        items, at = [], 0
        while at < len(content):
            (size,) = struct.unpack_from("<I", content, at)
            items.append(content[at + 4 : at + 4 + size])
            at += 4 + size
        array = numpy.empty(len(items), dtype=numpy.object_)
        array[:] = items
        return array.reshape(shape)
    if tensor.datatype == "BF16":
        # numpy has no such type: the upper halves of FP32.
        return (numpy.frombuffer(content, "<u2").astype(numpy.uint32) << 16).view(numpy.float32).reshape(shape)
    kind = numpy.dtype(_DATATYPES[tensor.datatype]).newbyteorder("<")
    return numpy.frombuffer(content, kind).reshape(shape)
