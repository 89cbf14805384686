"""What the scripts of OpenAI's client share: one way to call both clients, the synchronous and the asynchronous one."""

import inspect

import openai


class Both:
    """Calls one of the two clients; what it returns is awaited where it must be."""

    def __init__(self, client):
        self.client = client
        self.is_async = isinstance(client, openai.AsyncOpenAI)
        self.name = "async" if self.is_async else "sync"

    async def call(self, path, **arguments):
        """`chat.completions.create` and the like."""
        method = self.client
        for part in path.split("."):
            method = getattr(method, part)
        result = method(**arguments)
        return await result if inspect.isawaitable(result) else result

    async def chat(self, **arguments):
        return await self.call("chat.completions.create", **arguments)

    async def complete(self, **arguments):
        return await self.call("completions.create", **arguments)

    async def events(self, stream):
        """All of a stream's events."""
        return [event async for event in each(stream)]

    async def stream(self, path, **arguments):
        return await self.events(await self.call(path, stream=True, **arguments))

    async def says(self, prompt, model="llm"):
        return (await self.complete(model=model, prompt=prompt)).choices[0].text

    async def refused(self, kind, path, **arguments):
        """The exception that the client must raise."""
        try:
            result = await self.call(path, **arguments)
        except openai.OpenAIError as error:
            assert type(error) is kind, "expected %s, got %r" % (kind.__name__, error)
            return error
        raise AssertionError("expected %s, got %r" % (kind.__name__, result))


async def each(stream):
    if hasattr(stream, "__aiter__"):
        async for event in stream:
            yield event
    else:
        for event in stream:
            yield event


def user(text):
    return [{"role": "user", "content": text}]


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
