"""The Responses API through OpenAI's client (contract/openai.md section 5)."""

import json

import openai
from openai_support import each, user

QUESTION = "What is the weather in Dallas, Texas?"
TOOL = {
    "type": "function",
    "name": "get_current_weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


async def answers(api):
    answer = await api.call("responses.create", model="llm", input="<<reply hello>>", instructions="Be short.")
    assert answer.object == "response" and answer.status == "completed" and answer.id.startswith("resp_"), answer
    assert answer.output_text == "hello" and answer.model == "llm"
    assert answer.output[0].type == "message" and answer.output[0].role == "assistant"
    assert answer.instructions == "Be short." and answer.error is None
    assert answer.usage.output_tokens == 1 and answer.usage.input_tokens > 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + 1
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "<<reply parts>>"}]}]
    assert (await api.call("responses.create", model="llm", input=parts)).output_text == "parts"
    cut = await api.call("responses.create", model="llm", input="x", max_output_tokens=4)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut


async def streams(api):
    stream = await api.call("responses.create", model="llm", input='<<pieces ["a","b","c"]>>', stream=True)
    events = [event async for event in each(stream)]
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    for kind in (
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ):
        assert kind in kinds, (kind, kinds)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "abc"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == "abc" and events[-1].response.usage.output_tokens == 3
    manager = api.client.responses.stream(model="llm", input="<<reply helped>>")
    if api.is_async:
        async with manager as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
    else:
        with manager as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
    assert final.output_text == "helped"


async def calls(api):
    answer = await api.call("responses.create", model="llm", input=QUESTION, tools=[TOOL], max_output_tokens=99)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "get_current_weather" and json.loads(call.arguments)["city"] == "Dallas"
    history = user(QUESTION) + [
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": "TX is hot"},
    ]
    again = await api.call("responses.create", model="llm", input=history, tools=[TOOL])
    assert not [item for item in again.output if item.type == "function_call"] and again.output_text
    more = {"tools": [TOOL], "max_output_tokens": 99}
    stream = await api.call("responses.create", model="llm", input=QUESTION, stream=True, **more)
    events = [event async for event in each(stream)]
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(pieces))["city"] == "Dallas" and len(pieces) > 1, pieces


async def failures(api):
    error = await api.refused(openai.BadRequestError, "responses.create", model="absent", input="x")
    assert "Unknown model: absent" in str(error)
    await api.refused(openai.UnprocessableEntityError, "responses.create", model="llm", input="x", temperature=3)
    stream = await api.call(
        "responses.create", model="llm", input='<<fail 2>><<pieces ["a","b"]>>', stream=True
    )
    try:
        kinds = [event.type async for event in each(stream)]
        assert kinds[-1] in ("response.failed", "error"), kinds
    except openai.APIError as error:
        assert "the mock fails at response 2" in str(error)


CASES = [answers, streams, calls, failures]
