"""OpenAI's own client against a whole server, synchronous and asynchronous: what its users rely on (contract/openai.md
section 4). Prints a line for each case.

The models are mocks: `llm` has vLLM's inputs, `trt` those of TensorRT-LLM, `embed` turns texts into vectors. Commands
in prompts say what they answer (tests/python_models/openai_mock/1/mock_language.py)."""

import argparse
import asyncio
import base64
import json
import struct
import time

import openai
from openai_support import Both, each, text_of, user

GREEDY = {"temperature": 0.0, "max_tokens": 24}


async def models(api):
    listed = [model async for model in listing(api)]
    names = sorted(model.id for model in listed)
    assert {"llm", "trt", "embed"} <= set(names), names
    assert all(model.object == "model" and model.created > 0 for model in listed)
    one = await api.call("models.retrieve", model="llm")
    assert (one.id, one.owned_by) == ("llm", "Triton Inference Server")
    error = await api.refused(openai.NotFoundError, "models.retrieve", model="absent")
    assert error.status_code == 404 and "Unknown model: absent" in str(error)


async def listing(api):
    # The asynchronous client returns what can be awaited and iterated.
    pages = api.client.models.list()
    async for model in each(pages):
        yield model


async def completions(api):
    for model in ("llm", "trt"):
        answer = await api.complete(model=model, prompt="Machine learning is")
        assert answer.id.startswith("cmpl-") and answer.object == "text_completion", answer
        assert answer.model == model and answer.created > 1_700_000_000
        assert len(answer.choices) == 1 and answer.choices[0].index == 0
        assert len(answer.choices[0].text.split()) == 16, answer
        assert answer.choices[0].finish_reason == "length", answer
        usage = answer.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 16, 19), usage
        echoed = await api.complete(model=model, prompt="Machine learning is", echo=True)
        assert echoed.choices[0].text.startswith("Machine learning is")


async def chats(api):
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is <<reply machine>>?"}]
    for model in ("llm", "trt"):
        answer = await api.chat(model=model, messages=messages)
        assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion", answer
        message = answer.choices[0].message
        assert (message.role, message.content, message.tool_calls) == ("assistant", "machine", None), message
        assert answer.choices[0].finish_reason == "stop"
        parts = [{"role": "user", "content": [{"type": "text", "text": "<<reply x"}, {"type": "text", "text": "y>>"}]}]
        assert (await api.chat(model=model, messages=parts)).choices[0].message.content == "x\ny"
        # The newer name wins.
        both = await api.chat(model=model, messages=user("x"), max_tokens=9, max_completion_tokens=2, seed=1)
        assert len(both.choices[0].message.content.split()) == 2
        developer = [{"role": "developer", "content": "<<reply dev>>"}, {"role": "user", "content": "x"}]
        assert (await api.chat(model=model, messages=developer)).choices[0].message.content == "dev"


async def streams_equal_answers(api):
    for model in ("llm", "trt"):
        whole = await api.chat(model=model, messages=user("tell me"), **GREEDY)
        chunks = await api.stream("chat.completions.create", model=model, messages=user("tell me"), **GREEDY)
        assert text_of(chunks) == whole.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant"
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        assert reasons[-1] == "length" and not any(reasons[:-1]), reasons
        assert len({chunk.id for chunk in chunks}) == 1 and len(chunks) > 3
        whole = await api.complete(model=model, prompt="tell me", **GREEDY)
        chunks = await api.stream("completions.create", model=model, prompt="tell me", **GREEDY)
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        assert reasons[-1] == "length" and not any(reasons[:-1]), reasons
        assert sum(bool(chunk.choices[0].text) for chunk in chunks) > 1


async def usage_of_streams(api):
    for path, more in (
        ("chat.completions.create", {"messages": user("a b c")}),
        ("completions.create", {"prompt": "a b c"}),
    ):
        whole = await api.call(path, model="llm", seed=3, **more)
        chunks = await api.stream(path, model="llm", seed=3, stream_options={"include_usage": True}, **more)
        assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage, chunks[-1]
        assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
        without = await api.stream(path, model="llm", seed=3, stream_options={"include_usage": False}, **more)
        assert all(chunk.usage is None and chunk.choices for chunk in without)
        error = await api.refused(openai.BadRequestError, path, model="llm", stream_options={}, **more)
        assert "`stream_options` can only be used when `stream` is True" in str(error)


async def stop_words(api):
    whole = (await api.complete(model="llm", prompt="go", **GREEDY)).choices[0].text
    word = whole.split()[3]
    for stop in (word, [word], ["never there", word]):
        stopped = await api.complete(model="llm", prompt="go", stop=stop, **GREEDY)
        assert whole.startswith(stopped.choices[0].text) and word not in stopped.choices[0].text
        assert stopped.choices[0].finish_reason == "stop"
        chunks = await api.stream("completions.create", model="llm", prompt="go", stop=stop, **GREEDY)
        assert "".join(chunk.choices[0].text for chunk in chunks) == stopped.choices[0].text


async def log_probabilities(api):
    asked = {"model": "llm", "messages": user("x y"), "logprobs": True, "top_logprobs": 3, **GREEDY}
    whole = (await api.chat(**asked)).choices[0]
    content = whole.logprobs.content
    assert "".join(one.token for one in content) == whole.message.content
    assert all(bytes(one.bytes).decode() == one.token and one.logprob <= 0 for one in content)
    assert all(one.top_logprobs[0].logprob == one.logprob and len(one.top_logprobs) == 3 for one in content)
    chunks = await api.stream("chat.completions.create", **asked)
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert streamed == content
    plain = (await api.complete(model="llm", prompt="x y", logprobs=2, **GREEDY)).choices[0]
    logprobs = plain.logprobs
    lists = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    sizes = {len(values) for values in lists}
    assert sizes == {24}, sizes
    assert all(plain.text[at:].startswith(token) for at, token in zip(logprobs.text_offset, logprobs.tokens))
    chat = "chat.completions.create"
    error = await api.refused(openai.BadRequestError, chat, model="trt", messages=user("x"), logprobs=True)
    assert "logprobs are currently available only for the vLLM backend" in str(error)
    error = await api.refused(openai.BadRequestError, chat, model="llm", messages=user("x"), top_logprobs=2)
    assert "`top_logprobs` can only be used when `logprobs` is True" in str(error)


async def errors(api):
    for more in (
        {"temperature": 2.1},
        {"top_p": -0.1},
        {"frequency_penalty": 2.5},
        {"presence_penalty": -2.5},
        {"max_tokens": -1},
        {"n": 0},
        {"extra_body": {"unknown_member": 1}},
    ):
        error = await api.refused(
            openai.UnprocessableEntityError, "chat.completions.create", model="llm", messages=user("x"), **more
        )
        assert error.response.json()["detail"][0]["msg"] and error.body["message"], error.body
    for path, more in (("chat.completions.create", {"messages": user("x")}), ("completions.create", {"prompt": "x"})):
        error = await api.refused(openai.BadRequestError, path, model="absent", **more)
        assert error.body["message"] == "Unknown model: absent" and error.code == "model_not_found", error.body
        assert error.type == "invalid_request_error"
        error = await api.refused(openai.BadRequestError, path, model="llm", n=2, **more)
        assert "Received n=2, but only single choice (n=1) is currently supported" in str(error)
    error = await api.refused(openai.InternalServerError, "completions.create", model="llm", prompt="<<fail 1>>")
    assert error.status_code == 500 and "the mock fails at response 1" in str(error)
    # Before a stream the same; within it the client raises what the event says.
    await api.refused(openai.InternalServerError, "completions.create", model="llm", prompt="<<fail 1>>", stream=True)
    stream = await api.chat(model="llm", messages=user('<<fail 3>><<pieces ["a","b","c"]>>'), stream=True)
    seen = []
    try:
        async for chunk in each(stream):
            seen.append(chunk)
        raise AssertionError("the stream must fail")
    except openai.APIError as error:
        assert error.message == "the mock fails at response 3", error
    assert text_of(seen) == "ab"
    stranger = Both(api.client.with_options(api_key="wrong"))
    error = await stranger.refused(openai.AuthenticationError, "models.retrieve", model="llm")
    assert error.status_code == 401 and error.code == "invalid_api_key", error.body


async def raw_answers(api):
    raw = await api.call("chat.completions.with_raw_response.create", model="llm", messages=user("<<reply raw>>"),
                         extra_headers={"X-Request-Id": "my-own-id"})
    assert raw.status_code == 200 and raw.headers["x-request-id"] == "my-own-id"
    assert raw.headers["content-type"] == "application/json"
    parsed = raw.parse()
    parsed = await parsed if hasattr(parsed, "__await__") else parsed
    assert parsed.choices[0].message.content == "raw" and parsed._request_id == "my-own-id"
    answer = await api.complete(model="llm", prompt="<<reply x>>")
    assert answer._request_id, "the server makes an identifier"


async def timeouts_and_leaving(api):
    # A client that is slow gives up before the server has its request: it then waits longer.
    for seconds in (0.5, 5, 50):
        hasty = Both(api.client.with_options(timeout=seconds, max_retries=0))
        key = "late-%s-%s" % (api.name, seconds)
        prompt = "<<name %s>><<hang>>" % key
        await hasty.refused(openai.APITimeoutError, "completions.create", model="llm", prompt=prompt)
        if await api.says("<<state %s>>" % key) != "unknown":
            break
    await becomes(api, key, "cancelled")
    key = "left-" + api.name
    stream = await api.chat(model="llm", messages=user('<<name %s>><<hang>><<pieces ["a","b"]>>' % key), stream=True)
    async for chunk in each(stream):
        if chunk.choices[0].delta.content == "a":
            break
    await becomes(api, key, "running")
    closed = stream.close()
    if closed is not None:
        await closed
    await becomes(api, key, "cancelled")


async def becomes(api, key, state):
    until = time.monotonic() + 300
    while (said := await api.says("<<state %s>>" % key)) != state:
        assert time.monotonic() < until, "request %s is %s, not %s" % (key, said, state)
        await asyncio.sleep(0.01)


async def embeddings(api):
    numbers = [0.5, -0.25, 3.0e-05, 1.0]
    text = "<<vector %s>> and words" % json.dumps(numbers)
    floats = await api.call("embeddings.create", model="embed", input=text, encoding_format="float")
    assert floats.object == "list" and floats.model == "embed" and floats.data[0].object == "embedding"
    assert floats.data[0].index == 0 and len(floats.data) == 1
    expected = list(struct.unpack("<4f", struct.pack("<4f", *numbers)))
    assert [round(one, 9) for one in floats.data[0].embedding] == [round(one, 9) for one in numbers]
    assert floats.usage.prompt_tokens == len(text.split()) == floats.usage.total_tokens, floats.usage
    coded = await api.call("embeddings.create", model="embed", input=text, encoding_format="base64")
    assert list(struct.unpack("<4f", base64.b64decode(coded.data[0].embedding))) == expected
    # The client asks for base64 itself, and decodes it.
    usual = await api.call("embeddings.create", model="embed", input=text)
    assert list(usual.data[0].embedding) == expected
    short = await api.call("embeddings.create", model="embed", input="x", dimensions=3, encoding_format="float")
    assert len(short.data[0].embedding) == 3
    tokens = await api.call("embeddings.create", model="embed", input=[1, 2, 3], encoding_format="float")
    assert len(tokens.data[0].embedding) == 8 and tokens.usage.prompt_tokens == 3
    several = await api.call("embeddings.create", model="embed", input=["one", "two", "one"], encoding_format="float")
    assert [one.index for one in several.data] == [0, 1, 2] and several.usage.prompt_tokens == 3
    assert several.data[0].embedding == several.data[2].embedding != several.data[1].embedding
    texts = ["t%d" % number for number in range(200)]
    many = await api.call("embeddings.create", model="embed", input=texts, encoding_format="float")
    assert [one.index for one in many.data] == list(range(200))
    await api.refused(openai.UnprocessableEntityError, "embeddings.create", model="embed", input="")
    error = await api.refused(openai.BadRequestError, "embeddings.create", model="absent", input="x")
    assert "Unknown model: absent" in str(error)
    error = await api.refused(openai.InternalServerError, "embeddings.create", model="embed", input=["x", "<<fail>>"])
    assert "the mock fails" in str(error)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--parts", default="client,tools,responses")
    options = parser.parse_args()
    # The other scripts have the rest; one process runs them all.
    import openai_responses
    import openai_tools

    cases = {
        "client": [models, completions, chats, streams_equal_answers, usage_of_streams, stop_words, log_probabilities,
                   errors, raw_answers, timeouts_and_leaving, embeddings],
        "tools": openai_tools.CASES,
        "responses": openai_responses.CASES,
    }
    for kind in (openai.OpenAI, openai.AsyncOpenAI):
        api = Both(kind(base_url="http://%s/v1" % options.url, api_key=options.key, max_retries=0, timeout=300))
        for part in options.parts.split(","):
            for case in cases[part]:
                await case(api)
                print("ok", api.name, case.__name__)
        closed = api.client.close()
        if closed is not None:
            await closed


if __name__ == "__main__":
    asyncio.run(main())
