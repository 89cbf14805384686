"""A text through an engine by calls of models: to identifiers, through the engine's decoupled responses, to texts. Its
coroutines overlap: each request is a task of the instance's event loop."""

import asyncio
import json

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Failed(Exception):
    """A step's response is an error."""

    def __init__(self, error):
        super().__init__(error.message())
        self.error = error


def output(response, name):
    if response.has_error():
        raise Failed(response.error())
    return pb_utils.get_output_tensor_by_name(response, name)


def ask(model, inputs, name, cause):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=inputs, requested_output_names=[name], request_id=cause.request_id()
    )


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*[self.answer(request) for request in requests])
        return None

    async def answer(self, request):
        sender = request.get_response_sender()
        try:
            await self.stream(request, sender)
            sender.send(flags=FINAL)
        except Failed as failed:
            sender.send(pb_utils.InferenceResponse(error=failed.error), FINAL)

    async def stream(self, request, sender):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(1, 1)
        count = pb_utils.get_input_tensor_by_name(request, "COUNT")
        encode = ask("llm_text", [pb_utils.Tensor("TEXT", text)], "IDS", request)
        ids = output(await encode.async_exec(), "IDS").as_numpy().reshape(-1)
        # An engine that is not decoupled gives one response, also in this way.
        engine = json.loads(request.parameters() or "{}").get("engine", "llm_api")
        engine = ask(engine, [pb_utils.Tensor("IDS", ids), count], "IDS", request)
        responses = await engine.async_exec(decoupled=True)
        for response in responses:
            if sender.is_cancelled():
                responses.cancel()
                return
            if not response.has_error() and not response.output_tensors():
                continue
            ids = output(response, "IDS").as_numpy().reshape(1, -1)
            decode = ask("llm_text", [pb_utils.Tensor("IDS", ids)], "TEXT", request)
            text = output(await decode.async_exec(), "TEXT").as_numpy().reshape(-1)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
