"""What the cases of the package have in common: models, servers, and programs of their own."""

import os
import pathlib
import subprocess
import sys
import tempfile

import tritonserver

ECHO = """
backend: "identity" max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] optional: true },
        { name: "INPUT1" data_type: TYPE_INT64 dims: -1 optional: true },
        { name: "INPUT2" data_type: TYPE_STRING dims: -1 optional: true } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] label_filename: "labels" },
         { name: "OUTPUT1" data_type: TYPE_INT64 dims: -1 },
         { name: "OUTPUT2" data_type: TYPE_STRING dims: -1 } ]
"""
# What this backend adds to each response.
PARAMETERS = {"param0": "an example string parameter", "param1": 42, "param2": False, "param3": 123.123}
WORDS = """
backend: "python" %s
input { name: "WORDS" data_type: TYPE_STRING dims: -1 }
output { name: "WORDS" data_type: TYPE_STRING dims: -1 }
"""
# What it does is what the words say.
MODEL = """
import os
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = args["model_repository"]
        while os.path.exists(os.path.join(folder, "wait")):
            open(os.path.join(folder, "waiting"), "w").close()
            time.sleep(0.01)
        self.decoupled = '"decoupled":true' in args["model_config"].replace(" ", "")

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "WORDS")
        words = [word.decode() for word in tensor.as_numpy()]
        if "fail" in words:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the model failed"))
        if "wait" in words:
            while not request.is_cancelled():
                time.sleep(0.01)
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED))
        parameters = {"wide": -(1 << 40), "text": "ä", "flag": True} if "parameters" in words else {}
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", tensor.as_numpy())], parameters=parameters)

    def execute(self, requests):
        if not self.decoupled:
            return [self.answer(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            words = pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy()
            for word in words:
                if word == b"fail":
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the model failed")))
                else:
                    one = pb_utils.Tensor("WORDS", numpy.array([word], dtype=numpy.object_))
                    sender.send(pb_utils.InferenceResponse([one]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write(folder, path, text):
    path = pathlib.Path(folder.name, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def repository():
    folder = tempfile.TemporaryDirectory()
    write(folder, "echo/config.pbtxt", ECHO)
    write(folder, "echo/1/none", "")
    write(folder, "echo/labels", "first\nsecond\n")
    for name, more in [("words", ""), ("stream", "model_transaction_policy { decoupled: true }")]:
        write(folder, f"{name}/config.pbtxt", WORDS % more)
        write(folder, f"{name}/1/model.py", MODEL)
    return folder


def started(folder, *models, **options):
    options = {"model_control_mode": tritonserver.ModelControlMode.EXPLICIT, "exit_timeout": 60, **options}
    server = tritonserver.Server(model_repository=folder.name, startup_models=list(models), **options)
    return server.start(wait_until_ready=True)


def text_of(response, name="WORDS"):
    return list(response.outputs[name].to_string_array())


def script(text, **environment):
    """Runs a program of its own, and returns its end and what it wrote."""
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def silence():
    options = tritonserver.Options(model_repository=[])._create_tritonserver_server_options()
    options.set_log_file("")
    options.set_log_format(tritonserver.LogFormat.DEFAULT)
    options.set_log_callback(None)
