"""A mock of a language model with the inputs and outputs of TensorRT-LLM's LLM API model (contract/openai.md section
3.3): one dimension, names with `sampling_param_`, and each response of a stream has the whole text so far. No counts.
What a prompt makes it say, and how, is at the head of mock_language.py."""

from mock_language import Sampling
from mock_model import Ask, MockModel, first, strings, values

NUMBERS = ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")


class TritonPythonModel(MockModel):
    is_cumulative = True

    def read(self, request):
        prompt = first(request, "text_input")
        given = {name: first(request, "sampling_param_" + name) for name in NUMBERS}
        stops = values(request, "sampling_param_stop")
        given["stop"] = [] if stops is None else [stop.decode() for stop in stops]
        has_echo = not first(request, "sampling_param_exclude_input_from_output", True)
        wants = {"finish_reason"} if first(request, "return_finish_reason", False) else set()
        return Ask(prompt, Sampling(given), first(request, "streaming", False), has_echo, wants)

    def tensors(self, ask, chunk, reason):
        outputs = {"text_output": strings([chunk.text])}
        if "finish_reason" in ask.wants:
            outputs["finish_reason"] = strings([str(reason).encode()])
        return outputs
