//! The text of models' answers: put together from the bytes of responses, split off its reasoning, and read for calls
//! of tools.
//!
//! However the bytes are cut, each reader finds what it finds in the whole. Text is lost nowhere but in tags, the
//! arguments of a call are the JSON that Python would write of them, and those of a broken call begin such JSON.

use std::collections::BTreeSet;

use nereid_openai::json::{Bounds, Json};
use nereid_openai::reasoning::{self, Part, ReasoningParser, ReasoningParserKind};
use nereid_openai::text_assembly::TextAssembly;
use nereid_openai::tools::{self, Call, Delta, IdSource, ToolParser, ToolParserKind};

use crate::json::Tree;
use crate::{Dice, Target, split};

pub const TARGET: Target = Target {
    name: "openai_tools",
    run,
    runs: 10_000,
    words: &[
        "<think>",
        "</think>",
        "<|python_tag|>",
        "assistant\n\n",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_start|>",
        "<|python_end|>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
        "{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": null}]}}",
        "[f(a=1, b=\"x\")]",
        "f(a={'k': [True, None]})",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "'",
        ":",
        "=",
        ", ",
        "; ",
        "\\",
        "\\n",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\ud83d",
        "\\x41",
        "true",
        "None",
        "-0",
        "1.50",
        "1e999",
        "1E-7",
        "\"name\":",
        "\"arguments\":",
        "é",
        "😀",
        "\u{fffd}",
        "\n",
        "\t ",
        "<",
        "</",
    ],
    seeds,
};

const KINDS: [ToolParserKind; 4] =
    [ToolParserKind::Llama3, ToolParserKind::Mistral, ToolParserKind::Hermes, ToolParserKind::Pythonic];

fn run(data: &[u8]) -> bool {
    let (mut dice, bytes) = split(data);
    let text = String::from_utf8_lossy(bytes);
    let pieces = dice.cut(bytes);
    let texts = assembled(&pieces);
    assert_eq!(texts.concat(), text, "{pieces:?}");
    cumulative(bytes, &text, &mut dice);
    let mut passed = false;
    for kind in [ReasoningParserKind::DeepSeekR1, ReasoningParserKind::Qwen3] {
        reasoning(kind, &text, &texts);
    }
    for kind in KINDS {
        for is_vllm in [false, true] {
            passed |= calls(kind, is_vllm, &text, &texts);
        }
        if dice.one_in(200) {
            long(kind, &text);
        }
    }
    passed
}

/// The text by responses that have what is new.
fn assembled(pieces: &[&[u8]]) -> Vec<String> {
    let mut assembly = TextAssembly::new(false);
    let mut texts = Vec::new();
    for piece in pieces {
        let mut text = String::new();
        assembly.push(piece, &mut text);
        texts.push(text);
    }
    let mut text = String::new();
    assembly.finish(&mut text);
    texts.push(text);
    texts
}

/// Responses that have the whole text so far come to the text; any others, to some text.
fn cumulative(bytes: &[u8], text: &str, dice: &mut Dice) {
    let mut end = 0;
    let mut assembly = TextAssembly::new(true);
    let mut out = String::new();
    for piece in dice.cut(bytes) {
        end += piece.len();
        assembly.push(&bytes[..end], &mut out);
        assert!(text.starts_with(&out), "{out:?} of {text:?}");
        // One that is late.
        if dice.one_in(8) {
            assembly.push(&bytes[..dice.below(end)], &mut out);
        }
    }
    assembly.finish(&mut out);
    assert_eq!(out, text, "{}", bytes.escape_ascii());
    let mut assembly = TextAssembly::new(true);
    let mut out = String::new();
    dice.cut(bytes).into_iter().for_each(|piece| assembly.push(piece, &mut out));
    assembly.finish(&mut out);
    // A byte that is no UTF-8 becomes three.
    assert!(out.len() <= 3 * bytes.len(), "{out:?} of {}", bytes.escape_ascii());
}

fn reasoning(kind: ReasoningParserKind, text: &str, texts: &[String]) {
    let mut parser = ReasoningParser::new(kind);
    let (mut reasoning, mut content) = (String::new(), String::new());
    let mut take = |parts: Vec<Part>| {
        for part in parts {
            match part {
                Part::Reasoning(part) => {
                    assert!(!part.is_empty() && content.is_empty(), "reasoning behind content: {text:?}");
                    reasoning.push_str(&part);
                }
                Part::Content(part) => {
                    assert!(!part.is_empty());
                    content.push_str(&part);
                }
            }
        }
    };
    for text in texts {
        let mut parts = Vec::new();
        parser.push(text, &mut parts);
        take(parts);
    }
    let mut parts = Vec::new();
    parser.finish(&mut parts);
    take(parts);
    let expected = split_reasoning(kind, text);
    assert_eq!((&reasoning[..], &content[..]), (&expected.0[..], expected.1), "{kind:?}: {text:?}");
    let (whole, rest) = reasoning::whole(kind, text);
    assert_eq!((whole.unwrap_or_default(), rest), (reasoning, content), "{kind:?}: {text:?}");
}

/// The same from the whole text: blanks in front of the tag are reasoning, unless they are many.
fn split_reasoning(kind: ReasoningParserKind, text: &str) -> (String, &str) {
    const BLANKS_MAX: usize = 64;
    let begun = text.trim_start();
    let (blanks, _) = text.split_at(text.len() - begun.len());
    let inside = begun.strip_prefix("<think>").filter(|_| blanks.len() <= BLANKS_MAX);
    let (blanks, inside) = match inside {
        Some(inside) => (blanks, inside),
        None if kind == ReasoningParserKind::DeepSeekR1 => ("", text),
        None => return (String::new(), text),
    };
    let (reasoning, content) = inside.split_once("</think>").unwrap_or((inside, ""));
    ([blanks, reasoning].concat(), content)
}

/// Deltas of one text, as few as say the same.
#[derive(Debug, Default, PartialEq)]
struct Read {
    deltas: Vec<Delta>,
    has_calls: bool,
    is_broken: bool,
}

impl Read {
    fn of<'a>(kind: ToolParserKind, is_vllm: bool, texts: impl IntoIterator<Item = &'a str>) -> Read {
        let mut parser = ToolParser::new(kind, is_vllm, IdSource::new(1));
        let mut read = Read::default();
        for text in texts {
            let mut deltas = Vec::new();
            parser.push(text, &mut deltas);
            read.take(deltas);
        }
        let mut deltas = Vec::new();
        read.has_calls = parser.finish(&mut deltas);
        read.take(deltas);
        read.is_broken = parser.is_broken();
        read
    }

    fn take(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match (self.deltas.last_mut(), &delta) {
                (_, Delta::Content(more) | Delta::Arguments { fragment: more, .. }) if more.is_empty() => {
                    panic!("an empty delta")
                }
                (Some(Delta::Content(text)), Delta::Content(more)) => text.push_str(more),
                (Some(Delta::Arguments { index, fragment }), Delta::Arguments { index: other, fragment: more })
                    if index == other =>
                {
                    fragment.push_str(more);
                }
                _ => self.deltas.push(delta),
            }
        }
    }

    fn content(&self) -> String {
        let content = |delta: &Delta| if let Delta::Content(text) = delta { text.clone() } else { String::new() };
        self.deltas.iter().map(content).collect()
    }

    fn calls(&self) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        for delta in &self.deltas {
            match delta {
                Delta::CallStarted { index, id, name } => {
                    assert_eq!(*index, calls.len(), "{self:?}");
                    calls.push(Call { id: id.clone(), name: name.clone(), arguments: String::new() });
                }
                Delta::Arguments { index, fragment } => {
                    assert_eq!(index + 1, calls.len(), "{self:?}");
                    calls[*index].arguments.push_str(fragment);
                }
                Delta::Content(_) => {}
                Delta::Reasoning(_) => panic!("{self:?}"),
            }
        }
        calls
    }
}

fn calls(kind: ToolParserKind, is_vllm: bool, text: &str, texts: &[String]) -> bool {
    let read = Read::of(kind, is_vllm, [text]);
    let shown = || format!("{kind:?}, {is_vllm}: {text:?}");
    assert_eq!(Read::of(kind, is_vllm, texts.iter().map(String::as_str)), read, "{texts:?}, {}", shown());
    let (calls, content) = (read.calls(), read.content());
    assert_eq!(read.has_calls, !calls.is_empty(), "{}", shown());
    if calls.is_empty() {
        assert_eq!(content, text, "{}", shown());
        assert!(!read.is_broken, "{}", shown());
    }
    for call in &calls {
        assert!(!call.name.is_empty(), "{calls:?} of {}", shown());
        assert!(is_whole(kind, &call.arguments) || read.is_broken, "{calls:?} of {}", shown());
    }
    let whole = tools::whole(kind, is_vllm, IdSource::new(1), text);
    match read.is_broken || calls.is_empty() {
        true => assert_eq!(whole, (None, text.to_owned()), "{}", shown()),
        false => assert_eq!(whole, (Some(calls), content), "{}", shown()),
    }
    read.has_calls
}

/// True if the arguments of a call are an object, which is as Python writes it; else they are the beginning of one.
fn is_whole(kind: ToolParserKind, arguments: &str) -> bool {
    let tree = match serde_json::from_str::<Tree>(arguments) {
        Ok(tree) => Some(tree),
        Err(error) if error.is_eof() => return false,
        Err(error) => {
            // Numbers beyond the range of doubles keep their digits.
            let text = error.to_string();
            assert!(text.contains("out of range") || text.contains("recursion limit"), "{error}: {arguments}");
            None
        }
    };
    let Ok(value) = Json::parse(arguments.as_bytes(), &Bounds::default()) else {
        assert!(tree.is_none(), "{arguments}");
        return false;
    };
    assert!(value.as_object().is_some(), "{arguments}");
    // What came twice has been written twice, and integers of any length have been written as they are.
    let is_long = |digits: &str| digits.len() > 38;
    let is_plain =
        tree.is_some_and(|tree| !repeats(&tree)) && !arguments.split(|c: char| !c.is_ascii_digit()).any(is_long);
    if is_plain {
        let mut again = String::new();
        value.python(&mut again, kind == ToolParserKind::Llama3);
        assert_eq!(again, arguments);
    }
    true
}

/// True if an object in it has two members of one name.
fn repeats(tree: &Tree) -> bool {
    match tree {
        Tree::Array(items) => items.iter().any(repeats),
        Tree::Object(members) => {
            let names: BTreeSet<_> = members.iter().map(|(name, _)| name).collect();
            names.len() < members.len() || members.iter().any(|(_, value)| repeats(value))
        }
        _ => false,
    }
}

/// A text of this length ends at once only if each of its characters is read a few times.
fn long(kind: ToolParserKind, text: &str) {
    const LONG: usize = 1 << 18;
    let long = text.repeat(LONG / text.len().max(1));
    let read = Read::of(kind, false, [&long[..]]);
    let pieces = long.split_inclusive(|character: char| !character.is_alphanumeric());
    assert!(Read::of(kind, false, pieces) == read, "{kind:?}, repeated: {text:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "<think>Let me see.</think>The answer is 5, wörld 😀.",
        "\n<think>\nNo end",
        "began inside</think>{\"name\": \"f\", \"parameters\": {}}",
        r#"{"name": "get_weather", "parameters": {"city": "Dallas", "n": 1.50, "é": "\u00e9\ud83d\ude00"}}; {"name":"g","parameters":{}}"#,
        "<|python_tag|>{\"name\":\"f\",\"parameters\":{\"k\":[1, 2, {\"a\": null}]}}assistant\n\nThe answer is 5.",
        r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": "b"}}, {"name": "g", "arguments": {}}] and more"#,
        r#"text [TOOL_CALLS]get_weather[CALL_ID]abc123[ARGS]{"city": "Paris"}[TOOL_CALLS]f{"a":1}"#,
        "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": true}}\n</tool_call>\n<tool_call>{\"arguments\": {\"x\": [-0, 1E5]}, \"name\": \"g\"}</tool_call> done",
        r#"<|python_start|>[f(a=1, b="x\n\x41", c={'k': [True, None]}), m.g(größe=-2.5,)]<|python_end|>"#,
        r#"[f(), g(a='it\'s', b=[1, 2, ])]"#,
        r#"{"name": "f", "parameters": {"a": "cut in the mid"#,
        "see [1] here and [{\"name\": 1}] there, <tool_call is none, <|python_tag is none, [TOOL_CALLS is none",
    ]
    .iter()
    .zip(1u32..)
    .map(|(text, number)| [&number.to_be_bytes()[..], text.as_bytes()].concat())
    .collect()
}
