"""Streams a call of get_current_weather as Mistral's models write it, in pieces of eight characters, with the inputs
and outputs of TensorRT-LLM's models, all inputs optional. A last response of empty text has FINAL; each response counts
one token. A prompt with `big-tool-args` makes the argument 2,000 letters long: the limit of what is parsed is tested
with it. `<<state>>` answers with what became of the request before: running, done or cancelled."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PIECE = 8


def response(text):
    outputs = [pb_utils.Tensor("text_output", np.array([[text.encode()]], dtype=np.object_))]
    for name in ("num_input_tokens", "num_output_tokens"):
        outputs.append(pb_utils.Tensor(name, np.array([[1]], dtype=np.int32)))
    return pb_utils.InferenceResponse(outputs)


class TritonPythonModel:
    def initialize(self, args):
        self.state = "unknown"

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
            prompt = b"" if tensor is None else tensor.as_numpy().reshape(-1)[0]
            if b"<<state>>" in prompt:
                sender.send(response(self.state))
                sender.send(response(""), FINAL)
                continue
            city = "A" * (2000 if b"big-tool-args" in prompt else 5)
            self.state = "running"
            text = '[TOOL_CALLS][{"name": "get_current_weather", "arguments": {"city": "%s"}}]' % city
            for start in range(0, len(text), PIECE):
                sender.send(response(text[start : start + PIECE]))
            self.state = "cancelled" if sender.is_cancelled() else "done"
            sender.send(response(""), FINAL)
        return None
