#!/usr/bin/env python3
"""The request schemas of Triton's OpenAI front end (contract/openai.md sections 1.2 to 1.4 and 1.8), by pydantic.

Reads lines of an operation, a tab and a body, and writes each line and behind it the status and the body that FastAPI
answers. So were made the pairs of src/openai/schema/tests/bodies.txt, by fastapi 0.121.2 and pydantic 2.14.3, and so
are they checked: every other line of that file is the input, the file is the output.
"""

import enum
from typing import Any, Dict, List, Optional, Union

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, RootModel, confloat, conint


def values(name, *texts):
    return enum.Enum(name, {text.replace("-", "_").replace(".", "_"): text for text in texts})


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


Model1 = values("Model1", "gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
Model2 = values(
    "Model2",
    *(
        "gpt-4-turbo gpt-4-turbo-2024-04-09 gpt-4-0125-preview gpt-4-turbo-preview gpt-4-1106-preview "
        "gpt-4-vision-preview gpt-4 gpt-4-0314 gpt-4-0613 gpt-4-32k gpt-4-32k-0314 gpt-4-32k-0613 gpt-3.5-turbo "
        "gpt-3.5-turbo-16k gpt-3.5-turbo-0301 gpt-3.5-turbo-0613 gpt-3.5-turbo-1106 gpt-3.5-turbo-0125 "
        "gpt-3.5-turbo-16k-0613"
    ).split(),
)
Penalty = Optional[confloat(ge=-2.0, le=2.0)]
Count = Optional[conint(ge=0)]
Seed = Optional[conint(ge=-(2**63), le=2**63 - 1)]


class PromptItem(RootModel):
    root: List[Any]


class StreamOptions(BaseModel):
    include_usage: Optional[bool] = False


class CreateCompletionRequest(Strict):
    model: Union[str, Model1]
    prompt: Union[str, List[str], List[int], List[PromptItem]]
    best_of: Optional[conint(ge=0, le=20)] = 1
    echo: Optional[bool] = False
    frequency_penalty: Penalty = 0
    ignore_eos: Optional[bool] = False
    logit_bias: Optional[Dict[str, int]] = None
    logprobs: Optional[conint(ge=0, le=5)] = None
    max_tokens: Count = None
    min_tokens: Count = None
    n: Optional[conint(ge=1, le=128)] = 1
    presence_penalty: Penalty = 0
    seed: Seed = None
    stop: Optional[Union[str, List[str]]] = None
    stream: Optional[bool] = False
    stream_options: Optional[StreamOptions] = None
    suffix: Optional[str] = None
    temperature: Optional[confloat(ge=0.0, le=2.0)] = 1
    top_p: Optional[confloat(ge=0.0, le=1.0)] = 1
    user: Optional[str] = None


class ImageUrl(BaseModel):
    url: AnyUrl
    detail: Optional[values("Detail", "auto", "low", "high")] = "auto"


class ChatCompletionRequestMessageContentPartText(BaseModel):
    type: values("Type1", "text")
    text: str


class ChatCompletionRequestMessageContentPartImage(BaseModel):
    type: values("Type", "image_url")
    image_url: ImageUrl


class ChatCompletionRequestMessageContentPart(RootModel):
    root: Union[ChatCompletionRequestMessageContentPartText, ChatCompletionRequestMessageContentPartImage]


class ChatCompletionRequestSystemMessage(BaseModel):
    content: str
    role: values("Role", "system")
    name: Optional[str] = None


class ChatCompletionRequestUserMessage(BaseModel):
    content: Union[str, List[ChatCompletionRequestMessageContentPart]]
    role: values("Role1", "user")
    name: Optional[str] = None


class CalledFunction(BaseModel):
    name: str
    arguments: str


class FunctionCall(BaseModel):
    arguments: str
    name: str


class ToolCall(BaseModel):
    id: str
    type: str
    function: CalledFunction


class ToolCalls(RootModel):
    root: List[ToolCall]


class ChatCompletionRequestAssistantMessage(BaseModel):
    content: Optional[str] = None
    role: values("Role2", "assistant")
    name: Optional[str] = None
    tool_calls: Optional[ToolCalls] = None
    function_call: Optional[FunctionCall] = None


class ChatCompletionRequestToolMessage(BaseModel):
    role: values("Role3", "tool")
    content: str
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(BaseModel):
    role: values("Role4", "function")
    content: str
    name: str


class ChatCompletionRequestMessage(RootModel):
    root: Union[
        ChatCompletionRequestSystemMessage,
        ChatCompletionRequestUserMessage,
        ChatCompletionRequestAssistantMessage,
        ChatCompletionRequestToolMessage,
        ChatCompletionRequestFunctionMessage,
    ]


class FunctionParameters(BaseModel):
    model_config = ConfigDict(extra="allow")


class FunctionObject(BaseModel):
    description: Optional[str] = None
    name: str
    parameters: Optional[FunctionParameters] = None


class ChatCompletionTool(BaseModel):
    type: str
    function: FunctionObject


class Named(BaseModel):
    name: str


class ChatCompletionFunctionCallOption(BaseModel):
    name: str


class ChatCompletionNamedToolChoice(BaseModel):
    type: str
    function: Named


class ToolChoice(RootModel):
    root: Union[
        values("ChatCompletionToolChoiceOption1", "none", "auto", "required"),
        ChatCompletionNamedToolChoice,
    ]


class ResponseFormat(BaseModel):
    type: Optional[values("Type6", "text", "json_object")] = "text"


class CreateChatCompletionRequest(Strict):
    messages: List[ChatCompletionRequestMessage] = Field(..., min_length=1)
    model: Union[str, Model2]
    frequency_penalty: Penalty = 0
    ignore_eos: Optional[bool] = False
    logit_bias: Optional[Dict[str, int]] = None
    logprobs: Optional[bool] = False
    top_logprobs: Optional[conint(ge=0, le=20)] = None
    max_completion_tokens: Count = None
    max_tokens: Count = None
    min_tokens: Count = None
    n: Optional[conint(ge=1, le=128)] = 1
    presence_penalty: Penalty = 0
    response_format: Optional[ResponseFormat] = None
    seed: Seed = None
    stop: Optional[Union[str, List[str]]] = None
    stream: Optional[bool] = False
    stream_options: Optional[StreamOptions] = None
    temperature: Optional[confloat(ge=0.0, le=2.0)] = 0.7
    top_p: Optional[confloat(ge=0.0, le=1.0)] = 1
    tools: Optional[List[ChatCompletionTool]] = None
    tool_choice: Optional[ToolChoice] = None
    user: Optional[str] = None
    function_call: Optional[Union[values("FunctionCall3", "none", "auto"), ChatCompletionFunctionCallOption]] = None
    functions: Optional[List[FunctionObject]] = Field(None, max_length=128, min_length=1)


class CreateEmbeddingRequest(Strict):
    model: Union[str, Model2]
    input: Union[str, List[int]] = Field(..., min_length=1)
    dimensions: Optional[int] = None
    encoding_format: Optional[values("EncodingFormat", "float", "base64")] = "float"
    user: Optional[str] = None


def main():
    import sys

    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    app = FastAPI()

    @app.post("/chat")
    def chat(request: CreateChatCompletionRequest):
        return None

    @app.post("/completions")
    def completions(request: CreateCompletionRequest):
        return None

    @app.post("/embeddings")
    def embeddings(request: CreateEmbeddingRequest):
        return None

    client = TestClient(app, raise_server_exceptions=False)
    for line in sys.stdin.buffer:
        operation, body = line.rstrip(b"\n").split(b"\t", 1)
        headers = {"content-type": "application/json"}
        answer = client.post("/" + operation.decode(), content=body, headers=headers)
        sys.stdout.buffer.write(b"%s\t%s\n" % (operation, body))
        sys.stdout.buffer.write(b"%d\t%s\n" % (answer.status_code, answer.content))


if __name__ == "__main__":
    main()
