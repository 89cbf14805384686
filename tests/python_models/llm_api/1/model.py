"""Drives an engine that works on token identifiers, decoupled or not as a file beside it says. In both modes the
responses go through senders, also after `execute` has returned, and a thread looks for cancelled requests. The engine
has a process of its own, which `finalize` ends, and an exit function."""

import asyncio
import atexit
import json
import os
import subprocess
import sys
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def settings(directory):
    with open(os.path.join(directory, "model.json")) as file:
        return json.load(file)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        known = settings(pb_utils.get_model_dir())
        auto_complete_model_config.set_max_batch_size(known["max_batch_size"])
        auto_complete_model_config.set_model_transaction_policy({"decoupled": known["decoupled"]})
        return auto_complete_model_config

    def initialize(self, args):
        self.settings = settings(pb_utils.get_model_dir())
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))
        assert self.is_decoupled == self.settings["decoupled"]
        self.tasks = {}
        self.lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self.running = threading.Thread(target=self.loop.run_forever)
        self.running.start()
        self.is_over = threading.Event()
        self.checking = threading.Thread(target=self.check_cancelled)
        self.checking.start()
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        atexit.register(pb_utils.Logger.log_info, "llm_api: at exit")

    def execute(self, requests):
        for request in requests:
            task = asyncio.run_coroutine_threadsafe(self.answer(request), self.loop)
            with self.lock:
                self.tasks[task] = request.get_response_sender()
            task.add_done_callback(self.forget)
        return None

    def forget(self, task):
        with self.lock:
            self.tasks.pop(task, None)

    def check_cancelled(self):
        while not self.is_over.wait(self.settings["check_s"]):
            with self.lock:
                cancelled = [task for task, sender in self.tasks.items() if sender.is_cancelled()]
            for task in cancelled:
                task.cancel()

    async def answer(self, request):
        """Repeats the identifiers, each raised by one per step; a negative count never ends."""
        sender = request.get_response_sender()
        try:
            ids = pb_utils.get_input_tensor_by_name(request, "IDS").as_numpy().copy()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            step = 0
            while count < 0 or step < count:
                await asyncio.sleep(0.001)
                step += 1
                is_last = step == count
                if self.is_decoupled or is_last:
                    sender.send(self.response(ids + step), FINAL if is_last else 0)
            if count == 0:
                raise ValueError("no identifiers are asked for")
        except asyncio.CancelledError:
            pb_utils.Logger.log_info("llm_api: cancelled a request")
            error = pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED)
            sender.send(pb_utils.InferenceResponse(error=error), FINAL)
        except Exception as error:
            error = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            sender.send(pb_utils.InferenceResponse(error=error), FINAL)

    def response(self, ids):
        return pb_utils.InferenceResponse([pb_utils.Tensor("IDS", ids.astype(np.int32))])

    def finalize(self):
        self.is_over.set()
        self.checking.join()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.running.join()
        self.process.terminate()
        pb_utils.Logger.log_info("llm_api: the engine's process ended with %d" % self.process.wait())
