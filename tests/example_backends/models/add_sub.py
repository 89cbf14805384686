"""Adds and subtracts. Completes its own configuration, makes batches, and fails on demand."""

import json

import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        for name in ("A", "B"):
            config.add_input({"name": name, "data_type": "TYPE_INT32", "dims": [2]})
        for name in ("SUM", "DIFFERENCE"):
            config.add_output({"name": name, "data_type": "TYPE_INT32", "dims": [2]})
        config.add_output({"name": "TOGETHER", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def initialize(self, arguments):
        config = json.loads(arguments["model_config"])
        assert arguments["model_name"] == config["name"]
        assert arguments["model_version"] == "1"
        assert arguments["model_instance_kind"] == "CPU"
        self.offset = int(config["parameters"].get("offset", {"string_value": "0"})["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            demand = json.loads(request.parameters())
            if "raise" in demand:
                raise ValueError(demand["raise"])
            if "fail" in demand:
                error = utils.TritonError(demand["fail"], utils.TritonError.INVALID_ARG)
                responses.append(utils.InferenceResponse(error=error))
                continue
            left = utils.get_input_tensor_by_name(request, "A").as_numpy()
            right = utils.get_input_tensor_by_name(request, "B").as_numpy()
            together = numpy.full((left.shape[0], 1), len(requests), numpy.int32)
            responses.append(
                utils.InferenceResponse(
                    [
                        utils.Tensor("SUM", left + right + self.offset),
                        utils.Tensor("DIFFERENCE", left - right),
                        utils.Tensor("TOGETHER", together),
                    ]
                )
            )
        return responses

    def finalize(self):
        utils.Logger.log_info("add_sub is finalized")
