"""Drives an engine for language models as programs for such engines do: its event loop is in a thread, `execute` only
starts tasks in it, another thread sends the responses, and `finalize` ends both."""

import asyncio
import json
import os
import queue
import threading
import uuid

import numpy as np
import triton_python_backend_utils as pb_utils
from fake_engine import EngineDead, engine_of

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

INPUTS = [
    {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
    {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
    {"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    {"name": "return_finish_reason", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
    {"name": "return_num_output_tokens", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
]
OUTPUTS = [
    {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "num_output_tokens", "data_type": "TYPE_UINT32", "dims": [-1]},
]


class Metrics:
    """The engine's statistics, which a thread of their own turns into metrics."""

    def __init__(self, labels):
        family = pb_utils.MetricFamily
        self.families = [
            family(name="engine:tokens_total", description="Tokens of all sequences", kind=family.COUNTER),
            family(name="engine:aborted_total", description="Sequences aborted", kind=family.COUNTER),
            family(name="engine:running", description="Sequences under way", kind=family.GAUGE),
            family(name="engine:tokens_of_request", description="Tokens of a sequence", kind=family.HISTOGRAM),
        ]
        tokens, aborted, running, lengths = self.families
        self.metrics = {
            "tokens": tokens.Metric(labels=labels).increment,
            "aborted": aborted.Metric(labels=labels).increment,
            "running": running.Metric(labels=labels).set,
            "length": lengths.Metric(labels=labels, buckets=[1, 10, 100]).observe,
        }
        self.queue = queue.Queue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        for name, value in iter(self.queue.get, None):
            self.metrics[name](value)

    def tell(self, name, value):
        self.queue.put_nowait(("running" if name == "step" else name, value))

    def end(self):
        self.queue.put(None)
        self.thread.join()


class TritonPythonModel:
    @classmethod
    def auto_complete_config(cls, auto_complete_model_config):
        config = auto_complete_model_config.as_dict()
        present = {one["name"] for side in ("input", "output") for one in config[side]}
        for one in INPUTS:
            if one["name"] not in present:
                auto_complete_model_config.add_input(one)
        for one in OUTPUTS:
            if one["name"] not in present:
                auto_complete_model_config.add_output(one)
        auto_complete_model_config.set_model_transaction_policy(dict(decoupled=True))
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        assert pb_utils.using_decoupled_model_transaction_policy(self.config)
        assert args["model_instance_kind"] == "MODEL", args
        output = pb_utils.get_output_config_by_name(self.config, "text_output")
        self.text_type = pb_utils.triton_string_to_numpy(output["data_type"])
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.arguments = json.load(file)
        self.is_checked = self.parameter("ENABLE_ENGINE_HEALTH_CHECK") == "true"
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.metrics = Metrics(labels) if self.parameter("REPORT_CUSTOM_METRICS") == "yes" else None
        self.responses = queue.Queue()
        self.sending = threading.Thread(target=self.send_responses)
        self.sending.start()
        self.engine = None
        self.under_way = 0
        self.has_started = threading.Condition()
        self.running = threading.Thread(target=asyncio.run, args=(self.run_engine(),))
        self.running.start()
        with self.has_started:
            self.has_started.wait_for(lambda: self.engine is not None)
        if isinstance(self.engine, Exception):
            self.end_threads()
            raise self.engine

    def parameter(self, name):
        return self.config.get("parameters", {}).get(name, {}).get("string_value")

    def tell(self, name, value):
        if self.metrics is not None:
            self.metrics.tell(name, value)

    async def run_engine(self):
        self.loop = asyncio.get_running_loop()
        self.end = asyncio.Event()
        try:
            async with engine_of(self.arguments, self.tell) as engine:
                self.announce(engine)
                await self.end.wait()
                while self.under_way > 0:
                    await asyncio.sleep(0.01)
        except Exception as error:
            self.announce(error)

    def announce(self, engine):
        with self.has_started:
            self.engine = engine
            self.has_started.notify_all()

    def execute(self, requests):
        for request in requests:
            parameters, lora, wrong = self.sampling(request)
            if wrong is not None:
                error = pb_utils.TritonError(wrong, pb_utils.TritonError.INVALID_ARG)
                request.get_response_sender().send(pb_utils.InferenceResponse(output_tensors=[], error=error), FINAL)
                continue
            asyncio.run_coroutine_threadsafe(self.infer(request, parameters, lora), self.loop)
        return None

    def sampling(self, request):
        """Parameters of the sampling, the adapter, and what is wrong with them."""
        tensor = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
        # Without the tensor, the request's own parameters are the sampling's.
        text = request.parameters() if tensor is None else tensor.as_numpy()[0].decode("utf-8")
        parameters = json.loads(text) if text else {}
        lora = parameters.pop("lora_name", None)
        known = self.arguments["loras"]
        if lora is not None and lora not in known:
            return parameters, None, "LoRA %s is not supported, we currently support %s" % (lora, known)
        return parameters, lora, None

    def flag(self, request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return False if tensor is None else bool(tensor.as_numpy()[0])

    async def infer(self, request, parameters, lora):
        sender = request.get_response_sender()
        state = {"sender": sender, "is_cancelled": False, "is_last": False}
        name = uuid.uuid4().hex
        self.under_way += 1
        try:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode("utf-8")
            streams = self.flag(request, "stream")
            if prompt == "die":
                self.engine.die()
            before = ""
            async for output in self.engine.generate(name, prompt, parameters, lora):
                self.tell("tokens", 1)
                if state["is_cancelled"] or (not streams and sender.is_cancelled()):
                    pb_utils.Logger.log_info("llm_engine: cancelled a request")
                    await self.engine.abort(name)
                    raise asyncio.CancelledError()
                if output.finished:
                    self.tell("length", len(output.token_ids))
                if streams or output.finished:
                    self.put(state, self.response(request, output, before if streams else ""), output.finished)
                    before = output.text
        except asyncio.CancelledError:
            error = pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED)
            self.put(state, pb_utils.InferenceResponse(error=error), True)
        except EngineDead as error:
            error = pb_utils.TritonError(str(error), pb_utils.TritonError.UNAVAILABLE)
            self.put(state, pb_utils.InferenceResponse(error=error), True)
        except Exception as error:
            error = pb_utils.TritonError("Error generating stream: %s" % error)
            text = pb_utils.Tensor("text_output", np.asarray(["N/A"], dtype=self.text_type))
            self.put(state, pb_utils.InferenceResponse(output_tensors=[text], error=error), True)
        finally:
            self.under_way -= 1

    def response(self, request, output, before):
        text = output.text[len(before) :]
        tensors = [pb_utils.Tensor("text_output", np.asarray([text.encode()], dtype=self.text_type))]
        if self.flag(request, "return_finish_reason"):
            reason = np.asarray([str(output.finish_reason)], dtype=np.object_)
            tensors.append(pb_utils.Tensor("finish_reason", reason))
        if self.flag(request, "return_num_output_tokens"):
            count = np.asarray([len(output.token_ids)], dtype=np.uint32)
            tensors.append(pb_utils.Tensor("num_output_tokens", count))
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def put(self, state, response, is_last):
        state["is_last"] = is_last
        self.responses.put_nowait((state, response, FINAL if is_last else 0))

    def send_responses(self):
        for state, response, flags in iter(self.responses.get, None):
            try:
                state["sender"].send(response, flags)
                if not state["is_last"]:
                    state["is_cancelled"] = state["sender"].is_cancelled()
            except Exception as error:
                pb_utils.Logger.log_error("llm_engine: a response cannot be sent: %s" % error)

    async def is_ready(self):
        if not self.is_checked:
            return True
        future = asyncio.run_coroutine_threadsafe(self.engine.check_health(), self.loop)
        try:
            await asyncio.wrap_future(future)
        except EngineDead:
            return False
        return True

    def end_threads(self):
        self.running.join()
        self.responses.put(None)
        self.sending.join()
        if self.metrics is not None:
            self.metrics.end()

    def finalize(self):
        self.loop.call_soon_threadsafe(self.end.set)
        self.end_threads()
        pb_utils.Logger.log_info("llm_engine: finalized with %d requests under way" % self.under_way)
