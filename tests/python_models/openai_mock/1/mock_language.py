"""The language of the mock models for OpenAI's interface: what a prompt makes them say, token by token.

Without commands a mock says words of a small vocabulary, one per token: which ones depends on the prompt, the
temperature, top_p, the penalties and the seed, as with a language model; without a seed each answer is another one.
With a guide (a JSON schema) it says a document of that schema. Commands stand in the prompt as `<<name argument>>`,
wherever a template puts them; a later one of the same name wins. What is to be said:

    <<reply TEXT>>         TEXT as one token
    <<pieces ["a", "b"]>>  each string of the JSON array as a token
    <<hex e4 bda0>>        each group of hexadecimal digits as a token of these bytes: they need not be UTF-8
    <<tool FORM [N]>>      a call of get_current_weather as models of that form write it (llama3, mistral, hermes), N
                           letters A for the city, in pieces of four characters
    <<cut N>>              cuts what is said by the commands above into pieces of N characters (not with hex)
    <<length N>>           N words, then the end (64 otherwise): what ignore_eos and min_tokens are about
    <<inputs>>             the inputs of the request as a JSON object {name: {"shape", "data"}}, and "id", "parameters"
    <<state KEY>>          of the request that had <<name KEY>>: unknown, running, done or cancelled
    <<totals>>             {"requests", "running", "cancelled"} of this model as JSON, without this request

Texts by these commands obey `stop`, not `max_tokens`. How it is said:

    <<name KEY>>           under which <<state KEY>> finds this request
    <<sleep MS>>           before each token
    <<hang>>               after the first token nothing more, until the request is cancelled (or 900 s)
    <<fail K [CODE]>>      the K-th response (from 1) is an error with that code of Triton (INTERNAL) and the last
    <<die K>>              the process is killed instead of sending the K-th response
    <<final empty>>        the FINAL flag comes alone; <<final counts>>: with an empty text, and 1 for both counts;
                           else with the last token
    <<responses N>>        not streaming: N responses, 0 too, each with the whole text; the last is FINAL
    <<elements N>>         N texts in text_output; 0 is an output without elements
    <<no_text>>            no output text_output
    <<no_counts>>          no num_input_tokens and num_output_tokens
    <<finish REASON>>      this finish_reason
    <<logprob X>>          the chosen tokens have the log probability X (-0.5, NaN, -Infinity)
"""

import json
import re
import zlib

import numpy as np

_COMMAND = re.compile(r"<<(\w+)(?: (.*?))?>>", re.DOTALL)
WORDS = (
    "the a red blue green small large old new quick slow river house garden road bridge tower window door table stone "
    "tree leaf bird fish horse dog cat child friend teacher farmer sailor reads writes sees finds keeps gives takes "
    "builds opens closes walks runs sings sleeps under over near behind before after with without and but then while "
    "often never always here there again today"
).split()
FIRST_ID = 100
LENGTH = 64
_WEATHER = {"city": "Dallas", "state": "TX", "unit": "fahrenheit", "num_days": 5}


class Sampling:
    """Parameters of the sampling; those that are not given are those of vLLM."""

    def __init__(self, given):
        def number(name, otherwise):
            value = given.get(name)
            return otherwise if value is None else value

        self.max_tokens = number("max_tokens", 16)
        self.min_tokens = number("min_tokens", 0)
        self.ignore_eos = bool(number("ignore_eos", False))
        self.temperature = number("temperature", 1.0)
        self.top_p = number("top_p", 1.0)
        self.frequency_penalty = number("frequency_penalty", 0.0)
        self.presence_penalty = number("presence_penalty", 0.0)
        self.seed = given.get("seed")
        stop = given.get("stop") or []
        self.stop = [text.encode() for text in ([stop] if isinstance(stop, str) else stop) if text]
        self.logprobs = given.get("logprobs")
        self.schema = given.get("schema")


class Token:
    """Bytes, and the log probabilities of what could stand there, the chosen one first."""

    def __init__(self, text, logprobs, reason=None):
        self.text = text
        self.logprobs = logprobs
        # Of the last token: why there is no more.
        self.reason = reason


class Script:
    """The commands of a prompt."""

    def __init__(self, prompt):
        self.commands = {name: argument for name, argument in _COMMAND.findall(prompt)}

    def has(self, name):
        return name in self.commands

    def text(self, name, otherwise=""):
        return self.commands.get(name, otherwise)

    def number(self, name, otherwise):
        return int(self.commands[name].split()[0]) if name in self.commands else otherwise

    def pieces(self):
        """What the commands say, as bytes of tokens; None: they say nothing."""
        if self.has("hex"):
            return [bytes.fromhex(group) for group in self.text("hex").split()]
        if self.has("pieces"):
            pieces = json.loads(self.text("pieces"))
        elif self.has("tool"):
            form, *size = self.text("tool").split()
            arguments = {"city": "A" * int(size[0])} if size else {name: _WEATHER[name] for name in list(_WEATHER)[:3]}
            pieces = cut(tool_call(form, "get_current_weather", arguments), 4)
        elif self.has("reply"):
            pieces = [self.text("reply")]
        else:
            return None
        if self.has("cut"):
            pieces = cut("".join(pieces), self.number("cut", 1))
        return [piece.encode("utf-8", "surrogatepass") for piece in pieces]


def cut(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


def tool_call(form, name, arguments):
    """A call as models of that form write it."""
    if form == "llama3":
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    if form == "mistral":
        return "[TOOL_CALLS][%s]" % call
    if form == "hermes":
        return "<tool_call>\n%s\n</tool_call>" % call
    raise ValueError("there is no form of tool calls '%s'" % form)


def document(schema, name=""):
    """A value that the schema admits: of the words about the weather where a member has such a name."""
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if name in _WEATHER and kind in ("string", "integer", "number"):
        return _WEATHER[name]
    if "enum" in schema:
        return schema["enum"][0]
    if kind == "object":
        return {name: document(member, name) for name, member in schema.get("properties", {}).items()}
    if kind == "array":
        return [document(schema.get("items", {}))]
    return {"integer": 1, "number": 1.5, "boolean": True, "null": None}.get(kind, "text")


def scripted(pieces, sampling, chosen):
    """Tokens of given texts; they are likely, and the alternatives are made up."""
    for index, piece in enumerate(pieces):
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = {str(index): entry(chosen, 1, piece.decode("utf-8", "replace"))}
            for rank in range(2, sampling.logprobs + 1):
                logprobs[str(10_000 + rank)] = entry(-float(rank), rank, "other%d" % rank)
        yield Token(piece, logprobs, "stop" if index + 1 == len(pieces) else None)


def entry(logprob, rank, text):
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


def words(prompt, length, sampling, chosen):
    """Sampled tokens, up to the length that the prompt asks for or the limit."""
    length = sampling.max_tokens if sampling.ignore_eos else max(length, sampling.min_tokens)
    count = min(length, sampling.max_tokens)
    random = np.random.default_rng(None if sampling.seed is None else abs(int(sampling.seed)))
    used = np.zeros(len(WORDS))
    before = zlib.crc32(prompt.encode("utf-8", "surrogatepass"))
    for at in range(count):
        table = np.random.default_rng([before, at])
        likely = table.normal(size=len(WORDS)) * 2.0
        logits = likely - sampling.frequency_penalty * used - sampling.presence_penalty * (used > 0)
        index = pick(logits, sampling, random)
        used[index] += 1
        before = zlib.crc32(WORDS[index].encode(), before)
        text = (" " if at else "") + WORDS[index]
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = alternatives(likely, index, sampling.logprobs, " " if at else "", chosen)
        reason = None if at + 1 < count else "stop" if count == length and not sampling.ignore_eos else "length"
        yield Token(text.encode(), logprobs, reason)


def pick(logits, sampling, random):
    if sampling.temperature == 0 or sampling.top_p == 0:
        return int(np.argmax(logits))
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    order = np.argsort(-weights, kind="stable")
    shares = weights[order] / weights.sum()
    # The fewest words that have top_p together.
    kept = int(np.searchsorted(np.cumsum(shares), min(sampling.top_p, 1.0 - 1e-9))) + 1
    point = random.random() * shares[:kept].sum()
    return int(order[min(int(np.searchsorted(np.cumsum(shares[:kept]), point)), kept - 1)])


def alternatives(logits, index, count, blank, chosen):
    """The chosen word first, then the likeliest ones by rank, without the chosen one again."""
    values = logits - (np.log(np.exp(logits - logits.max()).sum()) + logits.max())
    order = np.argsort(-values, kind="stable")
    rank = int(np.flatnonzero(order == index)[0]) + 1
    logprob = float(values[index]) if chosen is None else chosen
    result = {str(FIRST_ID + index): entry(logprob, rank, blank + WORDS[index])}
    for at in order[:count]:
        place = int(np.flatnonzero(order == at)[0]) + 1
        result.setdefault(str(FIRST_ID + int(at)), entry(float(values[at]), place, blank + WORDS[at]))
    return result


def say(prompt, sampling, script, tool_form):
    """The tokens of an answer before stop words are looked for."""
    chosen = float(script.text("logprob")) if script.has("logprob") else None
    pieces = script.pieces()
    if pieces is None and sampling.schema is not None:
        pieces = [piece.encode() for piece in cut(json.dumps(document(sampling.schema)), 4)]
    asked = prompt.rfind("weather in Dallas")
    if pieces is None and tool_form and asked >= 0 and '"get_current_weather"' in prompt:
        # As a model does that was trained for tools: it calls one, unless the call stands behind the question already.
        if "TX" not in prompt[asked:]:
            arguments = {name: _WEATHER[name] for name in ("city", "state", "unit")}
            pieces = [piece.encode() for piece in cut(tool_call(tool_form, "get_current_weather", arguments), 4)]
    if pieces is not None:
        return scripted(pieces, sampling, -0.5 if chosen is None else chosen)
    return words(prompt, script.number("length", LENGTH), sampling, chosen)


class Chunk:
    """What one response has: the tokens since the one before."""

    def __init__(self):
        self.text = b""
        self.tokens = 0
        self.logprobs = []
        self.reason = None

    def add(self, other):
        self.text += other.text
        self.tokens += other.tokens
        self.logprobs += other.logprobs
        self.reason = other.reason


def chunks(tokens, stops):
    """One chunk for each token. Text that may be the beginning of a stop word waits; the last chunk has a reason."""
    held = b""
    longest = max(map(len, stops), default=0)
    for token in tokens:
        chunk = Chunk()
        chunk.tokens = 1
        chunk.logprobs = [token.logprobs]
        held += token.text
        found = min((at for at in map(held.find, stops) if at >= 0), default=None)
        if found is not None:
            chunk.text, chunk.reason = held[:found], "stop"
            yield chunk
            return
        kept = 0
        if token.reason is None:
            kept = max((n for n in range(min(longest, len(held) + 1)) if _begins(held, n, stops)), default=0)
        chunk.text, held = held[: len(held) - kept], held[len(held) - kept :]
        chunk.reason = token.reason
        yield chunk
        if token.reason is not None:
            return


def _begins(text, size, stops):
    return size > 0 and any(stop.startswith(text[len(text) - size :]) for stop in stops)
