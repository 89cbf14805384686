"""A mock of a language model with the inputs and outputs of TensorRT-LLM's `tensorrt_llm_bls` and `ensemble`, [1,1]
each (contract/openai.md section 3.3). What a prompt makes it say, and how, is at the head of mock_language.py; the
parameter TOOL_FORM is that of openai_mock."""

import json

import numpy as np
from mock_language import Sampling
from mock_model import Ask, MockModel, first, strings, values

NUMBERS = ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")


class TritonPythonModel(MockModel):
    count_shape = (1, 1)
    count_type = np.int32

    def read(self, request):
        prompt = first(request, "text_input")
        given = {name: first(request, name) for name in NUMBERS}
        stops = values(request, "stop_words")
        given["stop"] = [] if stops is None else [stop.decode() for stop in stops]
        if first(request, "guided_decoding_guide_type") == "json_schema":
            given["schema"] = json.loads(first(request, "guided_decoding_guide"))
        has_echo = not first(request, "exclude_input_in_output", True)
        wants = {name for name in ("num_input_tokens", "num_output_tokens") if first(request, "return_" + name, False)}
        return Ask(prompt, Sampling(given), first(request, "stream", False), has_echo, wants)

    def tensors(self, ask, chunk, reason):
        return {"text_output": strings([[chunk.text]])}
