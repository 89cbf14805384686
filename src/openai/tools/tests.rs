//! Tests of the parsers of tool calls: what they find, and that it does not matter where the text is cut.

use super::*;

const KINDS: [ToolParserKind; 4] =
    [ToolParserKind::Llama3, ToolParserKind::Mistral, ToolParserKind::Hermes, ToolParserKind::Pythonic];

/// What all deltas of an answer come to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Folded {
    content: String,
    calls: Vec<Call>,
    is_broken: bool,
}

fn folded<'a>(kind: ToolParserKind, is_vllm: bool, pieces: impl IntoIterator<Item = &'a str>) -> Folded {
    let mut parser = ToolParser::new(kind, is_vllm, IdSource::new(5));
    let mut all = Folded::default();
    let mut has_calls = false;
    let mut take = |deltas: Vec<Delta>| {
        for delta in deltas {
            match delta {
                Delta::Content(text) => all.content.push_str(&text),
                Delta::CallStarted { index, id, name } => {
                    assert_eq!(index, all.calls.len());
                    all.calls.push(Call { id, name, arguments: String::new() });
                }
                Delta::Arguments { index, fragment } => {
                    assert!(!fragment.is_empty());
                    assert_eq!(index + 1, all.calls.len(), "fragments belong to the call that began last");
                    all.calls[index].arguments.push_str(&fragment);
                }
                Delta::Reasoning(_) => panic!("no parser of tool calls reads reasoning"),
            }
        }
    };
    for piece in pieces {
        let mut deltas = Vec::new();
        parser.push(piece, &mut deltas);
        take(deltas);
    }
    let mut deltas = Vec::new();
    has_calls |= parser.finish(&mut deltas);
    take(deltas);
    assert_eq!(has_calls, !all.calls.is_empty());
    all.is_broken = parser.is_broken();
    all
}

fn calls_of(kind: ToolParserKind, text: &str) -> Vec<(String, String)> {
    let (calls, _) = whole(kind, true, IdSource::new(5), text);
    calls.unwrap_or_default().into_iter().map(|call| (call.name, call.arguments)).collect()
}

fn content_of(kind: ToolParserKind, text: &str) -> String {
    whole(kind, true, IdSource::new(5), text).1
}

fn one(name: &str, arguments: &str) -> Vec<(String, String)> {
    vec![(name.into(), arguments.into())]
}

/// Outputs of models, and texts that resemble them.
const CORPUS: &[&str] = &[
    "",
    "Hello, wörld 😀.",
    "{",
    "{}",
    "{\"a\": 1}",
    "[1, 2, 3] is a list, [TOOL_CALLS is no tag, <tool_call is none, <|python_tag is none",
    "see [1] here and [{\"name\": 1}] there",
    r#"{"name": "f", "parameters": {}}"#,
    r#"{"name": "f", "parameters": {"city": "Dallas", "n": 1.50}}"#,
    r#"{"parameters": {"é": "é\u00e9\ud83d\ude00\ud83d"}, "name": "get_wéather"}"#,
    r#"<|python_tag|>{"type":"function","name":"f","arguments":{"a":[1,{"b":null}]}}; {"name":"g","parameters":{}}"#,
    "<|python_tag|>{\"name\":\"f\",\"parameters\":{\"k\":[1, 2]}}assistant\n\nThe answer is 5.",
    "{\"name\":\"f\",\"parameters\":{}} assistant\n said <|python_tag|>",
    r#"{"name": "John", "age": 3}"#,
    r#"{"name": "f", "parameters": {"a": 1,, "b": 2}} and more"#,
    r#"{"name": "f", "parameters": {"a": "cut in the mid"#,
    r#"{"name": "f", "parameters": "text"}"#,
    r#"{"name": "", "parameters": {}}"#,
    r#"{"name": "f", "name": "g", "parameters": {"a": 1}, "arguments": {"b": 2}}"#,
    "<|python_tag|>print(1)",
    "<|python_<|python_tag|>{\"name\":\"f\",\"parameters\":{}}",
    r#"[TOOL_CALLS][{"name": "f", "arguments": {"city": "Dal é", "k": [1, 2], "s": "\"]}"}}]"#,
    r#"[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"x": {}}}] done [1]"#,
    r#"[{"name": "f", "arguments": {"a": -0, "b": 1e3, "c": true}}]"#,
    r#"[TOOL_CALLS] Sure: [{"name": "f", "arguments": {}}] bye"#,
    r#"Text [TOOL_CALLS][{"name": "f", "arguments": {}}][TOOL_CALLS][{"name": "g", "arguments": {}}]"#,
    "[TOOL_CALLS][TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}",
    "[TOOL_CALLS][]",
    "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, ",
    "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"na",
    "[[TOOL_CALLS]",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"<tool_call>\"}}\n</tool_call>\n\
     <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
    "I will look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call> And < that.",
    "<tool_call>{\"name\": \"f\", \"arguments\": {}}<tool_call>{\"name\": \"g\", \"arguments\": {}}",
    "<tool_call>{\"name\": <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_c",
    "[TOOL_CALLS]get-weather[ARGS]{\"city\": \"Dal é\"}[TOOL_CALLS]g{}",
    "[TOOL_CALLS]f[CALL_ID]abc123xyz[ARGS] {\"a\": 1} so",
    "[TOOL_CALLS]f[{\"name\": \"g\", \"arguments\": {}}]",
    "[TOOL_CALLS]I am[ARGS]",
    "[TOOL_CALLS]f[CALL_ID]a-b[ARGS]{}",
    "[get_weather(city=\"Dal é\", n=[1, 2,]), g()]",
    "<|python_start|>[f(a={'k': None})]<|python_end|> and",
    "[f(a=1, b",
    "[see(this), [1]](http://x)",
    "[link](http://x)",
    "[f(a=g(1))] and",
    "<<tool_call>sorry</tool_call>",
    "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": }}</tool_call>",
    "<tool_call>{\"name\": \"f\", \"arguments\": {}} } </tool_call>",
];

#[test]
fn it_does_not_matter_where_the_text_is_cut() {
    for kind in KINDS {
        for is_vllm in [true, false] {
            for text in CORPUS {
                let expected = folded(kind, is_vllm, [*text]);
                let characters: Vec<String> = text.chars().map(String::from).collect();
                let alone = folded(kind, is_vllm, characters.iter().map(String::as_str));
                assert_eq!(alone, expected, "{kind:?} {text}");
                for (place, _) in text.char_indices() {
                    let (first, second) = text.split_at(place);
                    assert_eq!(folded(kind, is_vllm, [first, "", second]), expected, "{kind:?} {first} | {second}");
                }
            }
        }
    }
}

/// A text that the seed chooses: pieces of calls, of tags and of plain text, in any order.
fn random_text(next: &mut impl FnMut(usize) -> usize) -> String {
    const PIECES: &[&str] = &[
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "<tool_call>",
        "</tool_call>",
        "assistant\n\n",
        "[",
        "]",
        "[f(a=",
        "f(",
        ")",
        "[ARGS]",
        "{",
        "}",
        "{\"name\": \"f\", ",
        "\"arguments\": {\"a\": 1",
        "\"parameters\": {",
        "{\"name\":\"f\",\"arguments\":{}}",
        ", ",
        "; ",
        ":",
        "\"",
        "\\",
        "\\u00e9",
        "\\ud83d",
        "12",
        "1.5",
        "-",
        "e",
        "true",
        "nul",
        " ",
        "\n",
        "é",
        "😀",
        "<",
        "text",
    ];
    let count = next(24);
    (0..count).map(|_| PIECES[next(PIECES.len())]).collect()
}

#[test]
fn random_texts_are_read_the_same_however_they_are_cut() {
    let mut ids = IdSource::new(17);
    let mut next = |bound: usize| (ids.next() % bound as u64) as usize;
    let mut found = 0;
    for _ in 0..20_000 {
        let text = random_text(&mut next);
        let kind = KINDS[next(4)];
        let is_vllm = next(2) == 0;
        let expected = folded(kind, is_vllm, [text.as_str()]);
        let (mut pieces, mut rest) = (Vec::new(), text.as_str());
        while !rest.is_empty() {
            let place = (1 + next(6)..).find(|place| rest.is_char_boundary(*place) || *place > rest.len()).unwrap();
            let (piece, left) = rest.split_at(place.min(rest.len()));
            pieces.push(piece);
            rest = left;
        }
        assert_eq!(folded(kind, is_vllm, pieces), expected, "{kind:?} {text}");

        let (calls, content) = whole(kind, is_vllm, IdSource::new(5), &text);
        match calls {
            Some(calls) => {
                found += 1;
                assert_eq!((&calls, &content), (&expected.calls, &expected.content));
                for call in calls {
                    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect(&call.arguments);
                    assert!(arguments.is_object());
                }
            }
            None => assert_eq!(content, text, "{kind:?}"),
        }
        if expected.calls.is_empty() {
            assert_eq!(expected.content, text, "{kind:?}: what holds no call comes back as it is");
        }
    }
    assert!(found > 200, "{found} texts with calls are too few to mean something");
}

#[test]
fn llama_calls_are_read() {
    let kind = ToolParserKind::Llama3;
    assert_eq!(calls_of(kind, r#"{"name":"f","parameters":{"a":"é"}}"#), one("f", r#"{"a": "\u00e9"}"#));
    assert_eq!(calls_of(kind, r#"<|python_tag|>{"name":"f","arguments":{}}"#), one("f", "{}"));
    let two = r#"{"name":"f","parameters":{}}; {"name":"g","parameters":{"x":[1,2]}}"#;
    assert_eq!(calls_of(kind, two), [("f".into(), "{}".into()), ("g".into(), r#"{"x": [1, 2]}"#.into())]);
    assert_eq!(content_of(kind, two), "");
    let twice = r#"{"name":"f","name":"g","parameters":{"a":1},"arguments":{"b":2}}"#;
    assert_eq!(calls_of(kind, twice), one("f", r#"{"a": 1}"#));
    for text in [" {\"name\":\"f\",\"parameters\":{}}", "Call: {\"name\":\"f\",\"parameters\":{}}", "{\"name\":\"f\"}"]
    {
        assert_eq!((calls_of(kind, text), content_of(kind, text)), (vec![], text.into()));
    }
}

#[test]
fn the_next_turn_behind_calls_of_tensorrt_llm_is_cut() {
    let text = "{\"name\":\"f\",\"parameters\":{}}assistant\n\n{\"name\":\"g\",\"parameters\":{}}";
    let of = |is_vllm| whole(ToolParserKind::Llama3, is_vllm, IdSource::new(5), text);
    let (calls, content) = of(false);
    assert_eq!((calls.unwrap().len(), content.as_str()), (1, ""));
    let (calls, content) = of(true);
    assert_eq!((calls.unwrap().len(), content.as_str()), (1, "assistant\n\n{\"name\":\"g\",\"parameters\":{}}"));
    let plain = "The assistant\n\nis here";
    assert_eq!(whole(ToolParserKind::Llama3, false, IdSource::new(5), plain), (None, plain.into()));
}

#[test]
fn mistral_calls_are_read() {
    let kind = ToolParserKind::Mistral;
    let text = r#"[TOOL_CALLS][{"name":"f","arguments":{"k":[1],"city":"Dal é"}},{"name":"g","arguments":{}}]"#;
    let expected = [("f".into(), r#"{"k": [1], "city": "Dal é"}"#.into()), ("g".into(), "{}".into())];
    assert_eq!(calls_of(kind, text), expected);
    assert_eq!(calls_of(kind, text.strip_prefix("[TOOL_CALLS]").unwrap()), expected);
    assert_eq!(calls_of(kind, r#"[TOOL_CALLS] Sure: [{"name":"f","arguments":{}}] bye"#), one("f", "{}"));
    assert_eq!(content_of(kind, r#"Well. [TOOL_CALLS][{"name":"f","arguments":{}}]"#), "Well. ");
    for text in ["see [1] here", r#"as [{"name":"f","arguments":{}}] is"#, r#"[{"name":"","arguments":{}}]"#] {
        assert_eq!((calls_of(kind, text), content_of(kind, text)), (vec![], text.into()));
    }
}

#[test]
fn brackets_in_ordinary_text_are_not_held_for_long() {
    let mut parser = ToolParser::new(ToolParserKind::Mistral, true, IdSource::new(5));
    let mut deltas = Vec::new();
    parser.push("see [1] here", &mut deltas);
    assert_eq!(deltas, [Delta::Content("see [1] here".into())]);
}

#[test]
fn a_tag_alone_gives_no_delta() {
    for (kind, tag) in [
        (ToolParserKind::Mistral, "[TOOL_CALLS]"),
        (ToolParserKind::Llama3, "<|python_tag|>"),
        (ToolParserKind::Hermes, "<tool_call>"),
    ] {
        let mut parser = ToolParser::new(kind, true, IdSource::new(5));
        let mut deltas = Vec::new();
        for character in tag.chars() {
            parser.push(&character.to_string(), &mut deltas);
        }
        assert_eq!(deltas, []);
        assert!(!parser.finish(&mut deltas));
        assert_eq!(deltas, [Delta::Content(tag.into())]);
    }
}

#[test]
fn hermes_calls_are_read() {
    let kind = ToolParserKind::Hermes;
    let text = "Look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}\n</tool_call>\n\
                <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n";
    assert_eq!(calls_of(kind, text), [("f".into(), r#"{"a": "é"}"#.into()), ("g".into(), "{}".into())]);
    assert_eq!(content_of(kind, text), "Look.\n");
    assert_eq!(content_of(kind, "{\"name\": \"f\", \"arguments\": {}}"), "{\"name\": \"f\", \"arguments\": {}}");
}

#[test]
fn mistral_calls_with_the_name_in_front_are_read() {
    let kind = ToolParserKind::Mistral;
    let text = "[TOOL_CALLS]get-weather[ARGS]{\"a\":1}[TOOL_CALLS]g{}";
    assert_eq!(calls_of(kind, text), [("get-weather".into(), r#"{"a": 1}"#.into()), ("g".into(), "{}".into())]);
    assert_eq!(calls_of(kind, "[TOOL_CALLS]x [TOOL_CALLS]y{}"), one("y", "{}"));
    assert_eq!(calls_of(kind, "[TOOL_CALLS]f[CALL_ID]abc123xyz[ARGS]{}"), one("f", "{}"));
    let text = "[TOOL_CALLS]f[{\"name\": \"g\", \"arguments\": {}}]";
    assert_eq!((calls_of(kind, text), content_of(kind, text)), (vec![], text.into()));
}

#[test]
fn pythonic_calls_are_read() {
    let kind = ToolParserKind::Pythonic;
    let expected = [("f".into(), r#"{"a": "é"}"#.into()), ("g".into(), "{}".into())];
    assert_eq!(calls_of(kind, "[f(a='é'), g()]"), expected);
    assert_eq!(calls_of(kind, "<|python_start|>[f(a='é'), g()]<|python_end|>"), expected);
    assert_eq!(content_of(kind, "<|python_start|>[g()]<|python_end|>"), "");
    for text in ["[link](http://x)", "[1, 2]", "[see(this)]", "[f(a==1)]", "I call [g()]", "[]", "g()"] {
        assert_eq!(folded(kind, true, [text]), Folded { content: text.into(), ..Folded::default() });
    }
}

#[test]
fn a_name_goes_out_whole_and_arguments_in_fragments() {
    let mut parser = ToolParser::new(ToolParserKind::Llama3, true, IdSource::new(5));
    let mut deltas = Vec::new();
    parser.push(r#"{"name": "get_wea"#, &mut deltas);
    parser.push(r#"ther", "parameters""#, &mut deltas);
    assert_eq!(deltas, []);
    parser.push(r#": {"city": "Dal"#, &mut deltas);
    assert!(matches!(&deltas[0], Delta::CallStarted { index: 0, name, .. } if name == "get_weather"));
    assert_eq!(deltas[1..], [Delta::Arguments { index: 0, fragment: r#"{"city": "Dal"#.into() }]);
    deltas.clear();
    parser.push(r#"las"}}"#, &mut deltas);
    assert_eq!(deltas, [Delta::Arguments { index: 0, fragment: r#"las"}"#.into() }]);
    deltas.clear();
    assert!(parser.finish(&mut deltas));
    assert_eq!((deltas, parser.is_broken()), (vec![], false));
}

#[test]
fn a_call_that_is_not_whole_is_content_of_a_whole_answer_and_a_beginning_in_a_stream() {
    let text = r#"{"name": "f", "parameters": {"a": "cut"#;
    assert_eq!(whole(ToolParserKind::Llama3, true, IdSource::new(5), text), (None, text.into()));
    let streamed = folded(ToolParserKind::Llama3, true, [text]);
    assert!(streamed.is_broken);
    assert_eq!(streamed.calls[0].arguments, r#"{"a": "cut"#);

    let streamed =
        folded(ToolParserKind::Hermes, true, ["<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":}} and more"]);
    assert!(streamed.is_broken);
    assert_eq!((streamed.calls[0].arguments.as_str(), streamed.content.as_str()), (r#"{"a": "#, "}} and more"));
}

#[test]
fn nesting_in_arguments_is_bounded() {
    let text = format!("{{\"name\":\"f\",\"parameters\":{{\"a\":{}", "[".repeat(100_000));
    assert_eq!(whole(ToolParserKind::Llama3, true, IdSource::new(5), &text), (None, text));
}
