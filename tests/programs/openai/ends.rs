//! How answers end before their time: errors and deaths of models, clients that leave, and a server that stops
//! (contract/openai.md section 1.5).

use std::thread;

use serde_json::{Value, json};

use super::events::{contents, raw_events, reasons, texts};
use super::frontend::{CHAT, COMPLETIONS, Frontend, Tokenizer, chat, completion, has_run, repository, with};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::variant::{ALL, each, usual};

const MOCK: &str = "openai_mock";

/// What a stream has said when it ends, whose coding must be whole.
fn whole(peer: &mut Peer) -> (Vec<Value>, bool) {
    let answer = peer.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    raw_events(&answer.text())
}

fn parts(count: usize) -> String {
    format!("<<pieces {}>>", json!(vec!["x"; count]))
}

#[test]
fn errors_of_models_are_answers_or_events() {
    each(&ALL, |variant| {
        for compat in ["--openai-compat=openai", "--openai-compat=triton"] {
            let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
            let flags = [compat, &tokenizer.flag()];
            let Some(frontend) = Frontend::start_as(variant, &repository, &flags) else { return };
            let text = |number: usize| format!("the mock fails at response {number}");
            // Without a stream there is one response.
            for (path, body) in
                [(CHAT, chat(MOCK, "<<fail 1>><<reply x>>")), (COMPLETIONS, completion(MOCK, "<<fail 1>><<reply x>>"))]
            {
                assert_eq!(frontend.refused(500, path, &body), text(1));
            }
            // The first response decides whether there is a stream; Triton's chats are one before it.
            let script = format!("<<fail 1>>{}", parts(4));
            let is_early = compat.ends_with("triton");
            for (path, body) in [(COMPLETIONS, completion(MOCK, &script)), (CHAT, chat(MOCK, &script))] {
                if is_early && path == CHAT {
                    let events = frontend.streamed(path, &body);
                    let last = events.last().expect("an event");
                    assert_eq!((events.len(), &last["error"]["message"]), (2, &json!(text(1))), "{events:?}");
                    continue;
                }
                let refused = frontend.refused(500, path, &with(&body, json!({"stream": true})));
                assert_eq!(refused, text(1), "{compat} {path}");
            }
            for (path, body) in [
                (CHAT, chat(MOCK, &format!("<<fail 3>>{}", parts(4)))),
                (COMPLETIONS, completion(MOCK, &format!("<<fail 3>>{}", parts(4)))),
            ] {
                let events = frontend.streamed(path, &body);
                let (error, before) = events.split_last().expect("an event");
                let said = if path == CHAT { contents(before).concat() } else { texts(before).concat() };
                assert_eq!(said, "xx", "{compat} {path}");
                assert!(reasons(before).is_empty(), "{before:?}");
                let expected = json!({"message": text(3), "type": "server_error", "param": null, "code": 500});
                assert_eq!(error["error"], expected);
            }
            frontend.stop();
        }
    });
}

/// The codes of Triton's errors are statuses for OpenAI's clients, and always 500 in the original.
#[test]
fn codes_of_errors_are_statuses() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    for (compat, statuses) in
        [("--openai-compat=openai", [400, 404, 503, 500]), ("--openai-compat=triton", [500, 500, 500, 500])]
    {
        let Some(frontend) = Frontend::start(&repository, &[compat]) else { return };
        for (code, status) in ["INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "INTERNAL"].into_iter().zip(statuses) {
            let body = completion(MOCK, &format!("<<fail 1 {code}>><<reply x>>"));
            assert_eq!(frontend.refused(status, COMPLETIONS, &body), "the mock fails at response 1", "{code}");
        }
        frontend.stop();
    }
}

#[test]
fn a_model_that_dies_ends_its_streams_and_comes_back() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let Some(frontend) = Frontend::start_as(variant, &repository, &[&tokenizer.flag()]) else { return };
        let mut other = frontend.open(CHAT, &chat(MOCK, &format!("<<name other>><<hang>>{}", parts(2))));
        frontend.wait_for_state(MOCK, "other", "running");
        let events = frontend.streamed(COMPLETIONS, &completion(MOCK, &format!("<<die 3>>{}", parts(5))));
        let (error, before) = events.split_last().expect("an event");
        assert_eq!(texts(before).concat(), "xx");
        assert!(error["error"]["message"].is_string() && error["error"]["code"].is_number(), "{error}");
        // The stream beside it is the same process's.
        let (events, is_done) = whole(&mut other);
        assert!(is_done && events.last().expect("an event")["error"]["message"].is_string(), "{events:?}");
        frontend.server.wait_until("the model is back", || {
            frontend.post(COMPLETIONS, &completion(MOCK, "<<reply back>>")).status == 200
        });
        let refused = frontend.post(COMPLETIONS, &completion(MOCK, "<<die 1>><<reply x>>"));
        assert!((500..600).contains(&refused.status), "{}", refused.text());
        frontend.stop();
    });
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let Some(frontend) = Frontend::start_as(variant, &repository, &[&tokenizer.flag()]) else { return };
        let descriptors = frontend.server.descriptors();
        for (key, path, is_stream) in [("a", CHAT, true), ("b", COMPLETIONS, true), ("c", CHAT, false)] {
            let script = format!("<<name {key}>><<hang>>{}", parts(3));
            let body = if path == CHAT { chat(MOCK, &script) } else { completion(MOCK, &script) };
            let mut peer = match is_stream {
                true => frontend.open(path, &body),
                false => {
                    let mut peer = frontend.peer();
                    let body = body.to_string();
                    peer.send(&request("POST", path, &[], body.as_bytes()));
                    peer
                }
            };
            frontend.wait_for_state(MOCK, key, "running");
            if is_stream {
                assert_eq!(peer.head().status, 200);
                assert!(peer.chunk().is_some_and(|chunk| chunk.starts_with(b"data: ")));
            }
            drop(peer);
            frontend.wait_for_state(MOCK, key, "cancelled");
        }
        frontend.server.wait_until("all is closed", || frontend.server.descriptors() <= descriptors);
        frontend.stop();
    });
}

#[test]
fn a_crowd_that_leaves_costs_nothing() {
    each(&ALL, |variant| {
        let repository = repository(&[MOCK]);
        let Some(frontend) = Frontend::start_as(variant, &repository, &[]) else { return };
        let totals = || -> Value {
            let text = frontend.says(MOCK, "<<totals>>");
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
        };
        totals();
        let descriptors = frontend.server.descriptors();
        let mut peers: Vec<Peer> =
            (0..100).map(|_| frontend.open(COMPLETIONS, &completion(MOCK, &format!("<<hang>>{}", parts(2))))).collect();
        // Some leave before the model has their requests, the others in the middle of their streams.
        peers.truncate(60);
        for peer in &mut peers {
            assert_eq!(peer.head().status, 200);
            assert!(peer.chunk().is_some());
        }
        drop(peers);
        frontend.server.wait_until("no request is left", || totals()["running"] == 0);
        assert!(totals()["cancelled"].as_u64().is_some_and(|count| count >= 60), "{}", totals());
        frontend.server.wait_until("all is closed", || frontend.server.descriptors() <= descriptors);
        frontend.stop();
    });
}

/// One that reads nothing holds its own stream back, neither others nor the memory of the server.
#[test]
fn a_client_that_does_not_read_harms_no_other() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    let Some(frontend) = Frontend::start(&repository, &[]) else { return };
    let long = "y".repeat(50_000);
    let script = format!("<<name slow>><<pieces {}>>", json!(vec![long; 300]));
    let slow = frontend.open(COMPLETIONS, &completion(MOCK, &script));
    // The model may be done: what it says fits into the buffers on the way.
    frontend.server.wait_until("the model has the request", || {
        ["running", "done"].contains(&frontend.says(MOCK, "<<state slow>>").as_str())
    });
    for _ in 0..20 {
        assert_eq!(frontend.says(MOCK, "<<reply quick>>"), "quick");
    }
    assert!(frontend.server.resident_kib() < 600_000, "{} KiB", frontend.server.resident_kib());
    let mut slow = slow;
    let (events, is_done) = whole(&mut slow);
    assert!(is_done);
    assert_eq!(texts(&events).iter().map(String::len).sum::<usize>(), 300 * 50_000);
    frontend.stop();
}

#[test]
fn chunks_arrive_as_the_model_says_them() {
    each(&ALL, |variant| {
        let repository = repository(&[MOCK]);
        let Some(frontend) = Frontend::start_as(variant, &repository, &[]) else { return };
        let mut peer =
            frontend.open(COMPLETIONS, &completion(MOCK, "<<name one>><<hang>><<pieces [\"first\",\"x\"]>>"));
        assert_eq!(peer.head().status, 200);
        let chunk = String::from_utf8(peer.chunk().expect("a chunk")).expect("text");
        assert!(chunk.contains("\"text\":\"first\""), "{chunk}");
        // The model waits at this time for its end.
        assert_eq!(frontend.says(MOCK, "<<state one>>"), "running");
        drop(peer);
        frontend.wait_for_state(MOCK, "one", "cancelled");
        frontend.stop();
    });
}

#[test]
fn streams_on_one_connection_follow_one_another() {
    each(&ALL, |variant| {
        let repository = repository(&[MOCK]);
        let Some(frontend) = Frontend::start_as(variant, &repository, &[]) else { return };
        let ask = |text: &str, is_stream: bool| {
            let body =
                with(&completion(MOCK, &format!("<<pieces {}>>", json!([text, "."]))), json!({"stream": is_stream}));
            request("POST", COMPLETIONS, &[], body.to_string().as_bytes())
        };
        let mut peer = frontend.peer();
        peer.send(&[ask("one", true), ask("two", false), ask("three", true), ask("four", true)].concat());
        for (text, is_stream) in [("one", true), ("two", false), ("three", true), ("four", true)] {
            let answer = peer.answer();
            let said = match is_stream {
                true => texts(&raw_events(&answer.text()).0).concat(),
                false => answer.json()["choices"][0]["text"].as_str().expect("a text").to_owned(),
            };
            assert_eq!((answer.status, said), (200, format!("{text}.")));
        }
        // A client of HTTP/1.0 knows no chunks: its stream ends with the connection.
        let body = with(&completion(MOCK, "<<pieces [\"a\",\"b\"]>>"), json!({"stream": true})).to_string();
        let old = format!("POST {COMPLETIONS} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let answer = frontend.peer().send(old.as_bytes()).answer();
        assert_eq!((answer.status, answer.header("transfer-encoding")), (200, None));
        let (events, is_done) = raw_events(&answer.text());
        assert_eq!((texts(&events).concat().as_str(), is_done), ("ab", true));
        frontend.stop();
    });
}

#[test]
fn a_server_that_stops_finishes_its_streams() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let Some(frontend) = Frontend::start_as(variant, &repository, &[&tokenizer.flag()]) else { return };
        let script = format!("<<name last>><<sleep 100>>{}", parts(15));
        let mut idle = frontend.peer();
        assert_eq!(idle.get("/health/ready").status, 200);
        let mut stream = frontend.open(CHAT, &chat(MOCK, &script));
        // It has begun: the model has the request.
        assert_eq!(stream.head().status, 200);
        frontend.server.terminate();
        let mut text = String::new();
        while let Some(chunk) = stream.chunk() {
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
        let (events, is_done) = raw_events(&text);
        assert_eq!((contents(&events).concat(), is_done), ("x".repeat(15), true));
        let (status, log) = frontend.server.wait();
        assert_eq!(status.code(), Some(0), "{log}");
    });
}

#[test]
fn a_model_finishes_its_streams_before_it_is_unloaded() {
    each(&ALL, |variant| {
        let repository = repository(&[MOCK]);
        let flags = ["--model-control-mode=explicit", "--load-model=*"];
        let Some(frontend) = Frontend::start_as(variant, &repository, &flags) else { return };
        let script = format!("<<name last>><<sleep 50>>{}", parts(20));
        let mut stream = frontend.open(COMPLETIONS, &completion(MOCK, &script));
        assert_eq!(stream.head().status, 200);
        let mut text = String::from_utf8(stream.chunk().expect("a chunk")).expect("text");
        let unloaded = frontend.peer().post(&format!("/v1/models/{MOCK}/unload"), &[], b"");
        assert_eq!(unloaded.status, 200, "{}", unloaded.text());
        while let Some(chunk) = stream.chunk() {
            text.push_str(std::str::from_utf8(&chunk).expect("text"));
        }
        let (events, is_done) = raw_events(&text);
        assert_eq!((texts(&events).concat(), is_done), ("x".repeat(20), true));
        assert_eq!(frontend.post(COMPLETIONS, &completion(MOCK, "x")).status, 400);
        frontend.stop();
    });
}

#[test]
fn both_protocols_ask_one_model_at_once() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    let Some(frontend) = Frontend::start_as(usual(), &repository, &[]) else { return };
    thread::scope(|scope| {
        for number in 0..8 {
            let frontend = &frontend;
            scope.spawn(move || {
                for round in 0..10 {
                    let text = format!("n{number} r{round}");
                    let script = format!("<<reply {text}>>");
                    if number % 2 == 0 {
                        assert_eq!(frontend.says(MOCK, &script), text);
                        continue;
                    }
                    let body = json!({"text_input": script, "exclude_input_in_output": true}).to_string();
                    let path = format!("/v2/models/{MOCK}/generate");
                    let answer = Peer::connect(frontend.server.http).post(&path, &[], body.as_bytes());
                    assert_eq!((answer.status, &answer.json()["text_output"]), (200, &json!(text)));
                }
            });
        }
    });
    frontend.stop();
}
