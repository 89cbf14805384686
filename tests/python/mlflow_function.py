"""Saves the function of the model mlflow_function with MLflow: `mlflow_function.py <directory>`."""

import sys

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, Schema


class Describe(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        if (model_input["age"] < 0).any():
            raise ValueError("an age is negative")
        texts = [f"{name} is {age}" for name, age in zip(model_input["name"], model_input["age"])]
        if "score" in model_input.columns:
            texts = [f"{text} ({score})" for text, score in zip(texts, model_input["score"])]
        length = [len(name) for name in model_input["name"]]
        return pd.DataFrame({"label": texts, "length": np.array(length, dtype=np.int64)})


columns = [ColSpec("string", "name"), ColSpec("long", "age"), ColSpec("double", "score", required=False)]
results = [ColSpec("string", "label"), ColSpec("long", "length")]
signature = ModelSignature(inputs=Schema(columns), outputs=Schema(results))
mlflow.pyfunc.save_model(sys.argv[1], python_model=Describe(), signature=signature)
