"""Loading, completing and unloading of models: what is told, and what stays in the index."""

import base64
import json

from tritonclient.grpc import service_pb2 as pb

from wire import Ask

WAYS = [
    "plain",
    "batching",
    "optional",
    "decoupled",
    "small_batch",
    "other_policy",
    "foreign_input_key",
    "foreign_output_key",
    "input_without_name",
    "input_without_type",
    "input_without_dims",
    "output_without_name",
    "output_without_type",
    "output_without_dims",
    "wrong_datatype",
    "raises",
    "none",
    "a_dict",
    "logs",
    "no_such_way",
]
IN = {"name": "IN", "data_type": "TYPE_INT32", "dims": [2]}
OUT = {"name": "OUT", "data_type": "TYPE_INT32", "dims": [2]}

# What the configuration says already, in the way `plain` or `decoupled`.
GIVEN = {
    "the same": ("plain", {"max_batch_size": 4, "input": [IN], "output": [OUT]}),
    "a larger batch": ("plain", {"max_batch_size": 8}),
    "a smaller batch": ("plain", {"max_batch_size": 2}),
    "another type": ("plain", {"input": [dict(IN, data_type="TYPE_FP32")]}),
    "another output type": ("plain", {"output": [dict(OUT, data_type="TYPE_FP32")]}),
    "other dims": ("plain", {"input": [dict(IN, dims=[3])]}),
    "other output dims": ("plain", {"output": [dict(OUT, dims=[3])]}),
    "another input": ("plain", {"input": [dict(IN, name="OTHER")]}),
    "an input without dims": ("plain", {"input": [{"name": "IN", "data_type": "TYPE_INT32"}]}),
    "an input by name": ("plain", {"input": [{"name": "IN"}]}),
    "optional": ("plain", {"input": [dict(IN, optional=True)]}),
    "decoupled": ("decoupled", {"model_transaction_policy": {"decoupled": True}}),
    "not decoupled": ("decoupled", {"model_transaction_policy": {"decoupled": False}}),
    "sequences": ("batching", {"sequence_batching": {}}),
    "its own batching": ("batching", {"dynamic_batching": {"preferred_batch_size": [2]}}),
}

SOURCES = {
    "no class": "import triton_python_backend_utils as pb_utils\n",
    "no execute": "class TritonPythonModel:\n    pass\n",
    "no syntax": "class TritonPythonModel\n",
    "a missing module": "import no_such_module_anywhere\n",
    "an exception": "raise ValueError('while it is read')\n",
    "an exit": "import sys\nsys.exit(5)\n",
    "nothing": "",
    "execute alone": "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n",
    "a class that cannot be made": """class TritonPythonModel:
    def __init__(self):
        raise ValueError("in the constructor")
    def execute(self, requests):
        return []
""",
    "a call in initialize": """import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        tensor = pb_utils.Tensor("IN", np.zeros(1, dtype=np.int32))
        pb_utils.InferenceRequest(model_name="add_sub", requested_output_names=["A"], inputs=[tensor]).exec()
    def execute(self, requests):
        return []
""",
    "completion that is no function": """class TritonPythonModel:
    auto_complete_config = 7
    def execute(self, requests):
        return []
""",
    "a set of initialize's arguments": """import json
class TritonPythonModel:
    def initialize(self, args):
        kinds = {key: type(value).__name__ for key, value in args.items()}
        raise ValueError(json.dumps(kinds, sort_keys=True))
    def execute(self, requests):
        return []
""",
}


def load(server, model, config=None, files=None):
    parameters = {}
    if config is not None:
        parameters["config"] = json.dumps(config)
    for name, contents in (files or {}).items():
        parameters[f"file:{name}"] = base64.b64encode(contents.encode()).decode()
    body = {"parameters": parameters} if parameters else {}
    return server.http("POST", f"/v2/repository/models/{model}/load", body)


def unload(server, model):
    return server.http("POST", f"/v2/repository/models/{model}/unload", {})


def settled(server, model):
    """Waits until an unloaded model is gone from those that serve or are about to."""
    import time

    while state(server, model).get("state") in ("READY", "UNLOADING", "LOADING"):
        time.sleep(0.02)


def state(server, model):
    models = server.http("POST", "/v2/repository/index")["body"]
    found = [one for one in models if one["name"] == model]
    return found[0] if found else {}


def with_config(server, model, config, files=None, ask=None):
    """The load's answer, the resulting configuration and the index, an answer; and away with it."""
    answer = {"load": load(server, model, config, files), "index": state(server, model)}
    if answer["load"]["status"] == 200:
        answer["config"] = server.http("GET", f"/v2/models/{model}/config")
        answer["message"] = server.call("ModelConfig", pb.ModelConfigRequest(name=model))
        answer["metadata"] = server.http("GET", f"/v2/models/{model}")
        if ask is not None:
            answer["infer"] = server.infer_grpc(ask)
        answer["unload"] = unload(server, model)
        settled(server, model)
    return server.normal(answer)


def cases(server):
    # Every way starts from an empty configuration.
    for how in WAYS:
        config = {"backend": "python", "parameters": {"how": {"string_value": how}}}
        ask = Ask("auto", [("IN", "INT32", [1, 2], [3, 4])])
        yield f"completed by {how}", with_config(server, "auto", config, ask=ask)
    for name, (how, given) in GIVEN.items():
        config = {"backend": "python", "parameters": {"how": {"string_value": how}}, **given}
        yield f"completed with {name}", with_config(server, "auto", config)
    yield "a configuration file that says the backend alone", with_config(server, "auto", None)
    yield "no configuration file", with_config(server, "auto_bare", None)
    config = {"backend": "python", "input": [dict(IN, dims=[1])], "output": [dict(OUT, name="ARGS")]}
    config["output"][0].update(data_type="TYPE_STRING", dims=[1])
    ask = Ask("life", [("IN", "INT32", [1], [1])])
    for how in ["", "raise", "model_exception", "missing_key", "exit", "return", "finalize_raises"]:
        with_how = {**config, "parameters": {"how": {"string_value": how}}}
        yield f"initialize: {how}", with_config(server, "life", with_how, ask=ask)
    yield "unchanged", with_config(server, "life", None, ask=ask)
    for name, source in SOURCES.items():
        yield f"source: {name}", with_config(server, "life", config, {"1/model.py": source}, ask)
    yield "source under another name", with_config(
        server, "life", {**config, "default_model_filename": "other.py"}, {"1/other.py": SOURCES["execute alone"]}
    )
    yield "two versions given", with_config(
        server,
        "life",
        {**config, "version_policy": {"all": {}}},
        {"1/model.py": SOURCES["execute alone"], "3/model.py": SOURCES["execute alone"]},
    )
    for name, more in {
        "two instances": {"instance_group": [{"kind": "KIND_CPU", "count": 2}]},
        "kind model": {"instance_group": [{"kind": "KIND_MODEL", "count": 1}]},
        "memory only on hosts": {"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": "no"}}},
        "memory of no kind": {"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": "maybe"}}},
        "a missing environment": {"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/no/such/place"}}},
        "a place without activate": {"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/proc"}}},
        "a name of another backend": {"backend": "nothing"},
    }.items():
        # Which of two instances takes a request is left to chance.
        asked = None if name == "two instances" else ask
        yield f"configured: {name}", with_config(server, "life", {**config, **more}, ask=asked)
    yield "unload of what is not loaded", unload(server, "life")
    yield "unload of what is not there", unload(server, "absent")
    yield "load of what is not there", load(server, "absent")
    yield "reload", [load(server, "strings"), server.infer_json(Ask("strings", [("TEXT", "BYTES", [1], ["ab"])]))]
    yield "index of all", sorted(
        server.http("POST", "/v2/repository/index")["body"], key=lambda model: (model["name"], model.get("version"))
    )
