"""Calls of tools and documents of a schema through OpenAI's client (contract/openai.md section 1.6)."""

import json

import openai
import pydantic
from openai_support import text_of, user

QUESTION = "What is the weather in Dallas, Texas, in Fahrenheit?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "state": {"type": "string"},
                "unit": {"type": "string", "enum": ["fahrenheit", "celsius"]},
            },
            "required": ["city", "state", "unit"],
        },
    },
}
FORECAST = {
    "type": "function",
    "function": {
        "name": "get_n_day_weather_forecast",
        "description": "The weather of the next days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "num_days": {"type": "integer"}},
            "required": ["city", "num_days"],
        },
    },
}
TOOLS = [WEATHER, FORECAST]
DALLAS = {"city": "Dallas", "state": "TX", "unit": "fahrenheit"}
MODELS = ("llm", "trt")


def asked(model, **more):
    return {"model": model, "messages": user(QUESTION), "tools": TOOLS, "max_tokens": 128, "temperature": 0.0, **more}


def joined(chunks):
    """Calls of a stream: [identifier, name, arguments]."""
    calls = []
    for part in [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]:
        if part.index == len(calls):
            assert part.id and part.type == "function" and part.function.name, part
            calls.append([part.id, part.function.name, ""])
        else:
            assert part.function.name is None, "the name comes once"
        calls[part.index][2] += part.function.arguments or ""
    return calls


async def automatic(api):
    for model in MODELS:
        for choice in ({}, {"tool_choice": "auto"}):
            answer = (await api.chat(**asked(model, **choice))).choices[0]
            assert answer.finish_reason == "tool_calls" and not answer.message.content, answer
            (call,) = answer.message.tool_calls
            assert len(call.id) >= 9 and call.type == "function" and call.function.name == "get_current_weather"
            assert json.loads(call.function.arguments) == DALLAS
            chunks = await api.stream("chat.completions.create", **asked(model, **choice))
            (streamed,) = joined(chunks)
            assert streamed[1:] == [call.function.name, call.function.arguments], streamed
            reasons = [chunk.choices[0].finish_reason for chunk in chunks]
            assert reasons[-1] == "tool_calls" and not any(reasons[:-1]), reasons
            assert text_of(chunks) == ""


async def replies(api):
    """The result of a call goes back to the model, which then says something."""
    for model in MODELS:
        first = (await api.chat(**asked(model))).choices[0].message
        messages = user(QUESTION) + [first.model_dump(exclude_none=True)]
        messages.append({"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "It is 99 F in Dallas."})
        answer = (await api.chat(**{**asked(model), "messages": messages})).choices[0]
        assert answer.message.tool_calls is None and answer.message.content, answer
        assert answer.finish_reason in ("stop", "length")


async def forced(api):
    named = {"type": "function", "function": {"name": "get_n_day_weather_forecast"}}
    for model in MODELS:
        for choice, name in ((named, "get_n_day_weather_forecast"), ("required", "get_current_weather")):
            answer = (await api.chat(**asked(model, tool_choice=choice))).choices[0]
            (call,) = answer.message.tool_calls
            assert call.function.name == name and json.loads(call.function.arguments)["city"] == "Dallas"
            assert answer.finish_reason == "stop"
            chunks = await api.stream("chat.completions.create", **asked(model, tool_choice=choice))
            (streamed,) = joined(chunks)
            assert streamed[1:] == [name, call.function.arguments]
            assert chunks[-1].choices[0].finish_reason == "stop"
        none = (await api.chat(**asked(model, tool_choice="none", max_tokens=8))).choices[0].message
        assert none.tool_calls is None and none.content


async def inconsistent(api):
    absent = {"type": "function", "function": {"name": "absent"}}
    required = '"required" tool choice requires CreateChatCompletionRequest.tools to be provided'
    for more, text in (
        ({"tool_choice": absent, "tools": TOOLS}, "Tool 'absent' has not been passed in `tools`."),
        ({"tool_choice": absent}, "Named tool choice requires CreateChatCompletionRequest.tools to be provided"),
        ({"tool_choice": "required"}, required),
    ):
        error = await api.refused(
            openai.BadRequestError, "chat.completions.create", model="llm", messages=user("x"), **more
        )
        assert text in str(error), error


async def stream_helper(api):
    """The client's own accumulation of a stream."""
    # Older clients take no others here.
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    for messages, tools in ((user(QUESTION), True), (user('<<pieces ["one"," two"]>>'), False)):
        more = {"tools": strict} if tools else {}
        manager = api.client.chat.completions.stream(model="llm", messages=messages, max_tokens=128, **more)
        kinds = []
        if api.is_async:
            async with manager as stream:
                async for event in stream:
                    kinds.append(event.type)
                final = await stream.get_final_completion()
        else:
            with manager as stream:
                for event in stream:
                    kinds.append(event.type)
                final = stream.get_final_completion()
        message = final.choices[0].message
        if tools:
            assert "tool_calls.function.arguments.done" in kinds, kinds
            assert json.loads(message.tool_calls[0].function.arguments) == DALLAS
            assert final.choices[0].finish_reason == "tool_calls"
        else:
            assert message.content == "one two" and "content.done" in kinds, kinds


class Forecast(pydantic.BaseModel):
    city: str
    num_days: int
    is_sure: bool


async def documents(api):
    """What the client makes of a type is a schema to which the model is held."""
    asked = {"model": "llm", "messages": user("x"), "response_format": Forecast, "max_tokens": 99}
    parsed = await api.call("chat.completions.parse", **asked)
    assert parsed.choices[0].message.parsed == Forecast(city="Dallas", num_days=5, is_sure=True), parsed


CASES = [automatic, replies, forced, inconsistent, stream_helper, documents]
