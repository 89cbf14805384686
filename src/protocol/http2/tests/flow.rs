//! Flow control in both directions, and receiving around the parser.

use super::*;

fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

fn gather(bytes: &[u8]) -> Gather {
    let mut gather = Gather::new();
    gather.push(&pool(), Slice::copy_of(bytes));
    gather
}

/// A server with one open stream, whose head is sent.
fn answering(peer: &[(u16, u32)]) -> Script {
    let mut script = Script::server(Config::default());
    script.feed(&settings(peer)).unwrap();
    script.feed(&request(1, true)).unwrap();
    script.connection.send_headers(StreamId(1), HEAD, false).unwrap();
    script.sent();
    script
}

fn data_of(sent: &[(FrameHead, Vec<u8>)]) -> Vec<u8> {
    sent.iter().filter(|frame| frame.0.kind == kind::DATA).flat_map(|frame| frame.1.clone()).collect()
}

#[test]
fn data_waits_for_both_windows() {
    let mut script = answering(&[(setting::INITIAL_WINDOW_SIZE, 10)]);
    let body: Vec<u8> = (0..=255).collect();
    script.connection.send_data(StreamId(1), &mut gather(&body), false).unwrap();
    script.connection.send_headers(StreamId(1), TRAILERS, true).unwrap();
    assert_eq!(data_of(&script.sent()), body[..10]);
    assert_eq!((script.connection.unsent(StreamId(1)), script.connection.unsent_total()), (246, 246));
    script.feed(&window_update(1, 6)).unwrap();
    assert_eq!(data_of(&script.sent()), body[10..16]);
    // A smaller initial window takes the stream's window below zero: -16 + 5.
    script.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 0)])).unwrap();
    script.feed(&window_update(1, 10)).unwrap();
    assert_eq!(data_of(&script.sent()), b"");
    script.feed(&window_update(1, 1)).unwrap();
    assert_eq!(data_of(&script.sent()), body[16..17]);
    script.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1000)])).unwrap();
    let sent = script.sent();
    assert_eq!(data_of(&sent), body[17..]);
    let last = sent.last().unwrap();
    assert_eq!((last.0.kind, last.0.flags), (kind::HEADERS, flag::END_HEADERS | flag::END_STREAM));
    assert_eq!((script.connection.open_streams(), script.connection.unsent_total()), (0, 0));
}

#[test]
fn the_connection_window_is_shared() {
    let mut script = answering(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20), (setting::MAX_FRAME_SIZE, 20_000)]);
    script.feed(&request(3, true)).unwrap();
    script.connection.send_headers(StreamId(3), HEAD, false).unwrap();
    for stream in [1, 3] {
        script.connection.send_data(StreamId(stream), &mut gather(&vec![stream as u8; 50_000]), true).unwrap();
    }
    let sent = script.sent();
    assert_eq!(data_of(&sent).len(), 65_535);
    assert!(sent.iter().all(|frame| frame.0.length <= 20_000));
    script.feed(&window_update(0, 100_000)).unwrap();
    let sent = script.sent();
    assert_eq!(data_of(&sent).len(), 100_000 - 65_535);
    assert_eq!(sent.iter().filter(|frame| frame.0.flags & flag::END_STREAM != 0).count(), 1);
    assert_eq!(script.connection.open_streams(), 0);
}

#[test]
fn streams_take_turns_and_a_reset_drops_what_is_not_cut() {
    let config = Config { output_target: 30_000, ..Config::default() };
    let mut script = Script::server(config);
    script.feed(&[settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 24)]), window_update(0, 1 << 24)].concat()).unwrap();
    for stream in [1, 3] {
        script.feed(&request(stream, true)).unwrap();
        script.connection.send_headers(StreamId(stream), HEAD, false).unwrap();
        script.connection.send_data(StreamId(stream), &mut gather(&vec![0; 100_000]), true).unwrap();
    }
    assert!(script.connection.output().len() < 30_000 + 16_384 + 100);
    let bytes = script.connection.output().to_vec();
    script.connection.output().clear();
    assert!(frames(&bytes).len() >= 4, "{}", bytes.len());
    script.connection.output().clear();
    let order: Vec<u32> = script.sent().iter().map(|frame| frame.0.stream).collect();
    assert!(order.windows(2).take(4).all(|pair| pair[0] != pair[1]), "{order:?}");

    script.feed(&request(5, true)).unwrap();
    script.connection.send_headers(StreamId(5), HEAD, false).unwrap();
    script.connection.send_data(StreamId(5), &mut gather(&vec![0; 1_000_000]), true).unwrap();
    assert!(script.connection.unsent(StreamId(5)) > 900_000);
    script.connection.reset(StreamId(5), ErrorCode::CANCEL);
    assert!(script.connection.unsent_total() < 60_000);
}

#[test]
fn large_slices_are_sent_without_a_copy() {
    let mut script = answering(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    let large = Slice::copy_of(&[7; 40_000]);
    let mut data = Gather::new();
    data.push(&pool(), large.clone());
    script.connection.send_data(StreamId(1), &mut data, true).unwrap();
    let mut pieces = Vec::new();
    script.connection.output().take(16, &mut pieces);
    let inside = |piece: &&Slice| large.as_ptr_range().contains(&piece.as_ptr());
    assert_eq!(pieces.iter().filter(inside).map(|piece| piece.len()).sum::<usize>(), 40_000);
}

#[test]
fn small_sends_go_straight_out_and_large_ones_wait() {
    let mut script = answering(&[(setting::INITIAL_WINDOW_SIZE, 20)]);
    script.connection.send_bytes(StreamId(1), b"0123456789", false).unwrap();
    script.connection.send_bytes(StreamId(1), b"0123456789abcdef", false).unwrap();
    script.connection.send_bytes(StreamId(1), b"ghi", false).unwrap();
    script.connection.send_bytes(StreamId(1), b"", true).unwrap();
    assert_eq!(data_of(&script.sent()), b"01234567890123456789");
    script.feed(&window_update(1, 100)).unwrap();
    let sent = script.sent();
    assert_eq!(data_of(&sent), b"abcdefghi");
    assert_eq!(sent.last().unwrap().0.flags, flag::END_STREAM);
    assert_eq!(script.connection.open_streams(), 0);
}

#[test]
fn window_updates_of_nothing_and_beyond_the_largest_are_errors() {
    let open = || answering(&[]);
    open().resets(&window_update(1, 0), 1, ErrorCode::PROTOCOL_ERROR);
    open().resets(&window_update(1, (1 << 31) - 1), 1, ErrorCode::FLOW_CONTROL_ERROR);
    open().fails(&window_update(0, 0), ErrorCode::PROTOCOL_ERROR);
    open().fails(&window_update(0, (1 << 31) - 1), ErrorCode::FLOW_CONTROL_ERROR);
    let mut script = open();
    script.feed(&window_update(1, 1)).unwrap();
    script.fails(&settings(&[(setting::INITIAL_WINDOW_SIZE, (1 << 31) - 1)]), ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn credit_follows_consumption() {
    let config = Config { stream_window: 100_000, connection_window: 1_000_000, ..Config::default() };
    let mut script = Script::server(config);
    script.recorder.hold = true;
    script.feed(&request(1, false)).unwrap();
    script.feed(&frame(kind::DATA, 0, 1, &vec![1; 90_000])).unwrap();
    assert!(script.sent().is_empty(), "nothing is given back before it is taken");
    script.connection.consumed(StreamId(1), 49_999);
    assert!(script.sent().is_empty(), "credit is collected");
    script.connection.consumed(StreamId(1), 1);
    let sent = script.sent();
    assert_eq!((sent[0].0.stream, &sent[0].1[..]), (1, &50_000u32.to_be_bytes()[..]));
    // The caller cannot give more than there was.
    script.connection.consumed(StreamId(1), usize::MAX);
    assert!(script.sent().is_empty());
    script.connection.consumed(StreamId(1), 1 << 40);
    assert!(script.sent().is_empty());
    // 60,000 are left to the peer, and not a byte more.
    let mut over = script;
    over.resets(&frame(kind::DATA, 0, 1, &vec![1; 60_001]), 1, ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn what_nobody_wants_is_given_back_to_the_connection() {
    let config = Config { connection_window: 100_000, ..Config::default() };
    let mut script = Script::server(config);
    script.recorder.hold = true;
    let mut returned = 0;
    for stream in (1..400).step_by(2) {
        script.feed(&request(stream, false)).unwrap();
        script.feed(&frame(kind::DATA, 0, stream, &[0; 5000])).unwrap();
        // Untaken bytes come back with the stream's end, whoever ends it ...
        match stream % 4 {
            1 => script.connection.reset(StreamId(stream), ErrorCode::CANCEL),
            _ => script.feed(&frame(kind::RST_STREAM, 0, stream, &[0; 4])).unwrap(),
        }
        // ... and so do those that come behind it.
        script.feed(&frame(kind::DATA, flag::PADDED, stream, &[9; 5000])).unwrap();
        for (head, payload) in script.sent() {
            if head.kind == kind::WINDOW_UPDATE {
                assert_eq!(head.stream, 0);
                returned += u32::from_be_bytes(payload[..].try_into().unwrap());
            }
        }
    }
    assert!(returned > 200 * 10_000 - 50_000 && returned <= 200 * 10_000);
    let mut script = Script::server(config);
    script.recorder.hold = true;
    script.feed(&request(1, false)).unwrap();
    script.feed(&frame(kind::DATA, 0, 1, &vec![0; 100_000])).unwrap();
    script.fails(&frame(kind::DATA, 0, 1, b"x"), ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn a_small_window_counts_from_its_acknowledgement() {
    let config = Config { stream_window: 1000, ..Config::default() };
    let mut script = Script { connection: Connection::server(config, pool()), recorder: Recorder::default() };
    script.recorder.hold = true;
    script.feed(&[PREFACE, &settings(&[]), &request(1, false)].concat()).unwrap();
    script.feed(&frame(kind::DATA, 0, 1, &[0; 16_384])).unwrap();
    script.feed(&frame(kind::SETTINGS, flag::ACK, 0, b"")).unwrap();
    script.sent();
    // An empty frame fits into any window, the end too.
    script.feed(&frame(kind::DATA, 0, 1, b"")).unwrap();
    script.resets(&frame(kind::DATA, 0, 1, b"x"), 1, ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn bodies_can_be_received_around_the_parser() {
    let mut script = Script::server(Config::default());
    assert_eq!(script.connection.direct(), None);
    script.feed(&request(1, false)).unwrap();
    let body = frame(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &[&[4][..], &[5; 1000], &[0; 4]].concat());
    script.feed(&body[..9]).unwrap();
    assert_eq!(script.connection.direct(), None, "the pad length is due");
    script.feed(&body[9..110]).unwrap();
    assert_eq!(script.connection.direct(), Some((StreamId(1), 900)));
    script.connection.direct_received(800, &mut script.recorder).unwrap();
    assert_eq!(script.connection.direct(), Some((StreamId(1), 100)));
    script.connection.direct_received(100, &mut script.recorder).unwrap();
    assert_eq!(script.connection.direct(), None, "padding goes through the parser");
    assert_eq!(script.events().len(), 2);
    script.feed(&body[1010..]).unwrap();
    assert_eq!(script.events(), [Event::Data { stream: StreamId(1), bytes: vec![], end: true }]);

    script.feed(&request(3, false)).unwrap();
    script.feed(&frame(kind::DATA, flag::END_STREAM, 3, &[1; 50])[..20]).unwrap();
    script.connection.direct_received(39, &mut script.recorder).unwrap();
    let end = Event::Data { stream: StreamId(3), bytes: vec![1; 11], end: true };
    assert_eq!(script.events().pop(), Some(end));
    assert_eq!(script.connection.direct(), None);
    script.feed(&request(5, true)).unwrap();
    assert_eq!(script.events().len(), 1, "the parser stands behind the frame");
}

#[test]
fn a_reset_inside_a_frame_drops_the_rest_of_it() {
    let mut script = Script::server(Config::default());
    script.recorder.hold = true;
    script.feed(&request(1, false)).unwrap();
    let body = frame(kind::DATA, flag::END_STREAM, 1, &[1; 50]);
    script.feed(&body[..20]).unwrap();
    script.connection.reset(StreamId(1), ErrorCode::CANCEL);
    assert_eq!(script.connection.direct(), None);
    script.events();
    script.feed(&[&body[20..], &request(3, true)].concat()).unwrap();
    assert!(matches!(script.events()[..], [Event::Headers { .. }]));
}

#[test]
fn trailers_that_wait_do_not_disturb_the_table() {
    let mut script = answering(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
    script.connection.send_bytes(StreamId(1), b"body", false).unwrap();
    script.connection.send_headers(StreamId(1), TRAILERS, true).unwrap();
    // The table changes while they wait, and so does its size.
    script.feed(&request(3, true)).unwrap();
    script.connection.send_headers(StreamId(3), [(&b":status"[..], &b"200"[..]), (b"server", b"x")], true).unwrap();
    script.feed(&settings(&[(setting::HEADER_TABLE_SIZE, 100), (setting::INITIAL_WINDOW_SIZE, 9)])).unwrap();
    let sent = script.sent();
    let mut decoder = hpack::Decoder::new();
    let mut fields = Vec::new();
    for (head, payload) in sent.iter().filter(|frame| frame.0.kind == kind::HEADERS) {
        let mut sink = |field: hpack::Field<'_>| fields.push((head.stream, text(field.name), text(field.value)));
        decoder.decode(payload, &mut sink).unwrap();
        // From its acknowledgement on, the smaller table must be confirmed by the next block.
        decoder.set_limit(100);
    }
    let field = |stream, name: &str, value: &str| (stream, name.to_string(), value.to_string());
    assert_eq!(fields, [field(3, ":status", "200"), field(3, "server", "x"), field(1, "grpc-status", "0")]);
}

#[test]
fn long_heads_are_continued() {
    let mut script = answering(&[]);
    script.feed(&request(3, true)).unwrap();
    let long = vec![b'v'; 40_000];
    script.connection.send_headers(StreamId(3), [(&b":status"[..], &b"200"[..]), (b"x", &long)], true).unwrap();
    let sent = script.sent();
    let kinds: Vec<(u8, u8)> = sent.iter().map(|frame| (frame.0.kind, frame.0.flags)).collect();
    let last = (kind::CONTINUATION, flag::END_HEADERS);
    assert_eq!(kinds, [(kind::HEADERS, flag::END_STREAM), (kind::CONTINUATION, 0), last]);
    assert!(sent.iter().all(|frame| frame.0.length <= 16_384));
    let block: Vec<u8> = sent.into_iter().flat_map(|frame| frame.1).collect();
    let mut lengths = Vec::new();
    hpack::Decoder::new().decode(&block, &mut |field: hpack::Field<'_>| lengths.push(field.value.len())).unwrap();
    assert_eq!(lengths, [3, 40_000]);
}

/// Against three calls that say the same: the bytes are equal, whatever windows, limits and tables allow.
#[test]
fn a_whole_answer_is_what_its_parts_would_be() {
    const TAIL: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];
    let cases: [(&[(u16, u32)], bool); 5] = [
        (&[], true),
        (&[(setting::INITIAL_WINDOW_SIZE, 20)], false),
        (&[(setting::MAX_HEADER_LIST_SIZE, 16 << 10)], true),
        (&[(setting::MAX_HEADER_LIST_SIZE, 50)], false),
        (&[(setting::HEADER_TABLE_SIZE, 0)], true),
    ];
    for (announced, expected) in cases {
        let (mut whole, mut parts) = (Script::server(Config::default()), Script::server(Config::default()));
        let (mut head, mut tail) = (CachedFields::new(&HEAD), CachedFields::new(&TAIL));
        let message: Vec<u8> = (0..60).collect();
        for round in 0..6u32 {
            let id = StreamId(2 * round + 1);
            for script in [&mut whole, &mut parts] {
                if round == 3 {
                    script.feed(&settings(announced)).unwrap();
                }
                script.feed(&request(id.0, true)).unwrap();
            }
            let gather = || {
                let mut gather = Gather::new();
                gather.push_whole(Slice::copy_of(&message));
                gather
            };
            let mut data = gather();
            let answered = whole.connection.answer(id, &mut head, &mut data, &mut tail);
            assert_eq!((answered, data.is_empty()), (round < 3 || expected, answered), "{announced:?} {round}");
            assert_eq!(whole.connection.is_open(id), !answered);
            let say = |script: &mut Script| {
                let connection = &mut script.connection;
                let _ = connection.send_headers(id, HEAD, false);
                let _ = connection.send_data(id, &mut gather(), false);
                let _ = connection.send_headers(id, TAIL, true);
            };
            say(&mut parts);
            if !answered {
                say(&mut whole);
            }
            assert_eq!(whole.sent(), parts.sent(), "{announced:?} {round}");
            assert_eq!(whole.connection.unsent(id), parts.connection.unsent(id));
        }
    }
    // One that is not there, and one whose head was said.
    let mut script = Script::server(Config::default());
    script.feed(&request(1, true)).unwrap();
    script.connection.send_headers(StreamId(1), HEAD, false).unwrap();
    let (mut head, mut tail) = (CachedFields::new(&HEAD), CachedFields::new(&TAIL));
    for id in [1, 3] {
        let mut data = Gather::new();
        data.push_whole(Slice::from_static(b"x"));
        assert!(!script.connection.answer(StreamId(id), &mut head, &mut data, &mut tail));
        assert_eq!(data.len(), 1);
    }
}

#[test]
fn a_connection_goes_on_after_a_rest() {
    let mut script = answering(&[(setting::INITIAL_WINDOW_SIZE, 10)]);
    script.connection.send_data(StreamId(1), &mut gather(b"0123456789abcdef"), false).unwrap();
    // It waits for its turn.
    script.connection.rest();
    assert_eq!(data_of(&script.sent()), b"0123456789");
    // It waits for the window, and half of another head has come.
    script.connection.rest();
    let head = request(3, true);
    let (first, second) = head.split_at(11);
    script.feed(first).unwrap();
    script.connection.rest();
    script.feed(second).unwrap();
    let events = script.events();
    let is_head = |event: &Event| matches!(event, Event::Headers { stream: StreamId(3), end: true, .. });
    assert!(events.iter().any(is_head), "{events:?}");
    script.connection.send_headers(StreamId(3), HEAD, false).unwrap();
    script.connection.rest();
    assert_eq!(script.sent().iter().filter(|(head, _)| head.kind == kind::HEADERS).count(), 1, "what is unsent stays");
    script.feed(&window_update(1, 100)).unwrap();
    script.connection.rest();
    assert_eq!(data_of(&script.sent()), b"abcdef");
    script.connection.rest();
    script.connection.send_data(StreamId(1), &mut gather(b"gh"), true).unwrap();
    script.connection.send_data(StreamId(3), &mut gather(b"ij"), true).unwrap();
    assert_eq!(data_of(&script.sent()), b"ghij");
    assert_eq!(script.connection.open_streams(), 0);
}

#[test]
fn a_connection_at_rest_gives_back_what_it_keeps_for_more() {
    let pool = pool();
    let connection = Connection::server(Config::default(), pool.clone());
    let mut script = Script { connection, recorder: Recorder::default() };
    script.feed(&[PREFACE, &settings(&[])].concat()).unwrap();
    let mut pieces = Vec::new();
    script.connection.output().take(usize::MAX, &mut pieces);
    assert!(!pieces.is_empty());
    pieces.clear();
    let held = pool.bytes_in_use();
    script.connection.rest();
    assert!(pool.bytes_in_use() < held, "{held}, then {}", pool.bytes_in_use());
    script.feed(&request(1, true)).unwrap();
    script.connection.send_headers(StreamId(1), HEAD, true).unwrap();
    assert!(script.sent().iter().any(|(head, _)| head.kind == kind::HEADERS));
}
