"""The engine: one thread that advances all answers under way by one token per step, and takes new ones in between.

A step computes the next token of every sequence at once. A long prompt is read in pieces, one per step, so that the
answers of others go on meanwhile.
"""

import codecs
import queue
import threading

import numpy as np
from sampling import Sampler, logprobs_of

SEQUENCES_MAX = 32
PROMPT_PIECE = 128


class Piece:
    """What one token, or several, add to an answer. `reason` says why it has ended, in the last piece."""

    def __init__(self):
        self.text = ""
        self.tokens = 0
        self.logprobs = []
        self.cumulative = 0.0
        self.reason = None

    def add(self, other):
        self.text += other.text
        self.tokens += other.tokens
        self.logprobs += other.logprobs
        self.cumulative = other.cumulative
        self.reason = other.reason


class Text:
    """Makes text of tokens: whole characters, and nothing that may be the beginning of a stop word."""

    def __init__(self, stops):
        self.stops = stops
        self.longest = max(map(len, stops), default=0)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = ""

    def push(self, contents, is_last):
        """The text that can be sent, and whether a stop word ended it."""
        self.held += self.decoder.decode(contents, is_last)
        found = [at for at in map(self.held.find, self.stops) if at >= 0]
        if found:
            return self.held[: min(found)], True
        kept = 0
        if not is_last:
            sizes = range(1, min(self.longest - 1, len(self.held)) + 1)
            kept = max((size for size in sizes if self.begins(self.held[-size:])), default=0)
        sent, self.held = self.held[: len(self.held) - kept], self.held[len(self.held) - kept :]
        return sent, False

    def begins(self, end):
        return any(stop.startswith(end) for stop in self.stops)


class Sequence:
    """An answer under way. `deliver` is called with each piece, `is_cancelled` before each step."""

    def __init__(self, model, prompt, parameters, deliver, is_cancelled):
        self.model = model
        self.unread = prompt
        self.parameters = parameters
        self.deliver = deliver
        self.is_cancelled = is_cancelled
        self.cache = model.network.new_cache()
        self.sampler = Sampler(parameters, model.vocabulary)
        self.text = Text(parameters.stop)
        # The context ends an answer too.
        self.tokens_max = min(parameters.max_tokens, model.context - len(prompt))
        self.tokens = 0
        self.cumulative = 0.0
        self.guide = self.allowed_ids = None
        if parameters.schema is not None:
            self.guide = model.guide.of(parameters.schema)
            self.allowed_ids = next(self.guide)

    def next_tokens(self):
        taken, self.unread = self.unread[:PROMPT_PIECE], self.unread[PROMPT_PIECE:]
        return taken

    def allowed(self):
        if self.guide is not None:
            mask = np.zeros(self.model.vocabulary, dtype=bool)
            mask[self.allowed_ids] = True
            return mask
        is_end_allowed = not self.parameters.ignore_eos and self.tokens >= self.parameters.min_tokens
        return self.model.all_tokens if is_end_allowed else self.model.all_but_end

    def advance(self, logits):
        """Chooses a token; whether the answer has ended."""
        token = self.sampler.choose(logits, self.allowed())
        self.tokens += 1
        piece = Piece()
        piece.tokens = 1
        known = logprobs_of(logits, token, self.parameters.logprobs or 0, self.model.text_of)
        self.cumulative += known[str(token)]["logprob"]
        piece.cumulative = self.cumulative
        if self.parameters.logprobs is not None:
            piece.logprobs.append(known)
        if token == self.model.end or self.is_guide_done(token):
            piece.reason = "stop"
        elif self.tokens >= self.tokens_max:
            piece.reason = "length"
        piece.text, is_stopped = self.text.push(self.model.bytes_of[token], piece.reason is not None)
        if is_stopped:
            piece.reason = "stop"
        self.unread = [token]
        self.deliver(piece)
        return piece.reason is not None

    def is_guide_done(self, token):
        if self.guide is None:
            return False
        try:
            self.allowed_ids = self.guide.send(token)
        except StopIteration:
            return True
        return False


class Engine:
    def __init__(self, network, report):
        self.network = network
        # Told of a sequence that failed.
        self.report = report
        self.new = queue.Queue()
        self.running = []
        self.is_ending = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def begin(self, sequence):
        self.new.put(sequence)

    def end(self):
        """Ends when all answers are complete."""
        self.new.put(None)
        self.thread.join()

    def run(self):
        while not self.is_ending or self.running:
            self.take()
            self.drop_cancelled()
            if self.running:
                self.step()

    def take(self):
        """Takes new sequences; waits for one if there is none to advance."""
        while len(self.running) < SEQUENCES_MAX and not (self.is_ending and self.new.empty()):
            try:
                sequence = self.new.get(block=not self.running)
            except queue.Empty:
                return
            if sequence is None:
                self.is_ending = True
            else:
                self.running.append(sequence)

    def drop_cancelled(self):
        for sequence in [one for one in self.running if one.is_cancelled()]:
            self.running.remove(sequence)
            self.report(sequence, None)

    def step(self):
        logits = self.network.step([one.next_tokens() for one in self.running], [one.cache for one in self.running])
        ended = []
        for sequence, row in zip(self.running, logits):
            if sequence.unread:
                continue
            try:
                if sequence.advance(row):
                    ended.append(sequence)
            except Exception as error:
                ended.append(sequence)
                self.report(sequence, error)
        self.running = [sequence for sequence in self.running if sequence not in ended]
