"""Tells the arguments of initialize; fails there, or in finalize, where the parameter `how` says so."""

import json
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        config = json.loads(args["model_config"])
        self.how = config["parameters"].get("how", {}).get("string_value", "")
        pb_utils.Logger.log_info(f"DIFFERENTIAL initialize {self.how}")
        if self.how == "raise":
            raise ValueError("not today")
        if self.how == "model_exception":
            raise pb_utils.TritonModelException("not as a model")
        if self.how == "missing_key":
            args["absent"]
        if self.how == "exit":
            sys.exit(3)
        if self.how == "return":
            return 7

    def execute(self, requests):
        text = json.dumps({"args": self.args, "dir": pb_utils.get_model_dir()}, sort_keys=True).encode()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("ARGS", np.array([text], dtype=np.object_))])
            for _ in requests
        ]

    def finalize(self):
        print("life: DIFFERENTIAL finalize on standard output", flush=True)
        pb_utils.Logger.log_warn("DIFFERENTIAL finalize in the log")
        if self.how == "finalize_raises":
            raise ValueError("never ends well")
