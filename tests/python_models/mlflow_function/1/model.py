"""Serves a function that MLflow has saved: the inputs of a batch are the columns of one table, its outputs those of the
table that the function returns."""

import os

import mlflow.pyfunc
import numpy as np
import pandas as pd
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        directory = os.path.join(args["model_repository"], args["model_version"], "function")
        self.function = mlflow.pyfunc.load_model(directory)
        self.outputs = self.function.metadata.get_output_schema().input_names()

    def table(self, request):
        columns = {}
        for tensor in request.inputs():
            values = tensor.as_numpy().reshape(-1)
            is_text = values.dtype == np.object_
            columns[tensor.name()] = [value.decode() for value in values] if is_text else values
        return pd.DataFrame(columns)

    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                result = self.function.predict(self.table(request))
            except Exception as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
                continue
            tensors = []
            for name in self.outputs:
                values = result[name].to_numpy().reshape(-1, 1)
                is_number = np.issubdtype(values.dtype, np.number)
                tensors.append(pb_utils.Tensor(name, values if is_number else values.astype(np.object_)))
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
