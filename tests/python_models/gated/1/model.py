"""Waits for files of its directory: in initialize until all three instances are there and `initialize` is, in execute
until `execute` is."""

import os
import time

import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(os.path.abspath(__file__))


def wait_for(name):
    while not os.path.exists(os.path.join(HERE, name)):
        time.sleep(0.005)


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        open(os.path.join(HERE, "is-" + self.name), "w").close()
        for number in range(3):
            wait_for("is-gated_0_%d" % number)
        print("gated: all are here", flush=True)
        wait_for("initialize")

    def execute(self, requests):
        print("gated: executes", flush=True)
        wait_for("execute")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy())]) for one in requests]

    def finalize(self):
        print("gated: finalized " + self.name, flush=True)
