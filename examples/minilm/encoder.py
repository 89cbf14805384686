"""Writes a BERT encoder's graph as ONNX from its weights.

Token numbers and a mask of padding go in, a vector for each token comes out; any batch, any number of tokens up to that
of the position vectors. Texts are single, so the vector of their segment is part of the position vectors.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# The oldest that has LayerNormalization as one operator; ONNX Runtime reads it from 1.12 on.
OPSET = 17
IR_VERSION = 8
# What is added to the score of padding. Its weight after the softmax is 0, and no row becomes infinite.
PADDING_SCORE = -1e9


def build_encoder(config, weights):
    """The serialised model. A ValueError says what of the network is none that this writes."""
    for key, expected in (("hidden_act", "gelu"), ("position_embedding_type", "absolute"), ("model_type", "bert")):
        if config.get(key, expected) != expected:
            raise ValueError("the network has %s %r, not %r" % (key, config[key], expected))
    graph = Graph(config, weights)
    graph.build()
    batch_and_tokens = ["batch", "tokens"]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "minilm_encoder",
            [
                helper.make_tensor_value_info("input_ids", TensorProto.INT64, batch_and_tokens),
                helper.make_tensor_value_info("attention_mask", TensorProto.INT64, batch_and_tokens),
            ],
            [helper.make_tensor_value_info("token_vectors", TensorProto.FLOAT, batch_and_tokens + [graph.size])],
            graph.constants,
        ),
        producer_name="nereid",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


class Graph:
    """Nodes and constants as they are added."""

    def __init__(self, config, weights):
        self.weights = weights
        self.size = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.layers = config["num_hidden_layers"]
        self.inner = config["intermediate_size"]
        self.epsilon = config["layer_norm_eps"]
        self.words = config["vocab_size"]
        self.positions = config["max_position_embeddings"]
        if self.size % self.heads:
            raise ValueError("%d numbers cannot be shared by %d heads" % (self.size, self.heads))
        self.nodes = []
        self.constants = []

    def node(self, operator, inputs, output, **attributes):
        outputs = output if isinstance(output, list) else [output]
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], **attributes))
        return output

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def weight(self, name, *shape):
        found = self.weights.get(name)
        if found is None:
            raise ValueError("the weights %s are missing" % name)
        if found.shape != shape:
            raise ValueError("the weights %s have shape %s, not %s" % (name, found.shape, shape))
        return found

    def build(self):
        self.constant("zero", np.array([0], np.int64))
        self.constant("one", np.array([1], np.int64))
        self.constant("into_heads", np.array([0, 0, self.heads, self.size // self.heads], np.int64))
        self.constant("from_heads", np.array([0, 0, self.size], np.int64))
        self.constant("scale", np.float32(1 / np.sqrt(self.size // self.heads)))
        self.constant("half", np.float32(0.5))
        self.constant("one_float", np.float32(1))
        self.constant("root_two", np.float32(np.sqrt(2)))
        self.constant("padding_score", np.float32(PADDING_SCORE))
        padding = self.padding_scores()
        vectors = self.embeddings()
        for number in range(self.layers):
            vectors = self.layer("encoder.layer.%d." % number, vectors, padding)
        self.node("Identity", [vectors], "token_vectors")

    def padding_scores(self):
        """[batch, 1, 1, tokens]: 0 where there is a token."""
        self.constant("head_and_query", np.array([1, 2], np.int64))
        mask = self.node("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
        mask = self.node("Unsqueeze", [mask, "head_and_query"], "mask_of_keys")
        absent = self.node("Sub", ["one_float", mask], "absent")
        return self.node("Mul", [absent, "padding_score"], "padding")

    def embeddings(self):
        prefix = "embeddings."
        words = self.weight(prefix + "word_embeddings.weight", self.words, self.size)
        positions = self.weight(prefix + "position_embeddings.weight", self.positions, self.size)
        segment = self.weight(prefix + "token_type_embeddings.weight", 2, self.size)[0]
        self.constant("word_vectors", words)
        self.constant("position_vectors", positions + segment)
        shape = self.node("Shape", ["input_ids"], "tokens", start=1, end=2)
        place = self.node("Slice", ["position_vectors", "zero", shape, "zero", "one"], "places")
        found = self.node("Gather", ["word_vectors", "input_ids"], "words")
        return self.normalised(prefix + "LayerNorm", self.node("Add", [found, place], "placed_words"))

    def layer(self, prefix, vectors, padding):
        attended = self.attention(prefix + "attention.", vectors, padding)
        expanded = self.dense(prefix + "intermediate.dense", attended, self.size, self.inner)
        contracted = self.dense(prefix + "output.dense", self.gelu(prefix, expanded), self.inner, self.size)
        return self.normalised(prefix + "output.LayerNorm", self.node("Add", [contracted, attended], prefix + "sum"))

    def attention(self, prefix, vectors, padding):
        def heads(which, order):
            dense = self.dense(prefix + "self." + which, vectors, self.size, self.size)
            parted = self.node("Reshape", [dense, "into_heads"], prefix + which + ".parted")
            return self.node("Transpose", [parted], prefix + which + ".heads", perm=order)

        query = heads("query", [0, 2, 1, 3])
        key = heads("key", [0, 2, 3, 1])
        value = heads("value", [0, 2, 1, 3])
        scores = self.node("MatMul", [query, key], prefix + "products")
        scores = self.node("Mul", [scores, "scale"], prefix + "scaled")
        scores = self.node("Add", [scores, padding], prefix + "scores")
        shares = self.node("Softmax", [scores], prefix + "shares", axis=3)
        mixed = self.node("MatMul", [shares, value], prefix + "mixed")
        mixed = self.node("Transpose", [mixed], prefix + "mixed.tokens", perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, "from_heads"], prefix + "mixed.joined")
        out = self.dense(prefix + "output.dense", mixed, self.size, self.size)
        return self.normalised(prefix + "output.LayerNorm", self.node("Add", [out, vectors], prefix + "sum"))

    def dense(self, name, vectors, inputs, outputs):
        weight = self.constant(name + ".weight", self.weight(name + ".weight", outputs, inputs).T)
        bias = self.constant(name + ".bias", self.weight(name + ".bias", outputs))
        product = self.node("MatMul", [vectors, weight], name + ".product")
        return self.node("Add", [product, bias], name + ".out")

    def normalised(self, name, vectors):
        scale = self.constant(name + ".scale", self.weight(name + ".weight", self.size))
        shift = self.constant(name + ".shift", self.weight(name + ".bias", self.size))
        return self.node(
            "LayerNormalization", [vectors, scale, shift], name + ".out", axis=-1, epsilon=float(self.epsilon)
        )

    def gelu(self, prefix, vectors):
        """x/2 (1 + erf(x/sqrt 2)), written so that ONNX Runtime sees what it is and takes its own operator."""
        scaled = self.node("Div", [vectors, "root_two"], prefix + "gelu.scaled")
        error = self.node("Erf", [scaled], prefix + "gelu.erf")
        plus = self.node("Add", [error, "one_float"], prefix + "gelu.plus")
        product = self.node("Mul", [vectors, plus], prefix + "gelu.product")
        return self.node("Mul", [product, "half"], prefix + "gelu.out")
