"""Calls models on devices, and hands what they leave there from one to the next."""

import ctypes
import json

import numpy as np
import triton_python_backend_utils as pb_utils

GPU, CPU = pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU


def call(model, tensor, output, memory=None):
    rest = {} if memory is None else {"preferred_memory": pb_utils.PreferredMemory(*memory)}
    request = pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=output, **rest
    )
    response = request.exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    return {tensor.name(): tensor for tensor in response.output_tensors()}


def renamed(name, tensor):
    """The same elements, wherever they lie."""
    return pb_utils.Tensor.from_dlpack(name, tensor)


def where(tensor):
    return list(tensor.__dlpack_device__())


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        seen = {"given": where(given)}
        # Where the model leaves it, which computes on a device.
        doubled = call("affine", renamed("INPUT0", given), ["OUTPUT0"])["OUTPUT0"]
        seen["doubled"] = where(doubled)
        # Its memory goes to the next model, which has some of its own.
        tens = call("on_gpu", renamed("IN", doubled), ["OUT", "FACTS"])
        seen["tens"] = where(tens["OUT"])
        seen["facts"] = json.loads(tens["FACTS"].as_numpy()[0])
        # As it is wanted.
        on_host = call("affine", renamed("INPUT0", tens["OUT"]), ["OUTPUT0"], (CPU, 0))["OUTPUT0"]
        seen["on_host"] = [where(on_host), on_host.as_numpy().tolist()]
        for device in (0, 1):
            there = call("affine", renamed("INPUT0", doubled), ["OUTPUT0"], (GPU, device))["OUTPUT0"]
            seen["on_%d" % device] = where(there)
        # From a model that knows nothing of devices, and from one that there is not.
        echoed = call("identity_fp32", renamed("INPUT0", doubled), ["OUTPUT0"], (GPU, 1))["OUTPUT0"]
        seen["echoed"] = where(echoed)
        nowhere = call("affine", renamed("INPUT0", given), ["OUTPUT0"], (GPU, 7))["OUTPUT0"]
        seen["nowhere"] = where(nowhere)
        text = np.array([json.dumps(seen).encode()], dtype=object)
        outputs = [renamed("OUT", echoed), pb_utils.Tensor("SEEN", text)]
        return pb_utils.InferenceResponse(outputs)
