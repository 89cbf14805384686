//! Peers that want too much: each of them meets a bound.

use super::*;

/// Feeds a frame until the connection ends; at most `most` times.
#[track_caller]
fn flood(script: &mut Script, most: usize, mut next: impl FnMut(usize) -> Vec<u8>) -> usize {
    for i in 0..most {
        if let Err(error) = script.feed(&next(i)) {
            let calm = matches!(error, ConnectionError::Violation { code: ErrorCode::ENHANCE_YOUR_CALM, .. });
            assert!(calm, "{error:?}");
            assert_eq!(script.sent().last().unwrap().0.kind, kind::GOAWAY);
            return i;
        }
    }
    panic!("{most} frames were taken");
}

#[test]
fn replies_that_nobody_reads_are_bounded() {
    for frame in [frame(kind::PING, 0, 0, &[0; 8]), settings(&[]), settings(&[(setting::INITIAL_WINDOW_SIZE, 1)])] {
        let mut script = Script::server(Config::default());
        let n = flood(&mut script, 10_000, |_| frame.clone());
        assert!(n > 1000 && script.connection.unsent_total() < 100_000);
        // A peer that reads may ask as often as it likes.
        let mut script = Script::server(Config::default());
        for _ in 0..20_000 {
            script.feed(&frame).unwrap();
            script.sent();
        }
    }
}

#[test]
fn settings_that_move_many_windows_are_bounded() {
    let mut script = Script::server(Config::default());
    for stream in 0..320 {
        script.feed(&request(stream * 2 + 1, false)).unwrap();
    }
    let n = flood(&mut script, 20_000, |i| settings(&[(setting::INITIAL_WINDOW_SIZE, i as u32)]));
    assert_eq!(n, 500, "each frame of 15 bytes has 320 streams walked over");
}

#[test]
fn pings_are_counted_since_the_last_data() {
    let mut script = Script::server(Config::default());
    script.feed(&frame(kind::PING, 0, 0, &[0; 8]).repeat(3)).unwrap();
    assert_eq!(script.connection.counters().pings_since_data, 3);
    script.feed(&request(1, true)).unwrap();
    script.feed(&frame(kind::PING, 0, 0, &[0; 8])).unwrap();
    let counters = script.connection.counters();
    assert_eq!((counters.pings_received, counters.pings_since_data, counters.streams), (4, 1, 1));
}

#[test]
fn rapid_resets_end_the_connection() {
    let rapid = |i: usize| {
        let stream = i as u32 * 2 + 1;
        [request(stream, true), frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    };
    let mut script = Script::server(Config::default());
    assert_eq!(flood(&mut script, 10_000, rapid), 2000);
    // Streams that end well make up for those that do not, and so does time.
    let mut script = Script::server(Config { abnormal_ends_max: 2, ..Config::default() });
    for i in 0..100 {
        script.feed(&rapid(2 * i)).unwrap();
        let stream = (2 * i + 1) as u32 * 2 + 1;
        script.feed(&request(stream, true)).unwrap();
        script.connection.send_headers(StreamId(stream), HEAD, true).unwrap();
    }
    script.feed(&rapid(1000)).unwrap();
    script.feed(&rapid(1001)).unwrap();
    script.connection.tick(1);
    script.feed(&rapid(1002)).unwrap();
}

#[test]
fn mistakes_that_make_us_reset_are_as_bad() {
    let mut script = Script::server(Config::default());
    let n = flood(&mut script, 10_000, |i| {
        let stream = i as u32 * 2 + 1;
        [request(stream, false), frame(kind::WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
    });
    assert_eq!(n, 2000);
    let mut script = Script::server(Config::default());
    assert_eq!(flood(&mut script, 10_000, |i| frame(kind::HEADERS, 5, i as u32 * 2 + 1, &[0x82])), 2000);
}

#[test]
fn frames_that_mean_nothing_are_bounded() {
    let update = frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    for (name, idle) in [
        ("empty data", frame(kind::DATA, 0, 1, b"")),
        ("padded empty data", frame(kind::DATA, flag::PADDED, 1, b"\0")),
        ("priority", frame(kind::PRIORITY, 0, 1, &[0; 5])),
        ("unknown", frame(0x42, 0, 0, b"x")),
        ("unknown, empty", frame(0x42, 0, 0, b"")),
        ("window update", update),
        ("goaway", frame(kind::GOAWAY, 0, 0, &[0; 8])),
        ("settings ack", frame(kind::SETTINGS, flag::ACK, 0, b"")),
        ("pong", frame(kind::PING, flag::ACK, 0, &[0; 8])),
    ] {
        let mut script = Script::server(Config::default());
        script.feed(&request(1, false)).unwrap();
        let n = flood(&mut script, 20_000, |_| idle.clone());
        assert_eq!(n, 10_000, "{name}");
        assert!(script.connection.unsent_total() < 100, "{name}");
    }
    // On streams that are gone.
    let mut script = Script::server(Config::default());
    script.feed(&request(1, false)).unwrap();
    script.connection.reset(StreamId(1), ErrorCode::CANCEL);
    assert!(flood(&mut script, 20_000, |_| frame(kind::DATA, 0, 1, b"x")) <= 10_000);
}

#[test]
fn useful_traffic_with_many_updates_is_no_flood() {
    let mut script = Script::server(Config::default());
    for i in 0..20_000u32 {
        let stream = i * 2 + 1;
        script.feed(&[request(stream, false), frame(kind::DATA, flag::END_STREAM, stream, b"x")].concat()).unwrap();
        script.connection.send_headers(StreamId(stream), HEAD, false).unwrap();
        script.connection.send_bytes(StreamId(stream), b"y", false).unwrap();
        script.connection.send_headers(StreamId(stream), TRAILERS, true).unwrap();
        script.feed(&frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])).unwrap();
        script.feed(&frame(kind::WINDOW_UPDATE, 0, stream, &[0, 0, 0, 1])).unwrap();
        script.connection.output().clear();
        script.events();
    }
    assert_eq!(script.connection.open_streams(), 0);
}

#[test]
fn continuations_are_bounded_in_number_and_bytes() {
    let start = frame(kind::HEADERS, 0, 1, REQUEST);
    let mut script = Script::server(Config::default());
    script.feed(&start).unwrap();
    assert_eq!(flood(&mut script, 1000, |_| frame(kind::CONTINUATION, 0, 1, b"")), 64);
    let mut script = Script::server(Config::default());
    script.feed(&start).unwrap();
    let fragment = frame(kind::CONTINUATION, 0, 1, &[0x82; 16_384]);
    assert_eq!(flood(&mut script, 1000, |_| fragment.clone()), 15);
    // Refused by the head, before anything is kept.
    let head = FrameHead { length: 300_000, kind: kind::HEADERS, flags: 4, stream: 1 };
    Script::server(Config::default()).fails(&head.bytes(), ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn a_header_list_beyond_its_bound_is_answered_and_the_tables_stay_in_step() {
    let mut script = Script::server(Config { max_header_list_size: 2000, ..Config::default() });
    // An entry of 1,000 bytes, then named a hundred times; then one more entry that the next request names.
    let mut block = REQUEST.to_vec();
    block.extend([0x40, 1, b'a', 0x7f, 0xe9, 0x06]);
    block.extend([b'v'; 1000]);
    block.extend([0xbe; 100]);
    block.extend([0x40, 1, b'k', 1, b'w']);
    script.feed(&frame(kind::HEADERS, flag::END_HEADERS, 1, &block)).unwrap();
    let sent = script.sent();
    assert_eq!((sent[0].0.kind, sent[0].0.flags), (kind::HEADERS, flag::END_HEADERS | flag::END_STREAM));
    let mut status = Vec::new();
    hpack::Decoder::new()
        .decode(&sent[0].1, &mut |field: hpack::Field<'_>| status.extend_from_slice(field.value))
        .unwrap();
    assert_eq!(status, b"431");
    assert_eq!((sent[1].0.kind, &sent[1].1[..]), (kind::RST_STREAM, &[0; 4][..]));
    assert!(script.events().is_empty());
    let next = frame(kind::HEADERS, 5, 3, &[REQUEST, &[0xbe]].concat());
    script.feed(&next).unwrap();
    let events = script.events();
    assert!(matches!(&events[0], Event::Headers { fields, .. } if fields[3] == ("k".into(), "w".into())), "{events:?}");
    // Trailers of that size reset their stream.
    script.feed(&request(5, false)).unwrap();
    let trailers = frame(kind::HEADERS, 5, 5, &[0xbf; 100]);
    script.resets(&trailers, 5, ErrorCode::PROTOCOL_ERROR);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut script = Script::server(Config { max_concurrent_streams: 2, ..Config::default() });
    script.feed(&[request(1, true), request(3, true)].concat()).unwrap();
    script.resets(&request(5, false), 5, ErrorCode::REFUSED_STREAM);
    script.feed(&frame(kind::DATA, flag::END_STREAM, 5, b"late")).unwrap();
    assert_eq!(script.connection.counters().streams_refused, 1);
    script.connection.send_headers(StreamId(1), HEAD, true).unwrap();
    script.feed(&request(7, true)).unwrap();
    assert!(script.connection.is_open(StreamId(7)));
    let n = flood(&mut script, 10_000, |i| request(9 + 2 * i as u32, true));
    assert!((1900..=2000).contains(&n), "{n}");
}

#[test]
fn goaway_with_long_debug_data_is_not_kept() {
    let mut script = Script::client(Config::default());
    let long = frame(kind::GOAWAY, 0, 0, &vec![0; 500_000]);
    for piece in long.chunks(1000) {
        script.feed(piece).unwrap();
    }
    assert_eq!(script.events(), [Event::Goaway { last: 0, code: ErrorCode::NO_ERROR }]);
    script.feed(&frame(kind::PING, 0, 0, &[0; 8])).unwrap();
    assert_eq!(script.sent()[0].0.flags, flag::ACK);
}
