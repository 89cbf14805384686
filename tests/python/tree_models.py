"""Makes small tree models with the packages that train them, and writes what these predict.

usage: tree_models.py FOLDER

FOLDER/<name>.<extension> is a model. FOLDER/expected.json has the rows of `input`, of four features (null: missing), and
for each model what its own package predicts for them: `predict`, the class probabilities `proba`, `contrib` (Shapley
values with the mean behind them) and the raw sums `raw`, as far as the package has them.
"""

import json
import math
import os
import struct
import sys

import lightgbm
import numpy as np
import treelite
import treelite.sklearn
import xgboost
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)

SEED = 7
folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
random = np.random.default_rng(SEED)
X = random.standard_normal((400, 4)).astype(np.float32)
TWO = (X[:, 0] + X[:, 1] > 0).astype(int)
THREE = np.digitize(X[:, 0] - X[:, 2], [-0.5, 0.5])
NUMBER = X[:, 0] * 2 + X[:, 3]
# The second feature of these rows is one of forty categories.
CATEGORIES = X.copy()
CATEGORIES[:, 1] = random.integers(0, 40, len(X))
ODD = (CATEGORIES[:, 1].astype(int) % 3 == 0).astype(int)

ROWS = random.standard_normal((64, 4)).astype(np.float32)
ROWS[1, 0] = ROWS[2, 3] = ROWS[3, 1] = np.nan
ROWS[4] = np.nan
CATEGORY_ROWS = ROWS.copy()
CATEGORY_ROWS[:, 1] = random.integers(-2, 44, len(ROWS))
# Categories that no training row has: not whole, missing, negative, too large.
CATEGORY_ROWS[5:9, 1] = [3.5, np.nan, -7, 1e9]

expected = {}


def path(name):
    return os.path.join(folder, name)


def values(array):
    array = np.asarray(array, dtype=np.float64)
    return [None if math.isnan(value) else value for value in array.ravel()]


def expect(name, **results):
    expected[name] = {key: values(result) for key, result in results.items()}


def make_xgboost():
    forms = [
        ("xgb_two", "binary:logistic", TWO, {}),
        ("xgb_three", "multi:softprob", THREE, {"num_class": 3}),
        ("xgb_softmax", "multi:softmax", THREE, {"num_class": 3}),
        ("xgb_number", "reg:squarederror", NUMBER, {}),
        ("xgb_counts", "count:poisson", np.exp(X[:, 0] / 2), {}),
        ("xgb_dart", "binary:logistic", TWO, {"booster": "dart", "rate_drop": 0.3, "seed": SEED}),
    ]
    for name, objective, target, more in forms:
        train(name, objective, X, ROWS, target, more, None)
    kinds = ["q", "c", "q", "q"]
    train("xgb_categories", "binary:logistic", CATEGORIES, np.abs(CATEGORY_ROWS), ODD, {"max_cat_to_onehot": 1}, kinds)
    targets = np.stack([NUMBER, -NUMBER], axis=1)
    booster = xgboost.train({"objective": "reg:squarederror"}, xgboost.DMatrix(X, label=targets), 2)
    booster.save_model(path("xgb_targets.json"))
    write_legacy("xgb_two")


def train(name, objective, table, rows, target, more, kinds):
    settings = {"objective": objective, "max_depth": 3, "nthread": 1, **more}
    data = xgboost.DMatrix(table, label=target, feature_types=kinds, enable_categorical=kinds is not None)
    booster = xgboost.train(settings, data, 6)
    for extension in ["json", "ubj", "model"]:
        booster.save_model(path(f"{name}.{extension}"))
    rows = rows.copy()
    if kinds is not None:
        # XGBoost itself refuses categories beyond those of the training.
        rows[:, 1] = np.where(np.isnan(rows[:, 1]), np.nan, np.floor(rows[:, 1]) % 40)
        expected["category_rows"] = {"input": values(rows)}
    asked = xgboost.DMatrix(rows, feature_types=kinds, enable_categorical=kinds is not None)
    expect(
        name,
        predict=booster.predict(asked),
        raw=booster.predict(asked, output_margin=True),
        contrib=booster.predict(asked, pred_contribs=True),
    )


def write_legacy(name):
    """The binary form that XGBoost wrote before 2.1, of the trees in <name>.json."""
    with open(path(f"{name}.json"), encoding="utf-8") as file:
        learner = json.load(file)["learner"]
    trees = learner["gradient_booster"]["model"]["trees"]
    score = float(learner["learner_model_param"]["base_score"].strip("[]"))
    with open(path("xgb_legacy.model"), "wb") as file:
        file.write(struct.pack("<fIiiiIII", score, 4, 0, 0, 0, 1, 7, 1) + bytes(104))
        for text in [b"binary:logistic", b"gbtree"]:
            file.write(struct.pack("<Q", len(text)) + text)
        file.write(struct.pack("<iiiiqii", len(trees), 1, 4, 0, 0, 1, 0) + bytes(128))
        for tree in trees:
            left, right = tree["left_children"], tree["right_children"]
            file.write(struct.pack("<iiiiii", 1, len(left), 0, 0, 4, 0) + bytes(124))
            for node, parent in enumerate(tree["parents"]):
                parent = -1 if node == 0 else parent
                feature = tree["split_indices"][node] | tree["default_left"][node] << 31
                condition = tree["split_conditions"][node]
                file.write(struct.pack("<iiiIf", parent, left[node], right[node], feature, condition))
            for hessian, weight in zip(tree["sum_hessian"], tree["base_weights"]):
                file.write(struct.pack("<fffi", 0, hessian, weight, 0))
        file.write(struct.pack(f"<{len(trees)}i", *[0] * len(trees)))


def make_lightgbm():
    forms = [
        ("lgb_two", "binary", X, ROWS, TWO, {}, []),
        ("lgb_three", "multiclass", X, ROWS, THREE, {"num_class": 3}, []),
        ("lgb_ova", "multiclassova", X, ROWS, THREE, {"num_class": 3}, []),
        ("lgb_number", "regression", X, ROWS, NUMBER, {}, []),
        ("lgb_forest", "regression", X, ROWS, NUMBER, {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}, []),
        ("lgb_categories", "binary", CATEGORIES, CATEGORY_ROWS, ODD, {"min_data_per_group": 1, "cat_smooth": 1}, [1]),
    ]
    for name, objective, table, rows, target, more, categories in forms:
        settings = {"objective": objective, "num_leaves": 7, "verbose": -1, "num_threads": 1, "seed": SEED, **more}
        data = lightgbm.Dataset(table, label=target, categorical_feature=categories)
        booster = lightgbm.train(settings, data, 6)
        booster.save_model(path(f"{name}.txt"))
        expect(
            name,
            predict=booster.predict(rows),
            raw=booster.predict(rows, raw_score=True),
            contrib=booster.predict(rows, pred_contrib=True),
        )
        if categories:
            expected["lgb_category_rows"] = {"input": values(rows)}
    model = treelite.frontend.load_lightgbm_model(path("lgb_three.txt"))
    model.serialize(path("lgb_three.tl"))


def make_sklearn():
    common = {"n_estimators": 5, "max_depth": 4, "random_state": SEED}
    whole = np.nan_to_num(ROWS)
    forms = [
        ("skl_two", RandomForestClassifier(**common), TWO),
        ("skl_three", RandomForestClassifier(**common), THREE),
        ("skl_number", RandomForestRegressor(**common), NUMBER),
        ("skl_boosted_two", GradientBoostingClassifier(n_estimators=5, random_state=SEED), TWO),
        ("skl_boosted_three", GradientBoostingClassifier(n_estimators=5, random_state=SEED), THREE),
        ("skl_boosted_number", GradientBoostingRegressor(n_estimators=5, random_state=SEED), NUMBER),
        ("skl_histogram", HistGradientBoostingClassifier(max_iter=5, random_state=SEED), THREE),
    ]
    for name, model, target in forms:
        model.fit(X, target)
        treelite.sklearn.import_model(model).serialize(path(f"{name}.tl"))
        results = {"predict": model.predict(whole)}
        if hasattr(model, "predict_proba"):
            results["proba"] = model.predict_proba(whole)
        expect(name, **results)
    forest = IsolationForest(n_estimators=5, random_state=SEED).fit(X)
    treelite.sklearn.import_model(forest).serialize(path("skl_isolation.tl"))
    expect("skl_isolation", predict=-forest.score_samples(whole))
    # Each split takes off the largest value: as deep as there are rows.
    chain = RandomForestRegressor(n_estimators=1, bootstrap=False)
    rows = np.arange(40, dtype=np.float32).reshape(-1, 1) * np.ones((1, 4), dtype=np.float32)
    chain.fit(rows, 4.0 ** np.arange(40))
    treelite.sklearn.import_model(chain).serialize(path("deep.tl"))


def make_builder(name, leaves, postprocessor, classes):
    """One stump for each pair of leaves: feature 0 below 0 goes left. It has no statistics."""
    kind = "kMultiClf" if classes > 1 else "kRegressor"
    builder = treelite.model_builder.ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=treelite.model_builder.Metadata(
            num_feature=4,
            task_type=kind,
            average_tree_output=False,
            num_target=1,
            num_class=[classes],
            leaf_vector_shape=(1, 1),
        ),
        tree_annotation=treelite.model_builder.TreeAnnotation(
            num_tree=len(leaves),
            target_id=[0] * len(leaves),
            class_id=[tree % classes for tree in range(len(leaves))],
        ),
        postprocessor=treelite.model_builder.PostProcessorFunc(name=postprocessor),
        base_scores=[0.0] * classes,
    )
    for left, right in leaves:
        builder.start_tree()
        builder.start_node(0)
        builder.numerical_test(
            feature_id=0, threshold=0.0, default_left=True, opname="<", left_child_key=1, right_child_key=2
        )
        builder.end_node()
        for key, leaf in [(1, left), (2, right)]:
            builder.start_node(key)
            builder.leaf(leaf)
            builder.end_node()
        builder.end_tree()
    builder.commit().serialize(path(f"{name}.tl"))


make_xgboost()
make_lightgbm()
make_sklearn()
make_builder("plain", [(-1.0, 1.0)], "identity", 1)
make_builder("negative", [(-3.0, 0.5), (-1.0, 0.5), (-2.0, 0.25)], "identity_multiclass", 3)
make_builder("half", [(0.5, 0.75)], "identity", 1)
expected["rows"] = {"input": values(ROWS)}
expected["whole_rows"] = {"input": values(np.nan_to_num(ROWS))}
with open(path("expected.json"), "w", encoding="utf-8") as file:
    json.dump(expected, file)
