"""An engine with the interface of those for language models: asynchronous, with one background task that advances all
of its sequences by one token per step."""

import asyncio
import contextlib


class EngineDead(Exception):
    """The background task has ended."""


class Output:
    """What a sequence has become after a step: its whole text so far."""

    def __init__(self, text, token_ids, finish_reason):
        self.text = text
        self.token_ids = token_ids
        self.finish_reason = finish_reason
        self.finished = finish_reason is not None


class _Sequence:
    def __init__(self, prompt, parameters, lora):
        self.words = prompt.split()
        self.parameters = parameters
        self.lora = lora
        self.text = ""
        self.ids = []
        self.outputs = asyncio.Queue()

    def advance(self):
        """The next token repeats the prompt; returns whether the sequence has ended."""
        at = len(self.ids)
        limit = self.parameters.get("max_tokens", 16)
        if at == self.parameters.get("fail_at"):
            self.outputs.put_nowait(ValueError("token %d cannot be sampled" % at))
            return True
        word = "%s.%d" % (self.words[at % len(self.words)], at)
        self.text += (" " if at else "") + (word if self.lora is None else "%s:%s" % (self.lora, word))
        self.ids.append(at)
        reason = "length" if len(self.ids) == limit else None
        self.outputs.put_nowait(Output(self.text, list(self.ids), reason))
        return reason is not None


class Engine:
    def __init__(self, arguments, statistics):
        self.step_s = arguments["step_s"]
        self.statistics = statistics
        self.sequences = {}
        self.is_dead = False
        self.work = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self.run())

    async def run(self):
        """The background task."""
        while not self.is_dead:
            if not self.sequences:
                self.statistics("step", 0)
                self.work.clear()
                await self.work.wait()
            for name, sequence in list(self.sequences.items()):
                if sequence.advance():
                    self.sequences.pop(name, None)
            self.statistics("step", len(self.sequences))
            await asyncio.sleep(self.step_s)
        for sequence in self.sequences.values():
            sequence.outputs.put_nowait(EngineDead("the engine has died"))
        self.sequences.clear()

    async def generate(self, name, prompt, parameters, lora):
        """Yields the sequence's outputs."""
        if self.is_dead:
            raise EngineDead("the engine has died")
        if not prompt:
            raise ValueError("the prompt is empty")
        sequence = self.sequences[name] = _Sequence(prompt, parameters, lora)
        self.work.set()
        try:
            while True:
                output = await sequence.outputs.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finished:
                    return
        finally:
            self.sequences.pop(name, None)

    async def abort(self, name):
        if self.sequences.pop(name, None) is not None:
            self.statistics("aborted", 1)

    async def check_health(self):
        if self.is_dead or self.task.done():
            raise EngineDead("the engine has died")

    def die(self):
        self.is_dead = True
        self.work.set()


@contextlib.asynccontextmanager
async def engine_of(arguments, statistics):
    """An engine that lives as long as the block."""
    if "step_s" not in arguments:
        raise KeyError("step_s")
    engine = Engine(arguments, statistics)
    try:
        yield engine
    finally:
        engine.task.cancel()
