//! Tests of the parser of reasoning: what it splits, and that it does not matter where the text is cut.

use super::*;

const KINDS: [ReasoningParserKind; 2] = [ReasoningParserKind::DeepSeekR1, ReasoningParserKind::Qwen3];

fn folded<'a>(kind: ReasoningParserKind, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
    let mut parser = ReasoningParser::new(kind);
    let (mut reasoning, mut content) = (String::new(), String::new());
    let mut take = |parts: Vec<Part>| {
        for part in parts {
            match part {
                Part::Reasoning(text) => {
                    assert!(!text.is_empty() && content.is_empty(), "reasoning is in front of content");
                    reasoning.push_str(&text);
                }
                Part::Content(text) => {
                    assert!(!text.is_empty());
                    content.push_str(&text);
                }
            }
        }
    };
    for piece in pieces {
        let mut parts = Vec::new();
        parser.push(piece, &mut parts);
        take(parts);
    }
    let mut parts = Vec::new();
    parser.finish(&mut parts);
    take(parts);
    (reasoning, content)
}

#[test]
fn reasoning_is_split_from_content() {
    let r1 = |text| whole(ReasoningParserKind::DeepSeekR1, text);
    let qwen = |text| whole(ReasoningParserKind::Qwen3, text);
    for of in [r1, qwen] {
        assert_eq!(of("<think>\nwhy\n</think>\n\nso"), (Some("\nwhy\n".into()), "\n\nso".into()));
        assert_eq!(of("\n<think>a</think>b"), (Some("\na".into()), "b".into()));
        assert_eq!(of("<think></think>b"), (None, "b".into()));
        assert_eq!(
            of("<think>a <think> b</think>c<think>d</think>"),
            (Some("a <think> b".into()), "c<think>d</think>".into())
        );
        assert_eq!(of("<think>a < b <</think>c"), (Some("a < b <".into()), "c".into()));
        assert_eq!(of("<think>never ends </thin"), (Some("never ends </thin".into()), String::new()));
        assert_eq!(of(""), (None, String::new()));
    }
    assert_eq!(r1("a</think>b"), (Some("a".into()), "b".into()));
    assert_eq!(r1("</think>b"), (None, "b".into()));
    assert_eq!(r1(" </think>b"), (Some(" ".into()), "b".into()));
    assert_eq!(r1("only reasoning"), (Some("only reasoning".into()), String::new()));
    assert_eq!(r1("<thi"), (Some("<thi".into()), String::new()));
    assert_eq!(qwen("a</think>b"), (None, "a</think>b".into()));
    assert_eq!(qwen("see <think>x</think>"), (None, "see <think>x</think>".into()));
    assert_eq!(qwen("<thi"), (None, "<thi".into()));
}

#[test]
fn it_does_not_matter_where_the_text_is_cut() {
    const PIECES: [&str; 10] = ["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "é", "text"];
    let mut state = 99_u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for _ in 0..5_000 {
        let count = next(8);
        let text: String = (0..count).map(|_| PIECES[next(PIECES.len())]).collect();
        for kind in KINDS {
            let (reasoning, content) = folded(kind, [text.as_str()]);
            let whole = whole(kind, &text);
            assert_eq!((whole.0.unwrap_or_default(), whole.1), (reasoning.clone(), content.clone()), "{text}");
            // Nothing is lost but the tags.
            let tags = text.len() - reasoning.len() - content.len();
            assert!([0, START.len(), END.len(), START.len() + END.len()].contains(&tags), "{kind:?} {text}");
            let characters: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(
                folded(kind, characters.iter().map(String::as_str)),
                (reasoning.clone(), content.clone()),
                "{text}"
            );
            for (place, _) in text.char_indices() {
                let (first, second) = text.split_at(place);
                assert_eq!(folded(kind, [first, second]), (reasoning.clone(), content.clone()), "{first} | {second}");
            }
        }
    }
}

#[test]
fn blanks_in_front_are_held_only_so_long() {
    let mut parser = ReasoningParser::new(ReasoningParserKind::Qwen3);
    let mut parts = Vec::new();
    parser.push(&" ".repeat(BLANKS_MAX), &mut parts);
    assert_eq!(parts, []);
    parser.push(" ", &mut parts);
    assert_eq!(parts, [Part::Content(" ".repeat(BLANKS_MAX + 1))]);
}
