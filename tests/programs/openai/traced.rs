//! Traces and time breakdowns of calls through OpenAI's interface.

use serde_json::{Value, json};

use super::frontend::{CHAT, COMPLETIONS, Frontend, Tokenizer, chat, completion, repository, with};
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::{ALL, each};

const MOCK: &str = "openai_mock";

/// The names of a trace's times, sorted, by the trace's id; of the traces of clients alone.
fn traces(folder: &Repository) -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(folder.path().join("t.json")).expect("the trace file");
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let heads = entries.iter().filter(|entry| entry.get("model_name").is_some() && entry.get("parent_id").is_none());
    let named = heads.map(|head| {
        let of_it = entries.iter().filter(|entry| entry["id"] == head["id"]);
        let times = of_it.filter_map(|entry| entry.get("timestamps")?.as_array());
        let mut names: Vec<_> = times.flatten().map(|time| time["name"].as_str().expect("a name").to_owned()).collect();
        names.sort();
        names.dedup();
        (head["model_name"].as_str().expect("a name").to_owned(), names)
    });
    named.collect()
}

#[test]
fn calls_are_traced_from_their_first_byte_to_their_last() {
    each(&ALL, |variant| {
        let (models, tokenizer, folder) = (repository(&[MOCK]), Tokenizer::new(), Repository::new());
        let file = format!("--trace-config=triton,file={}", folder.path().join("t.json").display());
        let flags = [&tokenizer.flag(), "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", &file];
        let Some(frontend) = Frontend::start_as(variant, &models, &flags) else { return };
        frontend.asked(CHAT, &chat(MOCK, "<<reply one two>>"));
        frontend.streamed(CHAT, &chat(MOCK, "<<reply one two>>"));
        frontend.asked(COMPLETIONS, &completion(MOCK, "<<reply one two>>"));
        // Before a model has it there is nothing to trace.
        frontend.refused(400, CHAT, &with(&chat(MOCK, "x"), json!({"n": 2})));
        frontend.stop();
        let traces = traces(&folder);
        assert_eq!(traces.len(), 3, "{traces:?}");
        for (model, names) in traces {
            assert_eq!(model, MOCK);
            for name in [
                "HTTP_RECV_START",
                "HTTP_RECV_END",
                "REQUEST_START",
                "QUEUE_START",
                "COMPUTE_START",
                "COMPUTE_END",
                "INFER_RESPONSE_COMPLETE",
                "HTTP_SEND_START",
                "HTTP_SEND_END",
                "REQUEST_END",
            ] {
                assert!(names.iter().any(|known| known == name), "{name} is missing: {names:?}");
            }
        }
    });
}

#[test]
fn an_answer_in_one_piece_has_the_breakdown_that_its_client_requests() {
    let (models, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let Some(frontend) = Frontend::start(&models, &[&tokenizer.flag()]) else { return };
    let body = chat(MOCK, "<<reply one>>").to_string();
    let fields = [("Content-Type", "application/json"), ("x-request-timing", "true")];
    let answer = frontend.peer().post(CHAT, &fields, body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let shown = answer.header("server-timing").expect("a breakdown").to_owned();
    for part in ["receive", "parse", "queue", "compute", "encode"] {
        assert!(shown.contains(&format!("{part};dur=")), "{shown}");
    }
    let answer = frontend.peer().post(CHAT, &fields[..1], body.as_bytes());
    assert_eq!(answer.header("server-timing"), None);
    frontend.stop();
}
