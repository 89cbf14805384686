"""Answers COUNT times, by the way that HOW names: the end with the last response or alone, from a thread, …"""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(number, how):
    text = np.array([f"{how} {number}".encode()], dtype=np.object_)
    outputs = [pb_utils.Tensor("OUT", np.array([number], dtype=np.int32)), pb_utils.Tensor("TEXT", text)]
    return pb_utils.InferenceResponse(outputs)


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            how = pb_utils.get_input_tensor_by_name(request, "HOW")
            how = "plain" if how is None else how.as_numpy()[0].decode()
            sender = request.get_response_sender()
            if how.startswith("thread"):
                thread = threading.Thread(target=self.answer, args=(sender, count, how))
                self.threads.append(thread)
                thread.start()
            else:
                self.answer(sender, count, how)
            if how == "raise":
                raise ValueError("after the responses")
            if how == "value":
                return [response(0, how)]
        return None

    def answer(self, sender, count, how):
        """`together` and `thread together` end with the last response, the others with a message of its own."""
        for number in range(count):
            last = number + 1 == count and how.endswith("together")
            if how == "errors" and number % 2 == 1:
                error = pb_utils.TritonError(f"number {number}", pb_utils.TritonError.NOT_FOUND)
                sender.send(pb_utils.InferenceResponse(error=error))
            elif how == "bare":
                sender.send(pb_utils.InferenceResponse([]))
            else:
                sender.send(response(number, how), FINAL if last else 0)
        if how not in ("raise", "value") and (count == 0 or not how.endswith("together")):
            sender.send(flags=FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
