"""Backend `pytorch` with `runtime: "model.py"`: PyTorch models that run in the Python of their environment.

The model is a TorchScript file, or a script with a subclass of torch.nn.Module, whose parameters are in the file of the
same name with the ending .pt (contract/frameworks.md section 1b).
"""

import importlib.util
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

try:
    import torch
except ImportError as error:
    raise ImportError(
        f"models of the pytorch backend with the runtime model.py need PyTorch in their Python environment ({error}). "
        "Install it: nereid runtime install python --package=torch"
    ) from error

# Each has its value as text; torch.set_<name> sets it for the worker's process.
THREAD_SETTINGS = ("NUM_THREADS", "NUM_INTEROP_THREADS")
COMPILE_SETTING = "TORCH_COMPILE_OPTIONAL_PARAMETERS"


def _parameter(config, key, default):
    return config.get("parameters", {}).get(key, {}).get("string_value", default)


def _get_model_path(config):
    directory = pb_utils.get_model_dir()
    names = ["model.py", "model.pt"]
    if config.get("default_model_filename"):
        names.insert(0, config["default_model_filename"])
    for name in names:
        path = os.path.join(directory, name)
        if os.path.exists(path):
            return path
    raise pb_utils.TritonModelException(f"No model found in {directory}/{names}")


def _get_model_data_path(script):
    """The file with the parameters of a script's model, or an empty text."""
    path = os.path.splitext(script)[0] + ".pt"
    return path if os.path.exists(path) else ""


def _import_module_from_path(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _get_model_class_from_module(module):
    """The first subclass of torch.nn.Module in the order of names."""
    for name in sorted(dir(module)):
        member = getattr(module, name)
        # A script may import the base class by its name.
        if isinstance(member, type) and issubclass(member, torch.nn.Module) and member is not torch.nn.Module:
            return member
    raise pb_utils.TritonModelException("Cannot find a subclass of torch.nn.Module")


def _get_device(kind, device_id, model):
    if kind == "GPU":
        return torch.device(f"cuda:{device_id}")
    if kind == "CPU":
        return torch.device("cpu")
    for parameter in model.parameters():
        return parameter.device
    raise pb_utils.TritonModelException("Cannot determine model device")


def _set_torch_parallelism(config):
    """Sets the numbers of threads and returns them for the log."""
    message = ""
    for key in THREAD_SETTINGS:
        value = _parameter(config, key, "1")
        getattr(torch, "set_" + key.lower())(int(value))
        message += f"{key} = {value}; "
    return message


def _get_torch_compile_params(config):
    params = json.loads(_parameter(config, COMPILE_SETTING, "{}"))
    if "model" in params:
        raise pb_utils.TritonModelException("'model' is not an optional parameter for 'torch.compile'")
    return params


def _gather_torch_tensors(scatter_tensors):
    """Joins the tensors of each request with those of the others on the first dimension; returns the joined ones and
    the rows of each request."""
    sections = [tensors[0].size()[0] for tensors in scatter_tensors]
    return [torch.cat(of_all, 0) for of_all in zip(*scatter_tensors)], sections


def _scatter_torch_tensors(gather_tensors, sections):
    """The opposite: a list of tensors for each request."""
    parts = [torch.split(tensor, sections) for tensor in gather_tensors]
    return [list(of_request) for of_request in zip(*parts)]


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        name = args["model_name"]
        log = pb_utils.Logger
        log.log_info(f"Initializing model instance for '{name}'")
        self._name = name
        self._batches = config["max_batch_size"] > 0
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._outputs = [tensor["name"] for tensor in config["output"]]
        log.log_info(f"Torch parallelism settings for '{name}': {_set_torch_parallelism(config)}")
        params = _get_torch_compile_params(config)
        log.log_info(f"'torch.compile' optional parameter(s) for '{name}': {params}")
        self._inference = torch.inference_mode(mode=True)
        self._inference.__enter__()
        self._load(args, _get_model_path(config), params)

    def _load(self, args, path, params):
        log, name = pb_utils.Logger, self._name
        place = (args["model_instance_kind"], args["model_instance_device_id"])
        if not path.endswith(".py"):
            log.log_info(f"Loading '{name}' as TorchScript")
            self._model = torch.jit.load(path)
            self._device = _get_device(*place, self._model)
            self._model.to(self._device)
            self._model.eval()
            return
        model = _get_model_class_from_module(_import_module_from_path(name, path))()
        self._device = _get_device(*place, model)
        model.to(self._device)
        data = _get_model_data_path(path)
        if data:
            model.load_state_dict(torch.load(data, map_location=self._device))
        else:
            log.log_info(f"Model parameter file not found for '{name}'")
        model.eval()
        self._model = torch.compile(model, **params)

    def _run(self, tensors):
        results = self._model(*tensors)
        if not isinstance(results, (tuple, list)):
            results = [results]
        return list(results)

    def _tensors(self, request):
        tensors = []
        for name in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            # PyTorch warns of arrays that it must not write to.
            tensors.append(torch.from_numpy(tensor if tensor.flags.writeable else tensor.copy()).to(self._device))
        return tensors

    def _response(self, results):
        if len(results) < len(self._outputs):
            count = len(self._outputs)
            text = f"the configuration of '{self._name}' has {count} outputs, its model gives {len(results)}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        tensors = []
        for name, result in zip(self._outputs, results):
            tensors.append(pb_utils.Tensor(name, np.ascontiguousarray(result.detach().cpu().numpy())))
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def execute(self, requests):
        if not self._batches:
            return [self._response(self._run(self._tensors(request))) for request in requests]
        joined, sections = _gather_torch_tensors([self._tensors(request) for request in requests])
        return [self._response(part) for part in _scatter_torch_tensors(self._run(joined), sections)]

    def finalize(self):
        self._inference.__exit__(None, None, None)
