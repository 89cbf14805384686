"""Says a text as often as it is asked to (once where it is not), with a number and its parameters."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            repeat = pb_utils.get_input_tensor_by_name(request, "REPEAT")
            count = 1 if repeat is None else int(repeat.as_numpy()[0])
            sender = request.get_response_sender()
            for number in range(count):
                outputs = [
                    pb_utils.Tensor("text_output", text),
                    pb_utils.Tensor("NUMBER", np.array([number, -number], dtype=np.int32)),
                ]
                if text[0] == b"fail" and number == 1:
                    error = pb_utils.TritonError("in the middle", pb_utils.TritonError.UNAVAILABLE)
                    sender.send(pb_utils.InferenceResponse(error=error))
                    continue
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
