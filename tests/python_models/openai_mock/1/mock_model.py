"""What the mock models share: a thread for each request, which sends what mock_language.py says in the way that the
commands of the prompt ask for, and a record of what became of the requests."""

import json
import os
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from mock_language import Chunk, Script, chunks, say

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
HANG_S = 900.0
POLL_S = 0.002


class Cancelled(Exception):
    """The client has left."""


class StopAnswer(Exception):
    """The last response was sent."""


def strings(texts):
    return np.array(texts, dtype=np.object_)


def values(request, name):
    """The elements of an input; None: it was not sent."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)


def first(request, name, otherwise=None):
    found = values(request, name)
    if found is None or len(found) == 0:
        return otherwise
    return found[0].decode("utf-8", "replace") if isinstance(found[0], bytes) else found[0].item()


def described(request):
    """The inputs as JSON, for `<<inputs>>`."""

    def plain(value):
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    inputs = {}
    for tensor in request.inputs():
        array = tensor.as_numpy()
        inputs[tensor.name()] = {"shape": list(array.shape), "data": [plain(one) for one in array.reshape(-1).tolist()]}
    return json.dumps({"inputs": inputs, "id": request.request_id(), "parameters": json.loads(request.parameters())})


class Ask:
    """A request as a form of inputs is read."""

    def __init__(self, prompt, sampling, streams, has_echo, wants):
        self.prompt = prompt
        self.sampling = sampling
        self.streams = streams
        self.has_echo = has_echo
        # The names of the optional outputs that are wanted.
        self.wants = wants


class Record:
    """What became of the requests."""

    def __init__(self):
        self.lock = threading.Lock()
        self.named = {}
        self.counts = {"requests": 0, "running": 0, "cancelled": 0}

    def begin(self, name):
        with self.lock:
            self.counts["requests"] += 1
            self.counts["running"] += 1
            self.named[name] = "running"

    def end(self, name, is_cancelled):
        with self.lock:
            self.counts["running"] -= 1
            self.counts["cancelled"] += is_cancelled
            self.named[name] = "cancelled" if is_cancelled else "done"

    def answer(self, script):
        """What a question about the record is answered with; None: it is none."""
        with self.lock:
            if script.has("state"):
                return self.named.get(script.text("state"), "unknown")
            return json.dumps(self.counts) if script.has("totals") else None


class MockModel:
    """A model names its form: `read` makes an Ask of a request, `tensors` the outputs of a chunk."""

    is_cumulative = False
    count_shape = (1,)
    count_type = np.uint32

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.tool_form = self.config.get("parameters", {}).get("TOOL_FORM", {}).get("string_value")
        self.record = Record()
        self.is_ending = threading.Event()
        self.threads = []

    def execute(self, requests):
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        for request in requests:
            thread = threading.Thread(target=self.serve, args=(request, request.get_response_sender()))
            self.threads.append(thread)
            thread.start()
        return None

    def finalize(self):
        self.is_ending.set()
        for thread in self.threads:
            thread.join()

    def serve(self, request, sender):
        try:
            ask = self.read(request)
            script = Script(ask.prompt)
            said = self.record.answer(script)
            if script.has("inputs"):
                said = described(request)
            if said is not None:
                script.commands = {"pieces": json.dumps([said])}
                Answer(self, ask, script, sender).send()
                return
        except Exception as error:
            self.refuse(sender, "Error generating stream: %s" % error, pb_utils.TritonError.INTERNAL)
            return
        name = script.text("name", None)
        self.record.begin(name)
        is_cancelled = False
        try:
            Answer(self, ask, script, sender).send()
        except Cancelled:
            is_cancelled = True
            self.refuse(sender, "Request was cancelled", pb_utils.TritonError.CANCELLED)
        except StopAnswer:
            pass
        except Exception as error:
            self.refuse(sender, "Error generating stream: %s" % error, pb_utils.TritonError.INTERNAL)
        finally:
            self.record.end(name, is_cancelled)

    def refuse(self, sender, text, code):
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code)), FINAL)


class Answer:
    """One answer under way."""

    def __init__(self, model, ask, script, sender):
        self.model = model
        self.ask = ask
        self.script = script
        self.sender = sender
        self.sent = 0
        self.whole = Chunk()

    def send(self):
        said = say(self.ask.prompt, self.ask.sampling, self.script, self.model.tool_form)
        pause_s = self.script.number("sleep", 0) / 1000
        for chunk in chunks(said, self.ask.sampling.stop):
            self.wait(pause_s)
            self.whole.add(chunk)
            if self.ask.streams:
                self.deliver(self.whole if self.model.is_cumulative else chunk, chunk.reason is not None)
            if self.script.has("hang"):
                self.wait(HANG_S)
        if self.whole.reason is None:
            # No token at all.
            self.whole.reason = "length"
            if self.ask.streams:
                self.deliver(self.whole, True)
        if not self.ask.streams:
            if self.ask.has_echo:
                self.whole.text = self.ask.prompt.encode() + self.whole.text
            count = self.script.number("responses", 1)
            for index in range(count):
                self.deliver(self.whole, index + 1 == count)
            if count == 0:
                self.sender.send(flags=FINAL)

    def wait(self, time_s):
        until = time.monotonic() + time_s
        while True:
            if self.sender.is_cancelled():
                raise Cancelled()
            left = until - time.monotonic()
            if left <= 0 or self.model.is_ending.is_set():
                return
            time.sleep(min(POLL_S, left))

    def deliver(self, chunk, is_last):
        """Sends a response, or what the commands ask for in its place."""
        self.sent += 1
        if self.script.number("die", 0) == self.sent:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.script.number("fail", 0) == self.sent:
            code = getattr(pb_utils.TritonError, (self.script.text("fail").split() + ["INTERNAL"])[1])
            self.model.refuse(self.sender, "the mock fails at response %d" % self.sent, code)
            raise StopAnswer()
        final = self.script.text("final", "data")
        is_final = is_last and final == "data"
        self.sender.send(self.response(chunk), FINAL if is_final else 0)
        if is_last and final == "empty":
            self.sender.send(flags=FINAL)
        if is_last and final == "counts":
            end = Chunk()
            end.tokens, end.reason = 1, chunk.reason
            self.sender.send(self.response(end, 1), FINAL)

    def response(self, chunk, prompt_tokens=None):
        script = self.script
        outputs = self.model.tensors(self.ask, chunk, script.text("finish", chunk.reason))
        if prompt_tokens is None:
            prompt_tokens = len(self.ask.prompt.split())
        counts = {"num_input_tokens": prompt_tokens, "num_output_tokens": chunk.tokens}
        for name, count in counts.items():
            if name in self.ask.wants and not script.has("no_counts"):
                outputs[name] = np.full(self.model.count_shape, count, dtype=self.model.count_type)
        if script.has("elements"):
            text = outputs["text_output"].reshape(-1)[0]
            outputs["text_output"] = strings([text] * script.number("elements", 1))
        if script.has("no_text"):
            del outputs["text_output"]
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
