"""Holds the example's tokeniser against the reference.

python minilm_tokens.py <directory of wordpiece.py and vocab.txt> <wheel>
"""

import random
import sys
import unicodedata

from connect import expect
from minilm_network import TOKENS_MAX, Reference

# Blocks in which every character is as old as the reference's tables of Unicode.
BLOCKS = [
    (0x0001, 0x061C), (0x0E00, 0x0E80), (0x1E00, 0x2000), (0x2000, 0x2E40), (0x2E80, 0x3100), (0x3400, 0x3480),
    (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xE000, 0xE010), (0xF900, 0xFB00), (0xFE00, 0x10000), (0x1D400, 0x1D800),
    (0x1F300, 0x1F700), (0x20000, 0x20100), (0x2F800, 0x2FA20),
]
WORDS = [
    "the", "The", "unbelievable", "résumé", "naïve", "ΣΑΣ", "İstanbul", "straße", "don't", "e-mail", "3.14", "#tag",
    "##ing", "[SEP]", "[CLS]", "[PAD]", "[MASK]", "[UNK]", "[sep]", "[", "]", "a" * 100, "a" * 101, "x" * 500, " ",
    "   ", "\n", "\t", "\u00a0", "\u3000", "\u200b", "\0", "\ufffd", "北京", "ｶﾅ", "한국", "👍🏽", "e\u0301", "\u0301",
]
CASES = [
    "", " ", "\0", "Hello, World!", "I saw a girl with a telescope.", "What's up?", "[CLS] twice [SEP]", "a[MASK]b",
    "Ünïcödé ÀÉÎ ñ", "日本語とenglishが混ざる", "tokenisation", "1,000,000.00", "x" * 100, "x" * 101, "word " * 1000,
    "字" * 1000, "!" * 1000, " " * 10000 + "end", "\u0301" * 5000 + "a", "e" + "\u0301" * 5000 + "a",
]


def main():
    sys.path.insert(0, sys.argv[1])
    import wordpiece

    reference = Reference(sys.argv[2])
    ours = wordpiece.WordPiece(sys.argv[1] + "/vocab.txt", TOKENS_MAX)

    def same(text):
        expect(f"tokens of {text[:200]!r}", ours.encode(text), reference.tokens(text))

    for text in CASES:
        same(text)
    print(f"{len(CASES)} chosen texts agree")

    characters = [chr(code) for first, end in BLOCKS for code in range(first, end)]
    # Inside of a word, after a word, alone; many in a text, as asking takes longer than answering.
    whole = wordpiece.WordPiece(sys.argv[1] + "/vocab.txt", 1 << 20)
    reference.tokenizer.no_truncation()
    for at in range(0, len(characters), 200):
        text = " ".join(f"a{character}b b{character} {character}" for character in characters[at : at + 200])
        expect(f"tokens of {text!r}", whole.encode(text), reference.tokens(text))
    reference.tokenizer.enable_truncation(TOKENS_MAX)
    print(f"{len(characters)} characters agree")

    chance = random.Random(7)
    usual = wordpiece.PORTION_CHARS
    for at in range(1500):
        count = chance.randint(0, 60)
        parts = [chance.choice(WORDS if chance.random() < 0.6 else characters) for _ in range(count)]
        # Where the text is parted makes no difference.
        wordpiece.PORTION_CHARS = chance.randint(1, 20) if at % 3 else usual
        same("".join(parts) if at % 2 else " ".join(parts))
    wordpiece.PORTION_CHARS = usual
    print("1500 random texts agree")

    texts = ["A short one.", "", "A somewhat longer sentence, this is."]
    ids, mask = ours.encode_batch([text.encode() for text in texts])
    lengths = [len(reference.tokens(text)) for text in texts]
    expect("shapes", (ids.shape, mask.shape), ((3, max(lengths)), (3, max(lengths))))
    expect("tokens of each row", mask.sum(axis=1).tolist(), lengths)
    for row, text in enumerate(texts):
        expect("row", ids[row].tolist(), reference.tokens(text) + [0] * (max(lengths) - lengths[row]))
    for text, at in ((b"\xff", 0), (b"good \xe4", 5), ("ü".encode()[:1], 0), (b"\xed\xa0\x80", 0)):
        try:
            ours.encode_batch([b"good", text])
        except wordpiece.TextError as error:
            said = str(error).split(" (")[0]
            expect("refusal", said, f"text 2 of 2 is not UTF-8: byte 0x{text[at]:02x} at position {at}")
        else:
            raise SystemExit(f"{text!r} was taken for text")
    print("padding and refusals are right")

    # A text of which only the beginning counts is not worked through.
    class Counted:
        characters = 0

        @classmethod
        def normalize(cls, form, text):
            cls.characters += len(text)
            return unicodedata.normalize(form, text)

        def __getattr__(self, name):
            return getattr(unicodedata, name)

    wordpiece.unicodedata = Counted()
    expect("tokens of 24 MB", len(ours.encode("and so on and so forth, " * 1000000)), TOKENS_MAX)
    expect("characters looked at", Counted.characters, wordpiece.PORTION_CHARS)


if __name__ == "__main__":
    main()
