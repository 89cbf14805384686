//! Connections that give back their memory, at rest in the middle of whatever a peer may do.

use super::play::play_with;
use super::*;

#[test]
fn a_connection_goes_on_after_a_rest_at_any_byte() {
    let expected = play(connection(), SESSION, &[]);
    for at in 0..=SESSION.len() {
        assert_eq!(play_with(connection(), SESSION, &[at], Connection::rest), expected, "a rest at byte {at}");
    }
    let all: Vec<usize> = (0..SESSION.len()).collect();
    assert_eq!(play_with(connection(), SESSION, &all, Connection::rest), expected, "a rest at each byte");
}

#[test]
fn a_rest_keeps_what_is_unanswered_and_gives_back_what_is_not() {
    let (pool, mut recorder) = (pool(), Recorder::default());
    let mut connection = Connection::new(Limits::default(), pool.clone());
    let text = |body: &str| Response::text(&pool, ResponseHead::new(200), body.as_bytes());
    connection.receive(&b"GET / HTTP/1.1\r\n\r\n".repeat(3), &mut recorder);
    connection.respond(ExchangeId(2), text("two"));
    connection.rest();
    assert_eq!(sent(&mut connection), "", "answers before it are missing");
    connection.respond_chunked(ExchangeId(0), ResponseHead::new(200));
    let chunk = |bytes: &[u8]| {
        let mut chunk = Gather::new();
        chunk.put(&pool, bytes);
        chunk
    };
    connection.chunk(ExchangeId(0), chunk(b"abc"));
    connection.rest();
    assert!(sent(&mut connection).ends_with("3\r\nabc\r\n"), "what is unsent stays");
    // In the middle of a stream of which all is sent.
    connection.rest();
    connection.chunk(ExchangeId(0), chunk(b"defg"));
    assert_eq!(sent(&mut connection), "4\r\ndefg\r\n");
    connection.rest();
    connection.finish(ExchangeId(0));
    assert_eq!(sent(&mut connection), "0\r\n\r\n");
    connection.rest();
    connection.respond(ExchangeId(1), text("one"));
    connection.rest();
    let output = sent(&mut connection);
    assert!(output.contains("\r\n\r\noneHTTP/1.1 200 OK") && output.ends_with("\r\n\r\ntwo"), "{output}");
    // Two requests of which one is answered and sent, and half a head.
    connection.receive(b"GET /a HTTP/1.1\r\n\r\nGET /b HT", &mut recorder);
    connection.respond(ExchangeId(3), text("a"));
    let mut pieces = Vec::new();
    connection.output().take(usize::MAX, &mut pieces);
    pieces.clear();
    recorder.requests.clear();
    let held = pool.bytes_in_use();
    connection.rest();
    assert!(held > 0 && pool.bytes_in_use() == 0, "{held}, then {}", pool.bytes_in_use());
    connection.receive(b"TP/1.1\r\n\r\n", &mut recorder);
    assert_eq!(recorder.requests.last().map(|(id, path, _)| (*id, &**path)), Some((ExchangeId(4), "/b")));
    connection.respond(ExchangeId(4), text("b"));
    assert!(sent(&mut connection).ends_with("\r\n\r\nb"));
    assert!(connection.is_idle() && !connection.should_close());
}
