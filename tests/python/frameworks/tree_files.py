"""Forests of complete trees with four leaves, as the JSON of XGBoost and the text of LightGBM. Features, thresholds and
leaves are formulas, which tests/models/frameworks/reference.rs repeats."""

import json

FEATURES, CLASSES, TREES, NODES = 4, 3, 6, 3
NO_PARENT = 2147483647


def feature(tree, node):
    return (tree + node) % FEATURES


def threshold(tree, node):
    """Between quarters, which are what the test sends."""
    return ((3 * tree + 2 * node) % 5 - 2) / 2 + 0.125


def leaf(tree, at):
    return ((5 * tree + 3 * at) % 7 - 3) / 5


def xgboost_tree(tree):
    nodes = 2 * NODES + 1
    inner = range(NODES)
    return {
        "base_weights": [0.0] * nodes,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": [0] * nodes,
        "id": tree,
        "left_children": [2 * node + 1 if node < NODES else -1 for node in range(nodes)],
        "loss_changes": [1.0] * nodes,
        "parents": [NO_PARENT] + [(node - 1) // 2 for node in range(1, nodes)],
        "right_children": [2 * node + 2 if node < NODES else -1 for node in range(nodes)],
        "split_conditions": [threshold(tree, node) for node in inner] + [leaf(tree, at) for at in range(NODES + 1)],
        "split_indices": [feature(tree, node) for node in inner] + [0] * (NODES + 1),
        "split_type": [0] * nodes,
        "sum_hessian": [1.0] * nodes,
        "tree_param": {
            "num_deleted": "0", "num_feature": str(FEATURES), "num_nodes": str(nodes), "size_leaf_vector": "1",
        },
    }  # fmt: skip


def xgboost(objective, classes):
    """`classes`: 0 unless each tree belongs to one of several classes."""
    groups = max(classes, 1)
    parameters = {"softmax_multiclass_param": {"num_class": str(classes)}} if classes else {}
    if objective.startswith(("binary", "reg")):
        parameters = {"reg_loss_param": {"scale_pos_weight": "1"}}
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(TREES)},
        "iteration_indptr": list(range(0, TREES + 1, groups)),
        "tree_info": [tree % groups for tree in range(TREES)],
        "trees": [xgboost_tree(tree) for tree in range(TREES)],
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"name": "gbtree", "model": model},
        "learner_model_param": {
            "base_score": "5E-1", "boost_from_average": "1", "num_class": str(classes), "num_feature": str(FEATURES),
            "num_target": "1",
        },
        "objective": {"name": objective, **parameters},
    }  # fmt: skip
    return json.dumps({"version": [2, 1, 4], "learner": learner})


def lightgbm():
    """A regression. In this format a number equal to the threshold goes to the left."""
    head = ["tree", "version=v4", "num_class=1", "num_tree_per_iteration=1", "label_index=0"]
    names = " ".join(f"f{at}" for at in range(FEATURES))
    ranges = " ".join(["[-9:9]"] * FEATURES)
    head += [f"max_feature_idx={FEATURES - 1}", "objective=regression", f"feature_names={names}"]
    head += [f"feature_infos={ranges}"]
    trees = []
    for tree in range(TREES):
        inner, leaves = range(NODES), range(NODES + 1)
        trees.append("\n".join([
            f"Tree={tree}",
            f"num_leaves={NODES + 1}",
            "num_cat=0",
            "split_feature=" + " ".join(str(feature(tree, node)) for node in inner),
            "split_gain=1 1 1",
            "threshold=" + " ".join(repr(threshold(tree, node)) for node in inner),
            "decision_type=2 2 2",
            "left_child=1 -1 -3",
            "right_child=2 -2 -4",
            "leaf_value=" + " ".join(repr(leaf(tree, at)) for at in leaves),
            "leaf_weight=1 1 1 1",
            "leaf_count=1 1 1 1",
            "internal_value=0 0 0",
            "internal_weight=4 2 2",
            "internal_count=4 2 2",
            "is_linear=0",
            "shrinkage=1",
        ]) + "\n\n\n")  # fmt: skip
    head += ["tree_sizes=" + " ".join(str(len(tree)) for tree in trees)]
    return "\n".join(head) + "\n\n" + "".join(trees) + "end of trees\n"
