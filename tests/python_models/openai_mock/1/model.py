"""A mock of a language model with the inputs and outputs of Triton's vLLM backend (contract/openai.md section 3.2).
What a prompt makes it say, and how, is at the head of mock_language.py. As the script of a Python-based backend, in a
folder `vllm` of the backend directory, it serves models with `backend: "vllm"`, which complete their configuration
from `auto_complete_config`. The parameter TOOL_FORM (llama3, mistral, hermes) makes it call get_current_weather by
itself where a prompt has that tool and asks for the weather in Dallas."""

import json

import numpy as np
from mock_language import Sampling
from mock_model import Ask, MockModel, first, strings

WANTED = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
INPUTS = [("stream", "BOOL"), ("sampling_parameters", "STRING"), ("exclude_input_in_output", "BOOL")]
OUTPUTS = [
    ("text_output", "STRING", -1),
    ("finish_reason", "STRING", -1),
    ("cumulative_logprob", "FP32", -1),
    ("logprobs", "STRING", -1),
    ("num_input_tokens", "UINT32", 1),
    ("num_output_tokens", "UINT32", -1),
]


class TritonPythonModel(MockModel):
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        for name, kind in INPUTS + [("return_" + name, "BOOL") for name in WANTED]:
            config.add_input({"name": name, "data_type": "TYPE_" + kind, "dims": [1], "optional": True})
        for name, kind, size in OUTPUTS:
            config.add_output({"name": name, "data_type": "TYPE_" + kind, "dims": [size]})
        return config

    def read(self, request):
        prompt = first(request, "text_input")
        given = json.loads(first(request, "sampling_parameters", "{}"))
        guide = given.get("structured_outputs")
        if guide is not None:
            schema = json.loads(guide)["json"]
            given["schema"] = json.loads(schema) if isinstance(schema, str) else schema
        streams = first(request, "stream", False)
        has_echo = not first(request, "exclude_input_in_output", streams)
        if has_echo and streams:
            raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
        wants = {name for name in WANTED if first(request, "return_" + name, False)}
        return Ask(prompt, Sampling(given), streams, has_echo, wants)

    def tensors(self, ask, chunk, reason):
        outputs = {"text_output": strings([chunk.text])}
        if "finish_reason" in ask.wants:
            outputs["finish_reason"] = strings([str(reason).encode()])
        known = [one for one in chunk.logprobs if one is not None]
        if "cumulative_logprob" in ask.wants:
            total = sum(next(iter(one.values()))["logprob"] for one in known)
            outputs["cumulative_logprob"] = np.array([total], dtype=np.float32)
        if "logprobs" in ask.wants:
            text = json.dumps(known if ask.sampling.logprobs is not None else None, ensure_ascii=False)
            outputs["logprobs"] = strings([text.encode()])
        return outputs
