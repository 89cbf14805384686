"""Serves a saved function on tables: the inputs of all requests of a batch are the columns of one table."""

import os

import fake_pyfunc
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        directory = os.path.join(args["model_repository"], args["model_version"], "function")
        self.function = fake_pyfunc.load_model(directory)

    def column(self, tensor):
        values = tensor.as_numpy().reshape(-1)
        return np.char.decode(values.astype(np.bytes_), "utf-8").astype(object) if values.dtype == object else values

    def execute(self, requests):
        sizes = [request.inputs()[0].shape()[0] for request in requests]
        names = {tensor.name() for request in requests for tensor in request.inputs()}
        if any({tensor.name() for tensor in request.inputs()} != names for request in requests):
            return [self.predict([request], [size])[0] for request, size in zip(requests, sizes)]
        return self.predict(requests, sizes)

    def predict(self, requests, sizes):
        columns = {}
        for tensor in requests[0].inputs():
            name = tensor.name()
            parts = [self.column(pb_utils.get_input_tensor_by_name(request, name)) for request in requests]
            columns[name] = np.concatenate(parts)
        outputs = self.function.predict(fake_pyfunc.Table(columns))
        # A column's missing text is an empty one to the client.
        outputs["label"] = np.array(["" if text is None else text for text in outputs["label"]], dtype=np.object_)
        responses, start = [], 0
        for size in sizes:
            rows = {name: values[start : start + size].reshape(-1, 1) for name, values in outputs.items()}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(*row) for row in rows.items()]))
            start += size
        return responses
