"""Writes classifiers of scikit-learn to a model repository, as skl2onnx exports them, and prints what they compute."""

import json
import pathlib
import sys

import numpy
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

repository = pathlib.Path(sys.argv[1])
features, numbers = load_iris(return_X_y=True)
features = features.astype(numpy.float32)
# Not in the order of their numbers.
words = numpy.array(["virginica", "setosa", "versicolor"])[numbers]
rows = features[::40]
printed = {"rows": rows.flatten().tolist()}
for name, targets in [("numbers", numbers), ("words", words)]:
    model = LogisticRegression(max_iter=1000).fit(features, targets)
    for folder, options in [(name, None), ("matrix", {"zipmap": False})]:
        if options and name == "words":
            continue
        path = repository / folder / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        given = {id(model): options} if options else None
        exported = to_onnx(model, features[:1], options=given)
        if options:
            # The names differ with the option: one name for labels in all models.
            exported.graph.output[0].name = "output_label"
            for node in exported.graph.node:
                node.output[:] = ["output_label" if one == "label" else one for one in node.output]
        path.write_bytes(exported.SerializeToString())
    printed[name] = {
        "classes": model.classes_.tolist(),
        "labels": model.predict(rows).tolist(),
        "probabilities": model.predict_proba(rows).flatten().tolist(),
    }
keys = repository / "words" / "config.pbtxt"
keys.write_text(
    """
backend: "onnxruntime"
max_batch_size: 16
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "output_label" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } }
output { name: "output_probability" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "output_probability.keys" data_type: TYPE_STRING dims: [ 3 ] }
"""
)
print(json.dumps(printed))
