"""Completes its own configuration, in the way that the parameter `how` of the configuration names."""

import numpy as np
import triton_python_backend_utils as pb_utils

IN = {"name": "IN", "data_type": "TYPE_INT32", "dims": [2]}
OUT = {"name": "OUT", "data_type": "TYPE_INT32", "dims": [2]}


def without(tensor, key):
    return {name: value for name, value in tensor.items() if name != key}


class Ways:
    """Each takes the configuration that is to be completed and returns what auto_complete_config returns."""

    @staticmethod
    def plain(config):
        config.add_input(IN)
        config.add_output(OUT)
        config.set_max_batch_size(4)
        return config

    @staticmethod
    def batching(config):
        Ways.plain(config).set_dynamic_batching()
        return config

    @staticmethod
    def optional(config):
        Ways.plain(config).add_input({"name": "MORE", "data_type": "TYPE_FP32", "dims": [-1, 3], "optional": True})
        return config

    @staticmethod
    def decoupled(config):
        Ways.plain(config).set_model_transaction_policy({"decoupled": True})
        return config

    @staticmethod
    def small_batch(config):
        Ways.plain(config).set_max_batch_size(0)
        return config

    @staticmethod
    def other_policy(config):
        Ways.plain(config).set_model_transaction_policy({"coupled": True})
        return config

    @staticmethod
    def foreign_input_key(config):
        config.add_input(dict(IN, colour="green"))
        return config

    @staticmethod
    def foreign_output_key(config):
        config.add_output(dict(OUT, optional=True))
        return config

    @staticmethod
    def input_without_name(config):
        config.add_input(without(IN, "name"))
        return config

    @staticmethod
    def input_without_type(config):
        config.add_input(without(IN, "data_type"))
        return config

    @staticmethod
    def input_without_dims(config):
        config.add_input(without(IN, "dims"))
        return config

    @staticmethod
    def output_without_name(config):
        config.add_output(without(OUT, "name"))
        return config

    @staticmethod
    def output_without_type(config):
        config.add_output(without(OUT, "data_type"))
        return config

    @staticmethod
    def output_without_dims(config):
        config.add_output(without(OUT, "dims"))
        return config

    @staticmethod
    def wrong_datatype(config):
        config.add_input(dict(IN, data_type="TYPE_NOTHING"))
        return config

    @staticmethod
    def raises(config):
        raise ValueError("no configuration today")

    @staticmethod
    def none(config):
        return None

    @staticmethod
    def a_dict(config):
        return config.as_dict()

    @staticmethod
    def logs(config):
        pb_utils.Logger.log_info("DIFFERENTIAL from auto_complete_config")
        return Ways.plain(config)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        parameters = auto_complete_model_config.as_dict().get("parameters", {})
        how = parameters.get("how", {}).get("string_value", "plain")
        return getattr(Ways, how)(auto_complete_model_config)

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values * np.int32(2))]))
        return responses
