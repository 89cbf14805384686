"""Answers six times: its numbers times 1, 2, … in memory of its own on a device, every second time from a thread."""

import importlib.util
import os
import threading

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        # Memory of a device, as the model beside this one makes it.
        beside = os.path.join(os.path.dirname(args["model_repository"]), "on_gpu", "1", "model.py")
        spec = importlib.util.spec_from_file_location("on_gpu", beside)
        self.on_gpu = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.on_gpu)

    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            numbers = tensor.as_numpy() if tensor.is_cpu() else self.on_gpu.look(tensor)[0]
            sender = request.get_response_sender()
            for time in range(1, 7):
                if time % 2:
                    self.send(sender, numbers, time)
                else:
                    thread = threading.Thread(target=self.send, args=(sender, numbers, time))
                    thread.start()
                    thread.join()
            sender.send(flags=FINAL)
        return None

    def send(self, sender, numbers, time):
        made = pb_utils.Tensor.from_dlpack("OUT", self.on_gpu.Made(numbers * time, 1))
        sender.send(pb_utils.InferenceResponse([made]))
