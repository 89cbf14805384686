"""Holds an answer to a JSON schema: says before each token which ones are allowed.

The names and the punctuation of the document are given by the schema; the network chooses the values. Objects have all
of their properties, arrays one element, and strings are short, because a small network would not end them well. What
the schema leaves open, or says in a way that is not known here, is a string.
"""

import json

DEPTH_MAX = 8
STRING_TOKENS_MAX = 8


class Guide:
    """A generator for each answer: it yields the tokens that are allowed, and is sent the one that was chosen."""

    def __init__(self, encode, bytes_of):
        self.encode = encode
        plain = set(range(0x20, 0x7F)) - set(b'"\\')
        self.plain = [token for token, text in bytes_of.items() if text and set(text) <= plain]
        self.digits = [token for token, text in bytes_of.items() if text and set(text) <= set(b"123456789")]
        self.quote = next(token for token, text in bytes_of.items() if text == b'"')

    def of(self, schema, depth=0):
        if depth > DEPTH_MAX or not isinstance(schema, dict):
            schema = {}
        options = schema.get("enum", [schema["const"]] if "const" in schema else None)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind[0] if isinstance(kind, list) and kind else kind
        if isinstance(options, list) and options:
            yield from self.one_of(options)
        elif kind == "object":
            yield from self.object(schema.get("properties"), depth)
        elif kind == "array":
            yield from self.text("[")
            yield from self.of(schema.get("items"), depth + 1)
            yield from self.text("]")
        elif kind in ("integer", "number"):
            yield self.digits
        elif kind == "boolean":
            yield from self.one_of([True, False])
        elif kind == "null":
            yield from self.text("null")
        else:
            yield from self.string()

    def text(self, text):
        for token in self.encode(text):
            yield [token]

    def object(self, properties, depth):
        properties = properties if isinstance(properties, dict) else {}
        before = "{"
        for name, member in properties.items():
            yield from self.text(before + json.dumps(name, ensure_ascii=False) + ": ")
            yield from self.of(member, depth + 1)
            before = ", "
        yield from self.text("{}" if before == "{" else "}")

    def string(self):
        yield [self.quote]
        for _ in range(STRING_TOKENS_MAX):
            chosen = yield self.plain + [self.quote]
            if chosen == self.quote:
                return
        yield [self.quote]

    def one_of(self, options):
        left = [self.encode(json.dumps(option, ensure_ascii=False)) for option in options]
        at = 0
        while True:
            chosen = yield sorted({tokens[at] for tokens in left if at < len(tokens)})
            at += 1
            left = [tokens for tokens in left if tokens[at - 1 : at] == [chosen]]
            # One that another one begins with ends here.
            if any(len(tokens) == at for tokens in left):
                return
