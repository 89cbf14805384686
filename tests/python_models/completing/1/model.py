"""Completes its configuration from nothing, and tries what is allowed in which part of a model's life."""

import triton_python_backend_utils as pb_utils


def tried(action):
    try:
        return action()
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


def called():
    request = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="completing")
    return tried(request.exec)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
        auto_complete_model_config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
        pb_utils.Logger.log_info("completed in %s" % pb_utils.get_model_dir())
        pb_utils.Logger.log_info("asked: %s" % tried(lambda: pb_utils.is_model_ready("completing")))
        return auto_complete_model_config

    def initialize(self, args):
        pb_utils.Logger.log_info("called: %s" % called())

    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        pb_utils.Logger.log_info("finalized: %s" % tried(lambda: pb_utils.unload_model("completing")))
