"""The ways to a server: HTTP as it lies on the wire, gRPC by its stubs; every answer as a value that JSON can say."""

import http.client
import json
import re
import struct
import threading
import time

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": np.uint16,  # by its bits
    "FP32": np.float32,
    "FP64": np.float64,
}

# Nothing here takes this long; it only turns a hang into a failure.
PATIENCE_S = 120


def raw(datatype, values):
    """The bytes of a tensor on the wire."""
    if datatype == "BYTES":
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
        return b"".join(struct.pack("<I", len(value)) + value for value in encoded)
    return np.array(values, dtype=NUMPY[datatype]).tobytes()


def shown(data, datatype):
    """Bytes of a tensor as text: strings one by one, others as hexadecimal digits."""
    if datatype != "BYTES":
        return data.hex()
    strings, at = [], 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        strings.append(told(data[at + 4 : at + 4 + length]))
        at += 4 + length
    return strings


def told(text):
    """A string, parsed where a model says something in JSON, so that single fields are compared."""
    text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    if text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


class Ask:
    """One inference request, to be sent in any form."""

    def __init__(self, model, inputs, version="", request_id="", parameters=None, outputs=None):
        self.model = model
        # (name, datatype, shape, values)
        self.inputs = inputs
        self.version = version
        self.id = request_id
        self.parameters = parameters or {}
        # (name, parameters) or names
        self.outputs = [(one, {}) if isinstance(one, str) else one for one in outputs or []]

    def path(self, verb="infer"):
        version = f"/versions/{self.version}" if self.version else ""
        return f"/v2/models/{self.model}{version}/{verb}"


def answered_in_time(method, started):
    """A server may answer with DEADLINE_EXCEEDED itself: what took all our patience is no answer."""
    if time.monotonic() - started >= PATIENCE_S:
        raise Unwell(f"no answer to {method} in {PATIENCE_S} s")


class Unwell(Exception):
    """The server did not answer, or lost the worker of a model: what it says from here on is about that alone."""


class Server:
    def __init__(self, http_address, grpc_address, metrics_address, repository):
        self.http_address = http_address
        self.grpc_address = grpc_address
        self.metrics_address = metrics_address
        self.repository = repository
        self.channel = grpc.insecure_channel(grpc_address, options=[("grpc.max_receive_message_length", -1)])
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.connection = None

    # --- HTTP

    def exchange(self, method, path, body=b"", headers=None, address=None):
        """One request as it is sent: status, headers, body."""
        if address is not None:
            connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        else:
            if self.connection is None:
                self.connection = http.client.HTTPConnection(self.http_address, timeout=PATIENCE_S)
            connection = self.connection
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        except (OSError, http.client.HTTPException) as error:
            if address is None:
                self.connection = None
            if isinstance(error, TimeoutError):
                raise Unwell(f"no answer to {method} {path} in {PATIENCE_S} s") from error
            raise

    def http(self, method, path, body=b"", headers=None):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        status, received, data = self.exchange(method, path, body, headers)
        return self.normal({"status": status, "type": received.get("content-type"), **self.bodies(received, data)})

    def bodies(self, headers, data):
        length = headers.get("inference-header-content-length")
        if length is None:
            return {"body": parsed(data)}
        head, rest = json.loads(data[: int(length)]), data[int(length) :]
        binary, at = {}, 0
        for output in head.get("outputs", []):
            size = output.get("parameters", {}).get("binary_data_size")
            if size is not None:
                binary[output["name"]] = shown(rest[at : at + size], output["datatype"])
                at += size
        return {"body": head, "binary": binary, "left": len(rest) - at}

    def infer_json(self, ask, verb="infer"):
        return self.http("POST", ask.path(verb), self.json_of(ask))

    def json_of(self, ask):
        body = {}
        if ask.id:
            body["id"] = ask.id
        if ask.parameters:
            body["parameters"] = ask.parameters
        body["inputs"] = [
            {"name": name, "datatype": datatype, "shape": shape, "data": values}
            for name, datatype, shape, values in ask.inputs
        ]
        if ask.outputs:
            body["outputs"] = [{"name": name, "parameters": parameters} for name, parameters in ask.outputs]
        return body

    def infer_binary(self, ask, binary_output=True):
        body = self.json_of(ask)
        binary = b""
        for head, (_, datatype, _, values) in zip(body["inputs"], ask.inputs):
            data = raw(datatype, values)
            del head["data"]
            head["parameters"] = {"binary_data_size": len(data)}
            binary += data
        if binary_output:
            body.setdefault("parameters", {})["binary_data_output"] = True
        head = json.dumps(body).encode()
        return self.http("POST", ask.path(), head + binary, {"Inference-Header-Content-Length": str(len(head))})

    # --- gRPC

    def call(self, method, message, **more):
        """A unary call by its name."""
        started = time.monotonic()
        try:
            answer = getattr(self.stub, method)(message, timeout=PATIENCE_S, **more)
        except grpc.RpcError as error:
            answered_in_time(method, started)
            return self.normal({"code": error.code().name, "text": error.details()})
        return self.normal({"code": "OK", "message": readable(answer)})

    def message_of(self, ask, typed=False):
        message = pb.ModelInferRequest(model_name=ask.model, model_version=ask.version, id=ask.id)
        set_parameters(message.parameters, ask.parameters)
        for name, datatype, shape, values in ask.inputs:
            tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
            if typed:
                add_contents(tensor.contents, datatype, values)
            else:
                message.raw_input_contents.append(raw(datatype, values))
        for name, parameters in ask.outputs:
            set_parameters(message.outputs.add(name=name).parameters, parameters)
        return message

    def infer_grpc(self, ask, typed=False):
        return self.call("ModelInfer", self.message_of(ask, typed))

    def stream(self, asks, want_final=True):
        """All on one stream, one after the other's end, and everything that comes back."""
        answers = []
        gone = threading.Semaphore(0)
        started = time.monotonic()

        def messages():
            for ask in asks:
                message = self.message_of(ask) if isinstance(ask, Ask) else ask
                if want_final:
                    message.parameters["triton_enable_empty_final_response"].bool_param = True
                yield message
                # The next one when this one is over, so that the order of the answers is one question's alone.
                if want_final:
                    gone.acquire(timeout=PATIENCE_S)

        try:
            for answer in self.stub.ModelStreamInfer(messages(), timeout=PATIENCE_S):
                answers.append(readable(answer))
                parameters = answer.infer_response.parameters
                if answer.error_message or parameters["triton_final_response"].bool_param:
                    gone.release()
            end = {"code": "OK"}
        except grpc.RpcError as error:
            answered_in_time("ModelStreamInfer", started)
            end = {"code": error.code().name, "text": error.details()}
        return self.normal({"answers": answers, **end})

    # --- what differs from run to run

    def normal(self, value):
        """Takes out what says nothing about the server: places and addresses."""
        if isinstance(value, dict):
            return {key: self.normal(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.normal(one) for one in value]
        if not isinstance(value, str):
            return value
        value = value.replace(self.repository, "<repository>")
        # Where files that come with a load request are kept.
        value = re.sub(r"/tmp/(folder\w{6}|nereid-override-[0-9a-f]+/\w+)", "<given files>", value)
        # Objects of Python without a text of their own.
        return re.sub(r"0x[0-9a-f]{6,}", "<address>", value)


def parsed(data):
    text = data.decode("utf-8", "backslashreplace")
    try:
        body = json.loads(text)
    except ValueError:
        return text
    for output in body.get("outputs", []) if isinstance(body, dict) else []:
        if isinstance(output, dict) and output.get("datatype") == "BYTES":
            output["data"] = [told(one) if isinstance(one, str) else one for one in output.get("data", [])]
    return body


def readable(message):
    """A message as a dictionary in which tensors can be read."""
    value = MessageToDict(message, preserving_proto_field_name=True)
    response = value.get("infer_response", value)
    raw_contents = getattr(message, "infer_response", message)
    contents = list(getattr(raw_contents, "raw_output_contents", []))
    if contents:
        types = [output.datatype for output in raw_contents.outputs]
        types += [""] * (len(contents) - len(types))
        response["raw_output_contents"] = [shown(*one) for one in zip(contents, types)]
    return value


def set_parameters(parameters, values):
    for key, value in values.items():
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, int):
            parameters[key].int64_param = value
        elif isinstance(value, float):
            parameters[key].double_param = value
        else:
            parameters[key].string_param = value


def add_contents(contents, datatype, values):
    """Typed contents; FP16 and BF16 have none."""
    if datatype == "BYTES":
        contents.bytes_contents.extend(value.encode() if isinstance(value, str) else value for value in values)
    elif datatype == "BOOL":
        contents.bool_contents.extend(values)
    elif datatype == "FP32":
        contents.fp32_contents.extend(values)
    elif datatype == "FP64":
        contents.fp64_contents.extend(values)
    elif datatype in ("INT64", "UINT64"):
        getattr(contents, datatype.lower() + "_contents").extend(values)
    else:
        field = "uint_contents" if datatype.startswith("UINT") else "int_contents"
        getattr(contents, field).extend(int(value) for value in values)
