"""How the next token is chosen: the parameters of a request, by the names and defaults of vLLM."""

import json
import math

import numpy as np

# Parameters that are numbers: the default, the least and the greatest value.
NUMBERS = {
    "max_tokens": (16, 0, None),
    "min_tokens": (0, 0, None),
    "temperature": (1.0, 0, None),
    "top_p": (1.0, 0, 1),
    "top_k": (0, -1, None),
    "min_p": (0.0, 0, 1),
    "frequency_penalty": (0.0, -2, 2),
    "presence_penalty": (0.0, -2, 2),
    "repetition_penalty": (1.0, 0.01, None),
}
WHOLE = ("max_tokens", "min_tokens", "top_k")
LOGPROBS_MAX = 20


class WrongParameter(ValueError):
    """A parameter that cannot be obeyed."""


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Parameters:
    def __init__(self, text):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise WrongParameter("sampling_parameters is not JSON: %s" % error) from None
        if not isinstance(given, dict):
            raise WrongParameter("sampling_parameters is not a JSON object")
        given = {name: value for name, value in given.items() if value is not None}
        for name, (otherwise, least, most) in NUMBERS.items():
            value = given.get(name, otherwise)
            if not is_number(value) or value < least or (most is not None and value > most):
                bounds = "of at least %s" % least if most is None else "from %s to %s" % (least, most)
                raise WrongParameter("%s is %r, which is no number %s" % (name, value, bounds))
            setattr(self, name, int(value) if name in WHOLE else float(value))
        if given.get("n", 1) != 1:
            raise WrongParameter("n is %r; this model gives one answer to a request" % given["n"])
        if "lora_name" in given:
            raise WrongParameter("LoRA %s is not supported: this model has no adapters" % given["lora_name"])
        self.ignore_eos = bool(given.get("ignore_eos", False))
        self.seed = given.get("seed")
        if self.seed is not None and not isinstance(self.seed, int):
            raise WrongParameter("seed is %r, which is no integer" % self.seed)
        self.logprobs = given.get("logprobs")
        if self.logprobs is not None and not (is_number(self.logprobs) and 0 <= self.logprobs <= LOGPROBS_MAX):
            raise WrongParameter("logprobs is %r, which is not from 0 to %d" % (self.logprobs, LOGPROBS_MAX))
        self.logprobs = None if self.logprobs is None else int(self.logprobs)
        stop = given.get("stop", [])
        stop = [stop] if isinstance(stop, str) else stop
        if not isinstance(stop, list) or not all(isinstance(word, str) for word in stop):
            raise WrongParameter("stop is no string and no list of strings")
        self.stop = [word for word in stop if word]
        self.schema = schema_of(given.get("structured_outputs", given.get("guided_decoding")))


def schema_of(guide):
    """The JSON schema that the answer is held to; None: it is free."""
    if guide is None:
        return None
    try:
        guide = json.loads(guide) if isinstance(guide, str) else guide
        schema = guide["json"]
        schema = json.loads(schema) if isinstance(schema, str) else schema
    except (KeyError, TypeError, ValueError):
        raise WrongParameter("this model can be guided by a JSON schema only") from None
    if not isinstance(schema, dict):
        raise WrongParameter("the JSON schema is no object")
    return schema


class Sampler:
    """Chooses the tokens of one answer."""

    def __init__(self, parameters, vocabulary):
        self.parameters = parameters
        seed = parameters.seed
        self.random = np.random.default_rng(None if seed is None else [abs(seed), int(seed < 0)])
        self.used = np.zeros(vocabulary, dtype=np.float32)

    def choose(self, logits, allowed):
        """One of the tokens that the mask allows."""
        given = self.parameters
        logits = logits - given.frequency_penalty * self.used - given.presence_penalty * (self.used > 0)
        if given.repetition_penalty != 1:
            factor = np.where(self.used > 0, given.repetition_penalty, 1.0)
            logits = np.where(logits > 0, logits / factor, logits * factor)
        logits = np.where(allowed, logits, -np.inf)
        token = int(np.argmax(logits)) if given.temperature < 1e-4 else self.draw(logits)
        self.used[token] += 1
        return token

    def draw(self, logits):
        given = self.parameters
        weights = np.exp((logits - logits.max()).astype(np.float64) / given.temperature)
        order = np.argsort(-weights, kind="stable")
        shares = weights[order] / weights.sum()
        # The fewest tokens that have top_p together.
        kept = int(np.searchsorted(np.cumsum(shares), min(given.top_p, 1 - 1e-12))) + 1
        if given.top_k > 0:
            kept = min(kept, given.top_k)
        kept = max(min(kept, int((shares >= given.min_p * shares[0]).sum())), 1)
        sums = np.cumsum(shares[:kept])
        return int(order[min(int(np.searchsorted(sums, self.random.random() * sums[-1])), kept - 1)])


def logprobs_of(logits, token, count, text_of):
    """The log probability of the chosen token and of the likeliest ones, as vLLM reports them."""
    highest = logits.max()
    values = logits - (highest + np.log(np.exp(logits - highest).sum()))

    def entry(at, rank):
        return {"logprob": float(values[at]), "rank": rank, "decoded_token": text_of(at)}

    found = {str(token): entry(token, int((values > values[token]).sum()) + 1)}
    for rank, at in enumerate(np.argsort(-values, kind="stable")[:count], 1):
        found.setdefault(str(int(at)), entry(int(at), rank))
    return found
