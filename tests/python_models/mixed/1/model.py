"""Answers each of three requests in the way that it names: by what execute returns, or by its sender."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(text):
    array = np.array([[text.encode()]], dtype=np.object_)
    return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", array)])


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        results = []
        for request in requests:
            how = request.inputs()[0].as_numpy()[0][0].decode()
            results.append(getattr(self, how)(request))
        return None if all(result is None for result in results) else results

    def finalize(self):
        for thread in self.threads:
            thread.join()

    def later(self, work):
        thread = threading.Thread(target=work)
        self.threads.append(thread)
        thread.start()

    def respond(self, request):
        return response("returned")

    def send(self, request):
        request.get_response_sender().send(response("sent"), FINAL)

    def send_in_two(self, request):
        sender = request.get_response_sender()
        sender.send(response("sent in two"))
        sender.send(flags=FINAL)

    def send_later(self, request):
        sender = request.get_response_sender()
        self.later(lambda: sender.send(response("sent later"), FINAL))

    def end_later(self, request):
        sender = request.get_response_sender()
        sender.send(response("ended later"))
        self.later(lambda: sender.send(flags=FINAL))

    def send_by_another(self, request):
        """Sent by another thread, before execute returns."""
        sender = request.get_response_sender()
        thread = threading.Thread(target=sender.send, args=(response("sent by another"), FINAL))
        thread.start()
        thread.join()

    def complain(self, request):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("complained", pb_utils.TritonError.NOT_FOUND))

    def both(self, request):
        self.send(request)
        return response("returned as well")

    def text(self, request):
        return "a text"

    def misuse(self, request):
        """What a sender says to each wrong use, as one text."""
        sender = request.get_response_sender()
        said = []
        for arguments in (
            {"flags": FINAL},
            {},
            {"response": response(""), "flags": 2},
            {"response": response("the only one"), "flags": FINAL},
            {"response": response("one more")},
            {"flags": FINAL},
        ):
            try:
                sender.send(**arguments)
                said.append("sent")
            except pb_utils.TritonModelException as error:
                said.append(str(error))
        print("mixed: the sender said " + "|".join(said), flush=True)

    def raises(self, request):
        raise ValueError("raised in the middle")
