//! Answers of a scripted server, however they are cut.

use super::*;
use crate::exchange::http::HttpExchange;
use crate::generation::Usage;
use crate::openai::tests::openai;
use crate::plan::tests::plan;
use crate::plan::{Endpoint, Plan, Protocol, Service, Target, Template};
use crate::request::Prepared;
use nereid_memory::{Pool, Slice};

type Exchange = HttpExchange<GeneratedAnswer>;

fn planned(streaming: bool) -> Plan {
    let target = Target { endpoint: Endpoint::Unix("/".into()), tls: None, protocol: Protocol::Http };
    let openai = crate::openai::OpenAi { streaming, ..openai() };
    let mut plan = plan(target);
    plan.service = Service::OpenAi(Box::new(openai));
    plan.work.headers = vec![("Authorization".to_owned(), "Bearer k".to_owned())];
    plan
}

fn exchange(streaming: bool) -> Exchange {
    let plan = planned(streaming);
    let template = Template { body: Some(Slice::from_static(b"{\"a\":1}")), ..Template::default() };
    let prepared = Prepared::new(&plan, &template, None).unwrap();
    HttpExchange::new(Arc::new(RequestSet::new(&plan, vec![prepared], vec![None])), Pool::new(1 << 20))
}

fn chunked(status: &str, kind: &str, pieces: &[&str]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
    for piece in pieces {
        bytes += &format!("{:x}\r\n{piece}\r\n", piece.len());
    }
    (bytes + "0\r\n\r\n").into_bytes()
}

fn events(pieces: &[&str]) -> Vec<u8> {
    chunked("200 OK", "text/event-stream; charset=utf-8", pieces)
}

fn whole(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// What came of these bytes, cut at one place.
fn read(streaming: bool, bytes: &[u8], cut: usize) -> (Result<(), String>, Option<Generation>) {
    let (mut exchange, mut outcomes) = (exchange(streaming), Outcomes::default());
    exchange.begin(Flight::default()).unwrap();
    exchange.receive(&bytes[..cut], 5, &mut outcomes).unwrap();
    assert!(outcomes.finished.is_empty());
    exchange.receive(&bytes[cut..], 9, &mut outcomes).unwrap();
    let finished = outcomes.finished.remove(0);
    assert_eq!((finished.at_ns, exchange.in_flight(), exchange.is_over()), (9, 0, false));
    (finished.outcome, finished.flight.generation.map(|generation| *generation))
}

const HELLO: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const LAST: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
const DONE_EVENT: &str = "data: [DONE]\n\n";

#[test]
fn requests_have_their_head_and_their_body() {
    for (streaming, accept) in [(true, "text/event-stream"), (false, "application/json")] {
        let (mut exchange, mut pieces) = (exchange(streaming), Vec::new());
        exchange.begin(Flight::default()).unwrap();
        exchange.take_output(8, &mut pieces);
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"), "{text}");
        assert!(text.contains(&format!("Accept: {accept}\r\n")) && text.contains("Authorization: Bearer k\r\n"));
        assert!(text.ends_with("Content-Length: 7\r\n\r\n{\"a\":1}"), "{text}");
    }
}

#[test]
fn streams_are_read_however_they_are_cut() {
    let bytes = events(&[HELLO, ": keep alive\n\n", TEXT, TEXT, LAST, USAGE, DONE_EVENT]);
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    for cut in 0..bytes.len() {
        let (outcome, generation) = read(true, &bytes, cut);
        assert_eq!(outcome, Ok(()));
        let generation = generation.unwrap();
        assert_eq!((generation.chunks, generation.usage), (2, Usage { input: Some(3), output: Some(4) }));
        assert_eq!(generation.times_ns.len(), 2);
        if cut <= head {
            assert_eq!(generation.times_ns, [9, 9], "text came with what was received last");
        }
        assert!(generation.times_ns.is_sorted());
    }
    // Two events in one piece, and pieces that end inside of events.
    let stream = [HELLO, TEXT, TEXT, DONE_EVENT].concat();
    let cuts = [&stream[..70], &stream[70..75], &stream[75..]];
    assert_eq!(read(true, &events(&cuts), 1).1.unwrap().chunks, 2);
}

#[test]
fn streams_end_well_or_not() {
    let refused = "data: {\"error\":{\"message\":\"no room\"}}\n\n";
    for (pieces, outcome) in [
        (&[TEXT, DONE_EVENT][..], Ok(())),
        (&[TEXT, LAST], Ok(())),
        (&[DONE_EVENT], Ok(())),
        (&[TEXT], Err("a stream that ended without [DONE] and without a finish_reason")),
        (&[], Err("a stream that ended without [DONE] and without a finish_reason")),
        (&[TEXT, refused, TEXT, DONE_EVENT], Err("an error in the stream: no room")),
        (&["event: error\ndata: no room\n\n"], Err("an error in the stream: no room")),
        (&["data: {}\n\n", DONE_EVENT], Err("a chunk without 'choices'")),
    ] {
        let bytes = events(pieces);
        let (found, generation) = read(true, &bytes, bytes.len() - 1);
        assert_eq!(found, outcome.map_err(str::to_owned), "{pieces:?}");
        assert_eq!(generation.is_some(), outcome.is_ok());
    }
    let bytes = whole("200 OK", r#"{"choices":[{}]}"#);
    let error = read(true, &bytes, 3).0.unwrap_err();
    assert_eq!(error, "an answer that is no stream of events: its content type is 'application/json'");
    let bytes = chunked("429 Too Many Requests", "text/event-stream", &["{\"error\":", "{\"message\":\"later\"}}"]);
    assert_eq!(read(true, &bytes, 3).0.unwrap_err(), "HTTP status 429: later");
}

#[test]
fn answers_may_come_as_a_whole() {
    let good = r#"{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
    let bytes = whole("200 OK", good);
    for cut in 0..bytes.len() {
        let (outcome, generation) = read(false, &bytes, cut);
        assert_eq!(outcome, Ok(()));
        let usage = Usage { input: Some(3), output: Some(4) };
        assert_eq!(generation, Some(Generation { usage, ..Generation::default() }));
    }
    for (bytes, part) in [
        (whole("200 OK", "{}"), "an answer without 'choices'"),
        (whole("200 OK", ""), "an answer without good JSON"),
        (whole("500 Oh", "{\"detail\":\"no\"}"), "HTTP status 500: no"),
        (events(&[TEXT, DONE_EVENT]), "an answer without good JSON"),
    ] {
        let error = read(false, &bytes, 1).0.unwrap_err();
        assert!(error.starts_with(part), "{error}");
    }
    let long = format!("\"{}\"", "x".repeat(BODY_BYTES_MAX));
    assert_eq!(read(false, &whole("200 OK", &long), 1).0.unwrap_err(), TOO_LONG);
}

#[test]
fn one_answer_leaves_nothing_for_the_next() {
    let (mut exchange, mut outcomes) = (exchange(true), Outcomes::default());
    let cut = "data: {\"choices\":[{\"text\":\"a\"";
    for (bytes, good, chunks) in [
        (events(&[TEXT, USAGE, DONE_EVENT]), true, 1),
        (events(&[TEXT, cut]), false, 0),
        (events(&[TEXT, TEXT, LAST]), true, 2),
        (whole("503 Busy", "{}"), false, 0),
        (events(&[TEXT, DONE_EVENT]), true, 1),
    ] {
        let flight = Flight { times_ns: Some(Vec::new()), ..Flight::default() };
        exchange.begin(flight).unwrap();
        exchange.receive(&bytes, 7, &mut outcomes).unwrap();
        let finished = outcomes.finished.remove(0);
        assert_eq!(finished.outcome.is_ok(), good, "{:?}", finished.outcome);
        assert_eq!(finished.flight.generation.map_or(0, |generation| generation.chunks), chunks);
        let times = if good { chunks as usize + 1 } else { 0 };
        assert_eq!(finished.flight.times_ns.unwrap().len(), times);
    }
    // A stream whose connection breaks is no answer, although text came.
    exchange.begin(Flight::default()).unwrap();
    let bytes = events(&[TEXT, TEXT, DONE_EVENT]);
    exchange.receive(&bytes[..bytes.len() - 8], 7, &mut outcomes).unwrap();
    exchange.fail("gone", 8, &mut outcomes);
    assert_eq!(outcomes.finished[0].outcome, Err("gone".to_owned()));
    assert!(exchange.is_over());
}

/// Twice the stream takes about twice the work: no event is looked at again.
#[test]
fn long_streams_are_read_in_small_pieces() {
    let pieces: Vec<&str> = std::iter::repeat_n(TEXT, 20_000).chain([DONE_EVENT]).collect();
    let bytes = events(&pieces);
    let (mut exchange, mut outcomes) = (exchange(true), Outcomes::default());
    exchange.begin(Flight::default()).unwrap();
    for (at, piece) in bytes.chunks(7).enumerate() {
        exchange.receive(piece, at as u64, &mut outcomes).unwrap();
    }
    let generation = outcomes.finished.remove(0).flight.generation.unwrap();
    assert_eq!((generation.chunks, generation.times_ns.len()), (20_000, 20_000));
    assert!(generation.times_ns.is_sorted() && generation.times_ns[0] < generation.times_ns[19_999]);
}
