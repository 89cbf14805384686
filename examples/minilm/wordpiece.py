"""Cuts text into the word pieces that BERT's uncased networks were trained on.

Only the standard library and numpy, so that a model that needs it brings nothing else along. The result is the one of
the `tokenizers` package for the same vocabulary: control characters dropped, accents stripped, lower case, punctuation
and Chinese characters words of their own, each word the longest pieces of the vocabulary from left to right.
"""

import re
import unicodedata
from functools import lru_cache

import numpy as np

# A longer word is unknown as a whole.
WORD_CHARS_MAX = 100
# Words remembered with their pieces; a text's words repeat.
WORDS_REMEMBERED = 1 << 16
# Text is taken in portions of about this many characters: what lies behind the last token that fits is not looked at.
PORTION_CHARS = 4096

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Code points that are words of their own though no blanks part them.
CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)


class TextError(ValueError):
    """What a client sent is no text."""


class Characters(dict):
    """What becomes of each character, for `str.translate`; worked out when a character is first met."""

    def __missing__(self, code):
        self[code] = becomes = _becomes(chr(code))
        return becomes


def _becomes(character):
    """Nothing, a blank, a word of its own, or the lower-case character. The text is decomposed (NFD) already."""
    if character in "\t\n\r":
        return " "
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Cs", "Co", "Mn") or character == "\ufffd":
        return ""
    if category in ("Zs", "Zl", "Zp"):
        return " "
    code = ord(character)
    ascii_sign = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    if ascii_sign or category[0] == "P" or any(first <= code <= last for first, last in CHINESE):
        return " " + character + " "
    # One by one: a whole word's lower case would make another sigma at its end.
    return character.lower()


class WordPiece:
    """A vocabulary, and what it makes of texts."""

    def __init__(self, vocabulary_path, tokens_max):
        with open(vocabulary_path, encoding="utf-8") as lines:
            numbers = {line.rstrip("\n"): number for number, line in enumerate(lines)}
        missing = [token for token in SPECIAL if token not in numbers]
        if missing:
            raise ValueError("%s lacks %s" % (vocabulary_path, ", ".join(missing)))
        if tokens_max < 2:
            raise ValueError("tokens_max is %d; the first and the last token of a text alone are two" % tokens_max)
        self.numbers = numbers
        self.tokens_max = tokens_max
        self.padding, self.unknown, self.first, self.last, _ = (numbers[token] for token in SPECIAL)
        self.special = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK)\]")
        self.characters = Characters()
        self.pieces = lru_cache(WORDS_REMEMBERED)(self._pieces)

    def encode_batch(self, texts):
        """The arrays `input_ids` and `attention_mask` of UTF-8 texts; a TextError says which one is none."""
        return self.pad([self.encode_bytes(text, at, len(texts)) for at, text in enumerate(texts)])

    def pad(self, rows):
        """Rows of tokens as the arrays `input_ids` and `attention_mask`, as wide as the longest row."""
        width = max(map(len, rows), default=0)
        input_ids = np.full((len(rows), width), self.padding, dtype=np.int64)
        attention_mask = np.zeros((len(rows), width), dtype=np.int64)
        for at, row in enumerate(rows):
            input_ids[at, : len(row)] = row
            attention_mask[at, : len(row)] = 1
        return input_ids, attention_mask

    def encode_bytes(self, text, at=0, count=1):
        """The tokens of the text that is number `at` of `count`, counted from 0."""
        try:
            return self.encode(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise TextError(
                "text %d of %d is not UTF-8: byte 0x%02x at position %d (%s)"
                % (at + 1, count, text[error.start], error.start, error.reason)
            ) from None

    def encode(self, text):
        """The numbers of a text's tokens between those of its start and end, at most `tokens_max` in all."""
        numbers = [self.first]
        room = self.tokens_max - 1
        for token in self._tokens(text):
            numbers.extend(token)
            if len(numbers) >= room:
                break
        del numbers[room:]
        numbers.append(self.last)
        return numbers

    def _tokens(self, text):
        """The pieces of word after word. A special token written in the text is that token, as for the reference."""
        position = 0
        for special in self.special.finditer(text):
            yield from map(self._known, self._words(text[position : special.start()]))
            yield (self.numbers[special.group()],)
            position = special.end()
        yield from map(self._known, self._words(text[position:] if position else text))

    def _words(self, text):
        """The words in the form that the vocabulary has; only the beginning of one that is too long to be known."""
        begun = ""
        start = 0
        while start < len(text):
            end = min(start + PORTION_CHARS, len(text))
            # A mark belongs to the character before it.
            while end < len(text) and unicodedata.combining(text[end]):
                end += 1
            portion = unicodedata.normalize("NFD", text[start:end]).translate(self.characters)
            *words, begun = (begun + portion).split(" ")
            begun = begun[: WORD_CHARS_MAX + 1]
            yield from filter(None, words)
            start = end
        if begun:
            yield begun

    def _known(self, word):
        return (self.unknown,) if len(word) > WORD_CHARS_MAX else self.pieces(word)

    def _pieces(self, word):
        """The longest pieces from left to right; one unknown token where they do not cover the word."""
        found = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self.numbers.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return (self.unknown,)
            found.append(number)
            start = end
        return tuple(found)
