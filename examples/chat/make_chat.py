#!/usr/bin/env python3
"""Makes the repository of the model `chat`: trains a tokenizer and a small network on corpus.txt, in about a minute on
one core, and puts both beside the model's scripts. `nereid quickstart --with chat` does this; by hand:

    pip install numpy tokenizers
    python make_chat.py --into chat_repository

The directory appears when it is complete, and not before.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import time

# The matrices are small: more threads of numpy's library would only wait for each other.
for library in ("OPENBLAS", "MKL", "OMP"):
    os.environ[library + "_NUM_THREADS"] = "1"

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import conversations
import training

HERE = pathlib.Path(__file__).resolve().parent
SEED = 11
VOCABULARY = 640
SIZE, LAYERS, HEADS, INNER = 96, 2, 4, 384
ROWS, LENGTH, STEPS, RATE = 12, 96, 800, 0.006
CONTEXT = 1024


def say(text):
    print(text, flush=True)


def make_tokenizer(texts):
    """Pairs of bytes that are frequent in the texts; every text can be cut into its tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=conversations.SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Stream:
    """Rows of conversations one behind another, without end."""

    def __init__(self, random, pairs, tokenizer):
        self.random = random
        self.pairs = pairs
        self.tokenizer = tokenizer
        self.tokens = []
        self.costs = []
        self.known = {}

    def rows(self, count, length):
        while len(self.tokens) < count * length:
            for text, cost in conversations.conversation(self.random, self.pairs):
                if text not in self.known:
                    self.known[text] = self.tokenizer.encode(text).ids
                self.tokens += self.known[text]
                self.costs += [cost] * len(self.known[text])
        taken = count * length
        tokens = np.array(self.tokens[:taken]).reshape(count, length)
        costs = np.array(self.costs[:taken], dtype=np.float32).reshape(count, length)
        del self.tokens[:taken], self.costs[:taken]
        return tokens, costs


def train(pairs, tokenizer, steps):
    random = np.random.default_rng(SEED)
    weights = training.initial(random, tokenizer.get_vocab_size(), SIZE, LAYERS, INNER)
    optimizer = training.Adam(weights, RATE, steps)
    stream = Stream(random, pairs, tokenizer)
    mean = None
    for step in range(1, steps + 1):
        loss, gradients = training.loss_and_gradients(weights, HEADS, *stream.rows(ROWS, LENGTH))
        optimizer.update(gradients)
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        if step % max(steps // 10, 1) == 0:
            say("Training the network: step %d of %d, loss %.2f" % (step, steps, mean))
    return weights


def write_tokenizer(folder, tokenizer):
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": conversations.BEGIN,
        "eos_token": conversations.END,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": (HERE / "template.jinja").read_text(encoding="utf-8"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_model(folder, tokenizer, weights, environment):
    (folder / "1").mkdir(parents=True)
    config = (HERE / "models" / "chat" / "config.pbtxt").read_text(encoding="utf-8")
    if environment:
        value = environment.replace("\\", "\\\\").replace('"', '\\"')
        config += 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }\n' % value
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    for script in sorted((HERE / "models" / "chat" / "1").glob("*.py")) + [HERE / "network.py"]:
        shutil.copyfile(script, folder / "1" / script.name)
    shape = np.array([HEADS, CONTEXT])
    np.savez(folder / "1" / "weights.npz", shape=shape, **weights)
    write_tokenizer(folder / "tokenizer", tokenizer)


def flush(folder):
    """Brings all of it to the disk, so that a power failure leaves no directory of empty files."""
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make(into, environment, steps):
    if into.exists():
        sys.exit("error: %s is there already" % into)
    unfinished = into.with_name(into.name + ".unfinished")
    # What an interrupted attempt left is not trusted.
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        pairs = conversations.read()
        say("Training the tokenizer")
        tokenizer = make_tokenizer(conversations.all_text(pairs))
        weights = train(pairs, tokenizer, steps)
        say("Writing the repository")
        write_model(unfinished / "chat", tokenizer, weights, environment)
        flush(unfinished)
        os.rename(unfinished, into)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=pathlib.Path, required=True, help="the directory to make")
    parser.add_argument("--environment", help="EXECUTION_ENV_PATH for the model; default: none is named")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the training; few are enough for tests")
    args = parser.parse_args()
    began = time.process_time()
    make(args.into, args.environment, args.steps)
    say("Made it, with %.0f s of processor time" % (time.process_time() - began))


if __name__ == "__main__":
    main()
