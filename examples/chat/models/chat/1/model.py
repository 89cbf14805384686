"""The model `chat`: a small language model, with the inputs and outputs of Triton's vLLM backend.

The engine answers from its own thread, after `execute` has returned. With `stream` each token is a response of its own;
without, the whole answer is one.
"""

import json
import pathlib

import numpy as np
import tokenizers
import triton_python_backend_utils as pb_utils
from engine import Engine, Piece, Sequence
from guide import Guide
from network import Network
from sampling import Parameters, WrongParameter
from threadpoolctl import threadpool_limits

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
OPTIONAL_OUTPUTS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
BEGIN, END = "<|begin|>", "<|end|>"


def byte_alphabet():
    """The byte for each character of a byte-level vocabulary: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    characters.update({chr(256 + at): byte for at, byte in enumerate(others)})
    return characters


class LanguageModel:
    """Network and tokenizer."""

    def __init__(self, folder):
        stored = np.load(folder / "weights.npz")
        heads, self.context = (int(number) for number in stored["shape"])
        self.network = Network({name: stored[name] for name in stored.files if name != "shape"}, heads)
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder.parent / "tokenizer" / "tokenizer.json"))
        self.vocabulary = self.tokenizer.get_vocab_size()
        self.begin = self.tokenizer.token_to_id(BEGIN)
        self.end = self.tokenizer.token_to_id(END)
        alphabet = byte_alphabet()
        special = {token for token, about in self.tokenizer.get_added_tokens_decoder().items() if about.special}
        self.bytes_of = {token: b"" for token in special}
        for token in set(range(self.vocabulary)) - special:
            self.bytes_of[token] = bytes(alphabet[character] for character in self.tokenizer.id_to_token(token))
        self.all_tokens = np.ones(self.vocabulary, dtype=bool)
        self.all_tokens[sorted(special - {self.end})] = False
        self.all_but_end = self.all_tokens.copy()
        self.all_but_end[self.end] = False
        self.guide = Guide(self.encode, self.bytes_of)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def text_of(self, token):
        return self.bytes_of[token].decode("utf-8", "replace") or self.tokenizer.id_to_token(token)

    def prompt(self, text):
        """The tokens of a prompt; a chat template has begun it already."""
        tokens = self.encode(text)
        return tokens if tokens[:1] == [self.begin] else [self.begin] + tokens


def value(request, name, otherwise):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return otherwise
    found = tensor.as_numpy().reshape(-1)[0]
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else bool(found)


def strings(text):
    return np.array([text.encode("utf-8", "replace")], dtype=np.object_)


class Reply:
    """Sends the pieces of one answer in the form that its request asks for."""

    def __init__(self, request, model):
        self.sender = request.get_response_sender()
        self.prompt = value(request, "text_input", "")
        self.streams = value(request, "stream", False)
        self.wants = [name for name in OPTIONAL_OUTPUTS if value(request, "return_" + name, False)]
        self.whole = Piece()
        self.has_echo = not value(request, "exclude_input_in_output", self.streams)
        if self.has_echo and self.streams:
            raise WrongParameter("When streaming, `exclude_input_in_output` = False is not allowed.")
        self.parameters = Parameters(value(request, "sampling_parameters", "{}"))
        self.tokens = model.prompt(self.prompt)
        if len(self.tokens) >= model.context:
            text = "the prompt has %d tokens; this model takes fewer than %d, the answer included"
            raise WrongParameter(text % (len(self.tokens), model.context))

    def deliver(self, piece):
        if self.streams:
            self.sender.send(self.response(piece), FINAL if piece.reason else 0)
            return
        self.whole.add(piece)
        if piece.reason:
            if self.has_echo:
                self.whole.text = self.prompt + self.whole.text
            self.sender.send(self.response(self.whole), FINAL)

    def response(self, piece):
        arrays = {
            "finish_reason": lambda: strings(str(piece.reason)),
            "cumulative_logprob": lambda: np.array([piece.cumulative], dtype=np.float32),
            "logprobs": lambda: strings(json.dumps(piece.logprobs or None, ensure_ascii=False)),
            "num_input_tokens": lambda: np.array([len(self.tokens)], dtype=np.uint32),
            "num_output_tokens": lambda: np.array([piece.tokens], dtype=np.uint32),
        }
        outputs = [pb_utils.Tensor("text_output", strings(piece.text))]
        outputs += [pb_utils.Tensor(name, arrays[name]()) for name in self.wants]
        return pb_utils.InferenceResponse(outputs)


def fail(sender, text, code):
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code)), FINAL)


class TritonPythonModel:
    def initialize(self, args):
        # The matrices are small: more threads of numpy's library would only wait for each other.
        threadpool_limits(1)
        self.model = LanguageModel(pathlib.Path(__file__).resolve().parent)
        self.engine = Engine(self.model.network, self.report)

    def execute(self, requests):
        for request in requests:
            try:
                reply = Reply(request, self.model)
            except (WrongParameter, RecursionError) as error:
                fail(request.get_response_sender(), str(error), pb_utils.TritonError.INVALID_ARG)
                continue
            if reply.parameters.max_tokens == 0:
                nothing = Piece()
                nothing.reason = "length"
                reply.deliver(nothing)
                continue
            self.engine.begin(
                Sequence(self.model, reply.tokens, reply.parameters, reply.deliver, reply.sender.is_cancelled)
            )
        return None

    def report(self, sequence, error):
        sender = sequence.deliver.__self__.sender
        if error is None:
            fail(sender, "Request was cancelled", pb_utils.TritonError.CANCELLED)
        else:
            pb_utils.Logger.log_error("chat: an answer failed: %r" % error)
            fail(sender, "Error generating stream: %s" % error, pb_utils.TritonError.INTERNAL)

    def finalize(self):
        self.engine.end()
