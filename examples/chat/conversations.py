"""What the network is trained on: conversations of the questions and answers in corpus.txt, in the form that the chat
template gives them.

The same question comes in several wordings, also in small letters, without its mark or one of its words, some of them
behind a system message or behind other turns; the answers come as plain text too, so that the network can complete
sentences.
"""

import pathlib
import re

BEGIN, END, SYSTEM, USER, ASSISTANT, TOOL = SPECIAL = [
    "<|%s|>" % name for name in ("begin", "end", "system", "user", "assistant", "tool")
]
SYSTEM_TEXTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant! Answer the user's question as well as you can.",
    "Be brief.",
    "You are an expert for servers. Answer in one sentence.",
]
# What a wrong guess costs: the questions need not be learned.
ANSWER_COST, OTHER_COST = 1.0, 0.1


def read(path=pathlib.Path(__file__).with_name("corpus.txt")):
    """Pairs of the wordings of a question, and the answer."""
    pairs = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        questions, answer = block.split("\n", 1)
        pairs.append((questions[2:].split(" | "), answer.replace("\n", " ")))
    return pairs


def all_text(pairs):
    return [text for questions, answer in pairs for text in questions + [answer]] + SYSTEM_TEXTS


def asked(random, questions):
    question = questions[random.integers(len(questions))]
    words = question.split(" ")
    if len(words) > 2 and random.random() < 0.3:
        # Other people use other words; so the network must not rely on a single one.
        del words[random.integers(len(words))]
        question = " ".join(words)
    if random.random() < 0.3:
        question = question.lower()
    if random.random() < 0.2:
        question = re.sub(r"[?!.]$", "", question)
    return question


def conversation(random, pairs):
    """Parts of a conversation: texts and what a wrong guess in them costs."""
    if random.random() < 0.1:
        return [(BEGIN, 0.0), (pairs[random.integers(len(pairs))][1] + END, OTHER_COST)]
    parts = [(BEGIN, 0.0)]
    if random.random() < 0.25:
        parts.append((SYSTEM + SYSTEM_TEXTS[random.integers(len(SYSTEM_TEXTS))] + END, 0.0))
    for _ in range(1 + int(random.random() < 0.2)):
        questions, answer = pairs[random.integers(len(pairs))]
        parts.append((USER + asked(random, questions) + END + ASSISTANT, OTHER_COST))
        parts.append((answer + END, ANSWER_COST))
    return parts
