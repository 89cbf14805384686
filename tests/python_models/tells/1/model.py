"""Tells who it is: its process, its cores, what initialize was told, how often it has executed."""

import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert all(type(value) is str for value in args.values())
        self.args = dict(args)
        self.config = json.loads(self.args.pop("model_config"))
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.count += 1
            time.sleep(int(request.inputs()[0].as_numpy()[0]) / 1000)
            told = {
                "pid": os.getpid(),
                "cpus": sorted(os.sched_getaffinity(0)),
                "args": self.args,
                "config": {key: self.config[key] for key in ("name", "backend", "max_batch_size")},
                "count": self.count,
                "edition": "first",
                "cwd": os.getcwd(),
            }
            array = np.array([json.dumps(told).encode()], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", array)]))
        return responses

    def finalize(self):
        print("tells: finalized " + self.args["model_instance_name"], flush=True)
