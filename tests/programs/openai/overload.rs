//! More than the server takes, models that think for long, and the figures of both (contract/openai.md section 5).

use std::thread;

use serde_json::json;

use super::events::{contents, raw_events};
use super::frontend::{
    CHAT, COMPLETIONS, Frontend, Tokenizer, chat, completion, has_run, plain_repository, repository,
};
use nereid_test_support::http::request;
use nereid_test_support::variant::{ALL, each, usual};

const MOCK: &str = "openai_mock";

#[test]
fn requests_above_the_rate_are_told_when_to_come_again() {
    each(&ALL, |variant| {
        let repository = plain_repository();
        // One in a thousand seconds, and three at once.
        let frontend = Frontend::start_without_python(variant, &repository, &["--openai-rate-limit=0.001:3"]);
        for _ in 0..3 {
            assert_eq!(frontend.post(COMPLETIONS, &completion("absent", "x")).status, 400);
        }
        let refused = frontend.post(COMPLETIONS, &completion("absent", "x"));
        assert_eq!(refused.status, 429, "{}", refused.text());
        let after = refused.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
        assert!(after.is_some_and(|seconds| (900..=1000).contains(&seconds)), "{:?}", refused.headers);
        let error = refused.json()["error"].clone();
        assert_eq!(error["code"], "rate_limit_exceeded", "{error}");
        // What asks no model is free.
        assert_eq!((frontend.get("/v1/models").status, frontend.get("/health/ready").status), (200, 200));
        frontend.stop();
    });
}

#[test]
fn keys_of_a_file_have_rates_of_their_own() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let file = repository.path().join("keys");
    std::fs::write(&file, "# who: how often\nslow 0.001:1\nfree 1000:1000\n").expect("a file of keys");
    let flag = format!("--openai-api-key-file={}", file.display());
    let frontend = Frontend::start_without_python(usual(), &repository, &[&flag]);
    let ask = |key: &str| {
        let bearer = format!("Bearer {key}");
        let body = completion("absent", "x").to_string();
        frontend
            .peer()
            .send(&request("POST", COMPLETIONS, &[("Authorization", &bearer)], body.as_bytes()))
            .answer()
            .status
    };
    assert_eq!((ask("slow"), ask("slow")), (400, 429));
    assert!((0..20).all(|_| ask("free") == 400));
    assert_eq!(ask("other"), 401);
    frontend.stop();
}

#[test]
fn a_silent_stream_is_kept_alive_by_comments() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let flags = [&tokenizer.flag(), "--openai-keep-alive=1"];
        let Some(frontend) = Frontend::start_as(variant, &repository, &flags) else { return };
        let mut peer = frontend.open(CHAT, &chat(MOCK, "<<name long>><<hang>><<pieces [\"a\",\"b\"]>>"));
        assert_eq!(peer.head().status, 200);
        let mut text = String::new();
        let mut comments = 0;
        while comments < 2 {
            let chunk = String::from_utf8(peer.chunk().expect("a chunk")).expect("text");
            comments += usize::from(chunk.starts_with(": "));
            text.push_str(&chunk);
        }
        let (events, is_done) = raw_events(&text);
        assert_eq!((contents(&events).concat().as_str(), is_done), ("a", false), "{text}");
        drop(peer);
        frontend.wait_for_state(MOCK, "long", "cancelled");
        frontend.stop();
    });
}

#[test]
fn many_streams_at_once_are_each_whole() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let Some(frontend) = Frontend::start_as(variant, &repository, &[&tokenizer.flag()]) else { return };
        thread::scope(|scope| {
            for number in 0..40 {
                let frontend = &frontend;
                scope.spawn(move || {
                    let pieces: Vec<String> = (0..20).map(|piece| format!("{number}.{piece} ")).collect();
                    let script = format!("<<pieces {}>>", json!(pieces));
                    let events = frontend.streamed(CHAT, &chat(MOCK, &script));
                    assert_eq!(contents(&events).concat(), pieces.concat());
                });
            }
        });
        frontend.stop();
    });
}

#[test]
fn what_clients_wait_for_is_measured() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag()]) else { return };
    let events = frontend.streamed(CHAT, &chat(MOCK, "<<pieces [\"a\",\"b\",\"c\"]>>"));
    assert_eq!(contents(&events).concat(), "abc");
    assert_eq!(frontend.says(MOCK, "<<reply x>>"), "x");
    assert_eq!(frontend.post(COMPLETIONS, &completion(MOCK, "<<fail 1>>")).status, 500);
    let mut peer = frontend.open(COMPLETIONS, &completion(MOCK, "<<name gone>><<hang>>"));
    assert_eq!(peer.head().status, 200);
    drop(peer);
    let value = |page: &str, family: &str| -> f64 {
        let start = format!("{family}{{");
        let lines = page.lines().filter(|line| line.starts_with(&start) && line.contains(&format!("model=\"{MOCK}\"")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let page = || frontend.get("/metrics").text();
    frontend
        .server
        .wait_until("the one that left is counted", || value(&page(), "nv_openai_disconnected_clients_total") == 1.0);
    let page = page();
    for (family, expected) in [
        ("nv_openai_request_success_total", 2.0),
        ("nv_openai_request_failure_total", 1.0),
        ("nv_openai_time_to_first_token_seconds_count", 3.0),
        ("nv_openai_num_requests_running", 0.0),
    ] {
        assert_eq!(value(&page, family), expected, "{family}\n{page}");
    }
    assert!(value(&page, "nv_openai_generation_tokens_total") >= 4.0, "{page}");
    frontend.stop();
}
