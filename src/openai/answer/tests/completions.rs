//! Completions: whole answers and streams.

use super::{Bench, answer, counted, plan, refused, respond, string, text};
use crate::error::Compat;
use crate::plan::{Plan, ToolPlan};
use crate::reasoning::ReasoningParserKind;
use crate::request::Operation;
use crate::tools::ToolParserKind;
use nereid_request::{Response, Status, Text};

const REST: &str = r#""created":5,"model":"m","system_fingerprint":null,"object":"text_completion","usage":"#;

fn whole(compat: Compat) -> Plan {
    plan(Operation::Completions, compat, false)
}

fn chunk(finish: &str, text: &str) -> String {
    format!(
        "data: {{\"id\":\"cmpl-1\",\"choices\":[{{\"finish_reason\":{finish},\"index\":0,\"logprobs\":null,\
         \"text\":\"{text}\"}}],{REST}null}}\n\n"
    )
}

#[test]
fn a_whole_answer_has_the_members_in_order() {
    for compat in [Compat::Triton, Compat::OpenAi] {
        let body = answer(whole(compat), [counted("a\"b\u{0}\u{2028}é", 3, 4)]).unwrap();
        let expected = [
            r#"{"id":"cmpl-1","choices":[{"finish_reason":"stop","index":0,"logprobs":null,"#,
            "\"text\":\"a\\\"b\\u0000\u{2028}é\"}],",
            REST,
            r#"{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4}}"#,
        ];
        assert_eq!(body, expected.concat());
    }
}

#[test]
fn an_answer_without_counts_has_a_null_for_them() {
    let body = answer(whole(Compat::Triton), [respond([])]).unwrap();
    assert!(body.ends_with(r#""usage":null}"#), "{body}");
    assert!(body.contains(r#""text":"""#), "{body}");
}

#[test]
fn a_stream_has_a_chunk_for_each_response_and_ends_with_the_last() {
    let body = answer(plan(Operation::Completions, Compat::Triton, true), [text("a"), text(""), text("b")]).unwrap();
    let expected = [chunk("null", "a"), chunk("null", ""), chunk("\"stop\"", "b"), "data: [DONE]\n\n".to_string()];
    assert_eq!(body, expected.concat());
}

#[test]
fn a_stream_that_ends_without_a_response_has_an_empty_chunk_for_it() {
    let mut bench = Bench::new(plan(Operation::Completions, Compat::OpenAi, true));
    bench.take(text("a"), false).unwrap();
    bench.answer.end_without_response(0).unwrap();
    let body = bench.finish().unwrap();
    assert_eq!(body, [chunk("null", "a"), chunk("\"stop\"", ""), "data: [DONE]\n\n".to_string()].concat());
}

#[test]
fn usage_is_a_chunk_of_its_own_where_it_is_asked_for_and_reported() {
    let mut asked = plan(Operation::Completions, Compat::Triton, true);
    asked.include_usage = true;
    let body = answer(asked.clone(), [counted("a", 7, 1), counted("b", 7, 2)]).unwrap();
    let usage = format!(
        "data: {{\"id\":\"cmpl-1\",\"choices\":[],{REST}{{\"prompt_tokens\":7,\"total_tokens\":10,\
         \"completion_tokens\":3}}}}\n\n"
    );
    let expected = [chunk("null", "a"), chunk("\"stop\"", "b"), usage, "data: [DONE]\n\n".to_string()];
    assert_eq!(body, expected.concat());
    let body = answer(asked, [text("a")]).unwrap();
    assert_eq!(body, [chunk("\"stop\"", "a"), "data: [DONE]\n\n".to_string()].concat());
}

#[test]
fn continuous_usage_is_in_each_chunk() {
    let mut asked = plan(Operation::Completions, Compat::OpenAi, true);
    (asked.include_usage, asked.continuous_usage) = (true, true);
    let body = answer(asked, [counted("a", 7, 1), counted("b", 7, 1)]).unwrap();
    let totals: Vec<&str> = body.split("\"total_tokens\":").skip(1).map(|rest| &rest[..1]).collect();
    assert_eq!(totals, ["8", "9", "9"]);
}

#[test]
fn the_number_of_responses_counts_in_triton_mode_alone() {
    let responses = || [counted("a", 1, 1), counted("b", 1, 1), counted("c", 1, 1)];
    let refusal = answer(whole(Compat::Triton), responses()).unwrap_err();
    assert_eq!(refusal, refused(500, "Unexpected number of responses: 3, expected 1 or 2."));
    let body = answer(whole(Compat::OpenAi), responses()).unwrap();
    assert!(body.contains(r#""text":"abc""#) && body.contains(r#""completion_tokens":3"#), "{body}");
    let body = answer(whole(Compat::Triton), [counted("a", 1, 1), counted("b", 1, 1)]).unwrap();
    assert!(body.contains(r#""text":"a""#) && body.contains(r#""completion_tokens":1"#), "{body}");
}

#[test]
fn an_end_without_a_response_counts_as_one_behind_others() {
    let mut bench = Bench::new(whole(Compat::Triton));
    let none = refused(500, "Unexpected number of responses: 0, expected 1 or 2.");
    assert_eq!(bench.answer.end_without_response(0), Err(none));
    bench.take(text("a"), false).unwrap();
    assert_eq!(bench.answer.end_without_response(0), Ok(()));
    bench.take(text("b"), false).unwrap();
    let three = refused(500, "Unexpected number of responses: 3, expected 1 or 2.");
    assert_eq!(bench.answer.end_without_response(0), Err(three));
}

#[test]
fn errors_of_models_have_the_status_of_their_mode() {
    let cases = [
        (Status::invalid("e"), 400),
        (Status::not_found("e"), 404),
        (Status::unavailable("e"), 503),
        (Status::cancelled("e"), 499),
        (Status::internal("e"), 500),
        (Status::unsupported("e"), 500),
    ];
    for (status, number) in cases {
        for (compat, number) in [(Compat::Triton, 500), (Compat::OpenAi, number)] {
            let response = Response::failed(Text::default(), status.clone());
            assert_eq!(answer(whole(compat), [response]), Err(refused(number, "e")), "{status:?} {compat:?}");
        }
    }
}

#[test]
fn an_error_in_a_stream_is_an_event_and_then_the_stream_ends() {
    let mut bench = Bench::new(plan(Operation::Completions, Compat::Triton, true));
    assert_eq!(bench.open(), "", "an early failure is a plain error");
    bench.take(text("a"), false).unwrap();
    bench.taken();
    let expected = "data: {\"error\":{\"message\":\"it \\\"broke\\\"\",\"type\":\"server_error\",\"param\":null,\
                    \"code\":500}}\n\ndata: [DONE]\n\n";
    assert_eq!(bench.fail(&Status::invalid("it \"broke\"")), expected);
    assert_eq!(bench.finish().unwrap(), "");
    let mut bench = Bench::new(plan(Operation::Completions, Compat::OpenAi, true));
    assert!(bench.fail(&Status::invalid("e")).contains(r#""type":"server_error","param":null,"code":400"#));
}

#[test]
fn a_long_text_is_one_chunk_in_many_steps() {
    let long = "0123456789".repeat(100_000);
    for responses in [vec![text(&long), text("")], vec![text(&long)]] {
        let mut bench = Bench::new(plan(Operation::Completions, Compat::OpenAi, true));
        let last = responses.len() - 1;
        for (at, response) in responses.into_iter().enumerate() {
            bench.take(response, at == last).unwrap();
        }
        assert!(bench.steps >= long.len() / (64 * 1024));
        let body = bench.finish().unwrap();
        assert_eq!(body.matches("data: {").count(), last + 1);
        assert!(body.contains(&long));
    }
    let mut bench = Bench::new(whole(Compat::Triton));
    bench.take(text(&long), true).unwrap();
    let body = bench.finish().unwrap();
    assert!(bench.steps >= 2 * long.len() / (64 * 1024), "{}", bench.steps);
    assert!(body.contains(&long));
}

#[test]
fn a_failure_in_the_middle_of_a_chunk_closes_it() {
    let mut bench = Bench::new(plan(Operation::Completions, Compat::OpenAi, true));
    bench.answer.begin(0, text(&"x".repeat(200_000)), false).unwrap();
    assert_eq!(bench.answer.step(&bench.pool, &mut bench.out), Ok(super::Progress::More));
    let body = bench.taken() + &bench.fail(&Status::internal("e"));
    assert!(body.starts_with("data: {\"id\":") && body.contains("xx\"}],\"created\":5"), "{}", &body[65_000..]);
}

#[test]
fn a_character_that_two_responses_share_is_whole() {
    let bytes = |bytes: &[u8]| respond([string("text_output", bytes)]);
    let responses = || [bytes(b"a\xe2\x82"), bytes(b"\xac\xff"), bytes(b"\xe2\x82")];
    let body = answer(plan(Operation::Completions, Compat::Triton, true), responses()).unwrap();
    let expected = [chunk("null", "a"), chunk("null", "€\u{fffd}"), chunk("\"stop\"", "\u{fffd}")];
    assert_eq!(body, expected.concat() + "data: [DONE]\n\n");
    let body = answer(whole(Compat::OpenAi), responses()).unwrap();
    assert!(body.contains("\"text\":\"a€\u{fffd}\u{fffd}\""), "{body}");
}

#[test]
fn texts_that_repeat_what_was_before_are_cut() {
    let mut cumulative = plan(Operation::Completions, Compat::OpenAi, true);
    cumulative.outputs.is_cumulative = true;
    let body = answer(cumulative, [text("a"), text("ab\u{20ac}"), text("ab\u{20ac}c")]).unwrap();
    let expected = [chunk("null", "a"), chunk("null", "b\u{20ac}"), chunk("\"stop\"", "c")];
    assert_eq!(body, expected.concat() + "data: [DONE]\n\n");
}

#[test]
fn completions_have_no_parts() {
    let plan = Plan {
        tools: ToolPlan::Auto { parser: ToolParserKind::Hermes, bytes_max: 1, is_vllm: true },
        reasoning: Some(ReasoningParserKind::DeepSeekR1),
        ..plan(Operation::Completions, Compat::OpenAi, true)
    };
    let body = answer(plan, [text("<think>a"), text("b")]).unwrap();
    assert_eq!(body, chunk("null", "<think>a") + &chunk("\"stop\"", "b") + "data: [DONE]\n\n");
}
