//! The rules of RFC 9113, one scripted peer each.

use super::*;

fn server() -> Script {
    Script::server(Config::default())
}

#[test]
fn other_protocols_are_named() {
    for (bytes, error) in [
        (&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], ConnectionError::Http1),
        (b"POST /v2 HTTP/1.1\r\n", ConnectionError::Http1),
        (b"PRI * HTTP/1.1\r\n", ConnectionError::Http1),
        (&[0x16, 0x03, 0x01, 0x00], ConnectionError::Tls),
        (b"\0\0\0\x04", ConnectionError::NotHttp2),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", ConnectionError::Http1),
    ] {
        for piece in [1, 3, bytes.len()] {
            let mut connection = Connection::server(Config::default(), pool());
            let mut recorder = Recorder::default();
            let result = bytes.chunks(piece).try_for_each(|part| connection.receive(part, &mut recorder));
            assert_eq!(result, Err(error), "{bytes:?}");
            assert_eq!(connection.output().to_vec().starts_with(b"HTTP/1.1 505 "), error == ConnectionError::Http1);
        }
    }
}

#[test]
fn a_server_greets_behind_the_preface_only() {
    let mut connection = Connection::server(Config::default(), pool());
    let mut recorder = Recorder::default();
    connection.receive(&PREFACE[..23], &mut recorder).unwrap();
    assert!(connection.output().is_empty());
    connection.receive(&PREFACE[23..], &mut recorder).unwrap();
    let sent = frames(&take(&mut connection));
    assert_eq!((sent[0].0.kind, sent[1].0.kind, sent.len()), (kind::SETTINGS, kind::WINDOW_UPDATE, 2));
    let has = |id: u16, value: u32| {
        let wanted = [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        sent[0].1.chunks(6).any(|setting| setting == wanted)
    };
    assert!(has(setting::INITIAL_WINDOW_SIZE, 4 << 20) && has(setting::MAX_FRAME_SIZE, 1 << 20));
    assert!(has(setting::MAX_CONCURRENT_STREAMS, 1000) && has(setting::MAX_HEADER_LIST_SIZE, 64 << 10));
    assert_eq!(sent[1].1, ((16u32 << 20) - 65_535).to_be_bytes());
}

/// A client takes anything else for a violation, and would not learn that it should go elsewhere.
#[test]
fn a_server_that_ends_before_the_preface_has_come_greets_first() {
    for begins in [true, false] {
        let mut server = Connection::server(Config::default(), pool());
        let mut client = Connection::client(Config::default(), pool());
        let (mut of_server, mut of_client) = (Recorder::default(), Recorder::default());
        match begins {
            true => server.start_shutdown("bye"),
            false => server.abort(ErrorCode::ENHANCE_YOUR_CALM, "enough"),
        }
        client.receive(&take(&mut server), &mut of_client).unwrap();
        let code = if begins { ErrorCode::NO_ERROR } else { ErrorCode::ENHANCE_YOUR_CALM };
        assert_eq!(of_client.events, [Event::Goaway { last: 0, code }]);
        if begins {
            server.receive(&take(&mut client), &mut of_server).unwrap();
            let kinds: Vec<u8> = frames(&take(&mut server)).iter().map(|(head, _)| head.kind).collect();
            assert_eq!(kinds, [kind::SETTINGS], "only the acknowledgement: it has greeted");
        }
    }
}

#[test]
fn settings_come_first() {
    let mut script =
        Script { connection: Connection::server(Config::default(), pool()), recorder: Recorder::default() };
    script.feed(PREFACE).unwrap();
    script.fails(&frame(kind::PING, 0, 0, &[0; 8]), ErrorCode::PROTOCOL_ERROR);
    let mut script =
        Script { connection: Connection::client(Config::default(), pool()), recorder: Recorder::default() };
    script.fails(&frame(kind::SETTINGS, flag::ACK, 0, b""), ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn frame_sizes_are_checked_by_the_head_alone() {
    let head = |kind, length, stream| FrameHead { length, kind, flags: 0, stream }.bytes();
    for (head, code) in [
        (head(kind::DATA, (1 << 20) + 1, 1), ErrorCode::FRAME_SIZE_ERROR),
        (head(0x77, (1 << 20) + 1, 1), ErrorCode::FRAME_SIZE_ERROR),
        (head(kind::PING, 7, 0), ErrorCode::FRAME_SIZE_ERROR),
        (head(kind::RST_STREAM, 5, 1), ErrorCode::FRAME_SIZE_ERROR),
        (head(kind::WINDOW_UPDATE, 3, 0), ErrorCode::FRAME_SIZE_ERROR),
        (head(kind::PRIORITY, 4, 1), ErrorCode::FRAME_SIZE_ERROR),
        (head(kind::GOAWAY, 7, 0), ErrorCode::FRAME_SIZE_ERROR),
        (head(kind::SETTINGS, 60_000, 0), ErrorCode::ENHANCE_YOUR_CALM),
        (head(kind::PUSH_PROMISE, 10, 1), ErrorCode::PROTOCOL_ERROR),
        (head(kind::PING, 8, 1), ErrorCode::PROTOCOL_ERROR),
        (head(kind::SETTINGS, 6, 1), ErrorCode::PROTOCOL_ERROR),
        (head(kind::GOAWAY, 8, 1), ErrorCode::PROTOCOL_ERROR),
        (head(kind::DATA, 1, 0), ErrorCode::PROTOCOL_ERROR),
        (head(kind::HEADERS, 1, 0), ErrorCode::PROTOCOL_ERROR),
        (head(kind::PRIORITY, 5, 0), ErrorCode::PROTOCOL_ERROR),
        (head(kind::RST_STREAM, 4, 0), ErrorCode::PROTOCOL_ERROR),
        (head(kind::CONTINUATION, 4, 1), ErrorCode::PROTOCOL_ERROR),
        (head(kind::CONTINUATION, 4, 0), ErrorCode::PROTOCOL_ERROR),
    ] {
        server().fails(&head, code);
    }
    server().fails(&frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), ErrorCode::FRAME_SIZE_ERROR);
    server().fails(&frame(kind::SETTINGS, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE_ERROR);
}

#[test]
fn settings_values_are_checked() {
    for (id, value, code) in [
        (setting::ENABLE_PUSH, 2, ErrorCode::PROTOCOL_ERROR),
        (setting::INITIAL_WINDOW_SIZE, 1 << 31, ErrorCode::FLOW_CONTROL_ERROR),
        (setting::MAX_FRAME_SIZE, 16_383, ErrorCode::PROTOCOL_ERROR),
        (setting::MAX_FRAME_SIZE, 1 << 24, ErrorCode::PROTOCOL_ERROR),
    ] {
        server().fails(&settings(&[(id, value)]), code);
    }
    Script::client(Config::default()).fails(&settings(&[(setting::ENABLE_PUSH, 1)]), ErrorCode::PROTOCOL_ERROR);
    let mut script = server();
    script.feed(&settings(&[(setting::ENABLE_PUSH, 1), (0x99, 7), (setting::MAX_FRAME_SIZE, 16_384)])).unwrap();
    assert_eq!(script.sent(), [(FrameHead { length: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 }, vec![])]);
}

#[test]
fn stream_numbers_are_odd_and_ascend() {
    server().fails(&request(2, true), ErrorCode::PROTOCOL_ERROR);
    let mut script = server();
    script.feed(&request(5, true)).unwrap();
    script.fails(&request(3, true), ErrorCode::PROTOCOL_ERROR);
    for idle in [
        frame(kind::DATA, 0, 7, b"x"),
        frame(kind::RST_STREAM, 0, 7, &[0; 4]),
        frame(kind::WINDOW_UPDATE, 0, 7, &[0, 0, 0, 1]),
        frame(kind::DATA, 0, 2, b"x"),
        frame(kind::PRIORITY, 0, 7, &[0, 0, 0, 7, 0]),
    ] {
        let mut script = server();
        script.feed(&request(5, true)).unwrap();
        script.fails(&idle, ErrorCode::PROTOCOL_ERROR);
    }
    let mut client = Script::client(Config::default());
    client.fails(&frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x88]), ErrorCode::PROTOCOL_ERROR);
    let mut client = Script::client(Config::default());
    client.fails(&frame(kind::HEADERS, flag::END_HEADERS, 2, &[0x88]), ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn malformed_requests_reset_their_stream_only() {
    let block = |fields: &[(&str, &str)]| {
        let mut block = Vec::new();
        hpack::Encoder::encode_stateless(fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())), &mut block);
        block
    };
    let head = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let mut script = server();
    let mut stream = 1;
    for bad in [("Upper", "x"), ("connection", "close"), ("te", "gzip"), (":late", "x"), ("a", "b\r"), ("", "x")] {
        let mut fields = head.to_vec();
        fields.push(bad);
        let frame = frame(kind::HEADERS, flag::END_HEADERS, stream, &block(&fields));
        script.resets(&frame, stream, ErrorCode::PROTOCOL_ERROR);
        stream += 2;
    }
    // The peer may have sent more on them before it knew.
    script.feed(&frame(kind::DATA, flag::END_STREAM, 1, b"late")).unwrap();
    assert!(script.sent().is_empty() && script.events().is_empty());
    let priority = [&[0, 0, 0, 99, 0][..], REQUEST].concat();
    let flags = flag::END_HEADERS | flag::PRIORITY;
    script.resets(&frame(kind::HEADERS, flags, 99, &priority), 99, ErrorCode::PROTOCOL_ERROR);
    script.feed(&request(101, true)).unwrap();
    assert_eq!(script.events().len(), 1);
}

#[test]
fn padding_and_priority_are_taken_off() {
    let mut script = server();
    let flags = flag::END_HEADERS | flag::PADDED | flag::PRIORITY;
    let payload = [&[3, 0, 0, 0, 0, 16][..], REQUEST, &[0; 3]].concat();
    script.feed(&frame(kind::HEADERS, flags, 1, &payload)).unwrap();
    script.feed(&frame(kind::DATA, flag::PADDED, 1, b"\x02hello\0\0")).unwrap();
    script.feed(&frame(kind::DATA, flag::PADDED | flag::END_STREAM, 1, b"\x01\0")).unwrap();
    let events = script.events();
    assert!(matches!(&events[0], Event::Headers { fields, .. } if fields[2] == (":path".into(), "/a".into())));
    assert_eq!(events[1..], [Event::Data { stream: StreamId(1), bytes: b"hello".to_vec(), end: true }]);
    for (kind, payload) in [
        (kind::DATA, &b"\x05hell"[..]),
        (kind::DATA, b"\x01"),
        (kind::HEADERS, b"\x09\x83\x86\x84"),
        (kind::HEADERS, b"\x01"),
    ] {
        let mut script = server();
        script.feed(&request(1, false)).unwrap();
        let stream = if kind == kind::DATA { 1 } else { 3 };
        script.fails(&frame(kind, flag::PADDED | flag::END_HEADERS, stream, payload), ErrorCode::PROTOCOL_ERROR);
    }
    server().fails(&frame(kind::HEADERS, flag::PADDED, 1, b""), ErrorCode::FRAME_SIZE_ERROR);
    server().fails(&frame(kind::HEADERS, flag::PRIORITY, 1, b"\0\0\0\0"), ErrorCode::FRAME_SIZE_ERROR);
    let mut script = server();
    script.feed(&request(1, false)).unwrap();
    script.fails(&frame(kind::DATA, flag::PADDED, 1, b""), ErrorCode::FRAME_SIZE_ERROR);
}

#[test]
fn content_length_and_body_agree() {
    let with_length = |end: u8| {
        let block = [REQUEST, &[0x0f, 0x0d, 1, b'3']].concat();
        frame(kind::HEADERS, flag::END_HEADERS | end, 1, &block)
    };
    server().resets(&with_length(flag::END_STREAM), 1, ErrorCode::PROTOCOL_ERROR);
    for (body, trailers, good) in
        [("abc", false, true), ("ab", false, false), ("abcd", false, false), ("ab", true, false)]
    {
        let mut script = server();
        script.feed(&with_length(0)).unwrap();
        let end = if trailers { 0 } else { flag::END_STREAM };
        let mut bytes = frame(kind::DATA, end, 1, body.as_bytes());
        if trailers {
            bytes.extend(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0, 1, b'a', 1, b'b']));
        }
        if good {
            script.feed(&bytes).unwrap();
            let last = script.events().pop().unwrap();
            assert_eq!(last, Event::Data { stream: StreamId(1), bytes: b"abc".to_vec(), end: true });
        } else {
            script.resets(&bytes, 1, ErrorCode::PROTOCOL_ERROR);
            let last = script.events().pop().unwrap();
            assert_eq!(last, Event::Reset { stream: StreamId(1), code: ErrorCode::PROTOCOL_ERROR, by_peer: false });
        }
    }
}

#[test]
fn closed_streams_are_told_apart() {
    let data = frame(kind::DATA, 0, 1, b"x");
    let trailers = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0, 1, b'a', 1, b'b']);
    let half_closed = || {
        let mut script = server();
        script.feed(&request(1, true)).unwrap();
        script
    };
    half_closed().resets(&data, 1, ErrorCode::STREAM_CLOSED);
    half_closed().resets(&trailers, 1, ErrorCode::STREAM_CLOSED);
    let ended = || {
        let mut script = half_closed();
        script.connection.send_headers(StreamId(1), HEAD, true).unwrap();
        script.sent();
        assert_eq!(script.connection.open_streams(), 0);
        script
    };
    ended().fails(&data, ErrorCode::STREAM_CLOSED);
    ended().fails(&trailers, ErrorCode::STREAM_CLOSED);
    let mut script = ended();
    script.feed(&frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).unwrap();
    script.feed(&frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
    script.feed(&frame(kind::PRIORITY, 0, 1, &[0; 5])).unwrap();
    assert!(script.sent().is_empty());

    let mut script = server();
    script.feed(&request(1, false)).unwrap();
    script.feed(&frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
    assert_eq!(
        script.events().pop().unwrap(),
        Event::Reset { stream: StreamId(1), code: ErrorCode::CANCEL, by_peer: true }
    );
    script.resets(&data, 1, ErrorCode::STREAM_CLOSED);
    script.resets(&trailers, 1, ErrorCode::STREAM_CLOSED);

    let mut script = server();
    script.feed(&request(1, false)).unwrap();
    script.connection.reset(StreamId(1), ErrorCode::CANCEL);
    script.sent();
    script.events();
    script.feed(&[data, trailers].concat()).unwrap();
    assert!(script.sent().is_empty() && script.events().is_empty());
}

#[test]
fn trailers_end_the_stream_and_carry_no_pseudo_headers() {
    for (flags, block) in [(0, &[0, 1, b'a', 1, b'b'][..]), (flag::END_STREAM, &[0x88])] {
        let mut script = server();
        script.feed(&request(1, false)).unwrap();
        let trailers = frame(kind::HEADERS, flag::END_HEADERS | flags, 1, block);
        script.resets(&trailers, 1, ErrorCode::PROTOCOL_ERROR);
    }
}

#[test]
fn continuations_follow_their_headers() {
    let mut script = server();
    script.feed(&frame(kind::HEADERS, flag::END_STREAM, 1, &REQUEST[..3])).unwrap();
    script.feed(&frame(kind::CONTINUATION, 0, 1, b"")).unwrap();
    script.feed(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, &REQUEST[3..])).unwrap();
    assert!(matches!(script.events()[..], [Event::Headers { end: true, .. }]));
    for intruder in [request(3, true), frame(kind::CONTINUATION, 0, 3, b""), frame(0x77, 0, 0, b"")] {
        let mut script = server();
        script.feed(&frame(kind::HEADERS, 0, 1, REQUEST)).unwrap();
        script.fails(&intruder, ErrorCode::PROTOCOL_ERROR);
    }
}

#[test]
fn broken_header_blocks_end_the_connection() {
    for block in [&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..], &[0xc0], &[0x41], &[0x00, 0x81, 0x00, 0x00]] {
        server().fails(&frame(kind::HEADERS, flag::END_HEADERS, 1, block), ErrorCode::COMPRESSION_ERROR);
    }
}

#[test]
fn responses_come_before_data_and_end_once() {
    let opened = || {
        let mut script = Script::client(Config::default());
        script.connection.open(CALL, true).unwrap();
        script.sent();
        script
    };
    let headers = |flags: u8, block: &[u8]| frame(kind::HEADERS, flag::END_HEADERS | flags, 1, block);
    opened().resets(&frame(kind::DATA, 0, 1, b"x"), 1, ErrorCode::PROTOCOL_ERROR);
    opened().resets(&headers(0, REQUEST), 1, ErrorCode::PROTOCOL_ERROR);
    let interim = [0x08, 3, b'1', b'0', b'3'];
    opened().resets(&headers(flag::END_STREAM, &interim), 1, ErrorCode::PROTOCOL_ERROR);
    let mut script = opened();
    script.feed(&headers(0, &interim)).unwrap();
    // HEAD and 304 promise lengths that do not come.
    script.feed(&headers(flag::END_STREAM, &[0x8b, 0x0f, 0x0d, 1, b'3'])).unwrap();
    let events = script.events();
    assert_eq!(events[0], Event::Informational { stream: StreamId(1), status: "103".into() });
    assert!(matches!(events[1], Event::Headers { end: true, .. }));
    assert_eq!(script.connection.open_streams(), 0);
    Script::client(Config::default()).fails(&frame(kind::PUSH_PROMISE, 0, 1, &[0; 8]), ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn a_client_respects_limits_and_goaway() {
    let mut script = Script::client(Config::default());
    script.feed(&settings(&[(setting::MAX_CONCURRENT_STREAMS, 2), (setting::MAX_HEADER_LIST_SIZE, 500)])).unwrap();
    let large: [(&[u8], &[u8]); 1] = [(b"a", &[b'v'; 500])];
    let error = SendError::HeaderListTooLarge { size: 533, limit: 500 };
    assert_eq!(script.connection.open(large, true), Err(error));
    let first = script.connection.open(CALL, true).unwrap();
    let second = script.connection.open(CALL, true).unwrap();
    assert_eq!(script.connection.open(CALL, true), Err(SendError::TooManyStreams));
    script.feed(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0, b'x'])).unwrap();
    let reset = Event::Reset { stream: second, code: ErrorCode::REFUSED_STREAM, by_peer: false };
    assert_eq!(script.events(), [Event::Goaway { last: 1, code: ErrorCode::NO_ERROR }, reset]);
    assert!(script.connection.is_open(first));
    assert_eq!(script.connection.open(CALL, true), Err(SendError::GoingAway));
}

#[test]
fn a_client_is_modest_until_it_knows_the_limit() {
    let mut script =
        Script { connection: Connection::client(Config::default(), pool()), recorder: Recorder::default() };
    let opened = std::iter::from_fn(|| script.connection.open(CALL, true).ok()).count();
    assert_eq!(opened, 100);
    script.feed(&settings(&[])).unwrap();
    assert!(script.connection.open(CALL, true).is_ok());
}

#[test]
fn shutdown_serves_what_is_on_its_way() {
    let mut script = server();
    script.feed(&request(1, true)).unwrap();
    script.connection.start_shutdown("");
    let sent = script.sent();
    assert_eq!((sent[0].0.kind, &sent[0].1[..4]), (kind::GOAWAY, &[0x7f, 0xff, 0xff, 0xff][..]));
    assert_eq!(sent[1].0.kind, kind::PING);
    script.feed(&request(3, true)).unwrap();
    script.feed(&frame(kind::PING, flag::ACK, 0, &sent[1].1)).unwrap();
    assert_eq!(script.sent()[0].1[..4], [0, 0, 0, 3]);
    // HPACK goes on, the stream does not, nor does what follows on it.
    script.feed(&frame(kind::HEADERS, flag::END_HEADERS, 5, &[0x83, 0x86, 0x44, 2, b'/', b'b'])).unwrap();
    script.feed(&frame(kind::DATA, flag::END_STREAM, 5, b"x")).unwrap();
    assert_eq!(script.events().len(), 2);
    for stream in [1, 3] {
        assert!(!script.connection.is_drained());
        script.connection.send_headers(StreamId(stream), HEAD, true).unwrap();
    }
    script.sent();
    assert!(script.connection.is_drained());

    // Without streams too, because a request may be under way.
    let mut script = server();
    script.connection.start_shutdown("");
    let sent = script.sent();
    assert_eq!((sent[0].0.kind, &sent[0].1[..4]), (kind::GOAWAY, &[0x7f, 0xff, 0xff, 0xff][..]));
    assert!(!script.connection.is_drained() && !script.connection.is_shut_down());
    script.feed(&frame(kind::PING, flag::ACK, 0, &sent[1].1)).unwrap();
    assert_eq!(script.sent()[0].1[..4], [0; 4]);
    assert!(script.connection.is_drained() && script.connection.is_shut_down());

    // A peer that has said nothing yet has asked for nothing.
    let mut script =
        Script { connection: Connection::server(Config::default(), pool()), recorder: Recorder::default() };
    script.connection.start_shutdown("");
    assert!(script.connection.is_shut_down());
}

#[test]
fn abort_says_why_and_stays() {
    let mut script = server();
    script.feed(&request(1, true)).unwrap();
    script.connection.abort(ErrorCode::ENHANCE_YOUR_CALM, "too_many_pings");
    assert_eq!(script.sent()[0].1, [&[0, 0, 0, 1, 0, 0, 0, 0xb][..], b"too_many_pings"].concat());
    assert_eq!(script.feed(b"x"), Err(ConnectionError::Aborted(ErrorCode::ENHANCE_YOUR_CALM)));
    assert_eq!(script.connection.send_headers(StreamId(1), HEAD, true), Err(SendError::Closed));
    assert!(script.connection.is_drained());
}

#[test]
fn sending_out_of_order_is_refused() {
    let mut script = server();
    script.feed(&request(1, true)).unwrap();
    let stream = StreamId(1);
    assert_eq!(script.connection.send_bytes(stream, b"x", false), Err(SendError::OutOfOrder));
    script.connection.send_headers(stream, [(&b":status"[..], &b"103"[..])], false).unwrap();
    script.connection.send_headers(stream, HEAD, false).unwrap();
    assert_eq!(script.connection.send_headers(stream, TRAILERS, false), Err(SendError::OutOfOrder));
    script.connection.send_headers(stream, TRAILERS, true).unwrap();
    assert_eq!(script.connection.send_headers(stream, TRAILERS, true), Err(SendError::Closed));
    let mut data = Gather::new();
    data.put(&pool(), b"x");
    assert_eq!(script.connection.send_data(stream, &mut data, true), Err(SendError::Closed));
    assert!(data.is_empty());
    assert_eq!(script.sent().len(), 3);
}
