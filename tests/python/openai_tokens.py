"""Trains a small tokenizer, and holds what the server's routes /tokenize and /detokenize say to it.

    openai_tokens.py train FOLDER
    openai_tokens.py check FOLDER URL"""

import json
import sys
import urllib.request

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Models read tokens and write tokens; texts are for people.",
    "Tokens of a text, and the text of tokens: there and back again.",
    "<s><user>Hello</user><assistant>",
]
SAMPLES = TEXTS + ["", "x", "w\u00f6rld \u4f60\u597d \U0001f600", "a\n\n\tb  c", "<s>special</s>", "e\u0301 and \u00e9"]


def train(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    kept = {"special_tokens": special, "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, **kept)
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    begin = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[begin])
    tokenizer.save(folder + "/tokenizer.json")


def check(folder, url):
    tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")

    def post(path, body):
        request = urllib.request.Request(
            "http://%s%s" % (url, path), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return json.load(urllib.request.urlopen(request))

    for text in SAMPLES:
        for special in (True, False):
            expected = tokenizer.encode(text, add_special_tokens=special).ids
            answer = post("/tokenize", {"model": "openai_mock", "prompt": text, "add_special_tokens": special})
            assert answer["tokens"] == expected and answer["count"] == len(expected), (text, answer, expected)
            assert answer["max_model_len"] == 4096, answer
            if not special and expected:
                back = post("/detokenize", {"model": "openai_mock", "tokens": expected})
                assert back["prompt"] == text, (text, back)
    named = post("/tokenize", {"prompt": TEXTS[0], "return_token_strs": True, "add_special_tokens": False})
    assert named["token_strs"] == tokenizer.encode(TEXTS[0], add_special_tokens=False).tokens, named
    chat = post("/tokenize", {"model": "openai_mock", "messages": [{"role": "user", "content": "Hello"}]})
    rendered = "<s><user>Hello</user><assistant>"
    assert chat["tokens"] == tokenizer.encode(rendered, add_special_tokens=False).ids, chat
    print("ok")


if __name__ == "__main__":
    train(sys.argv[2]) if sys.argv[1] == "train" else check(sys.argv[2], sys.argv[3])
