//! The same input, cut anywhere, and damaged input.

use super::*;

/// What a client might send to a server, with everything that a frame may have.
fn session() -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    let mut add = |more: Vec<u8>| bytes.extend(more);
    add(settings(&[(setting::INITIAL_WINDOW_SIZE, 100_000), (setting::HEADER_TABLE_SIZE, 256)]));
    add(frame(kind::SETTINGS, flag::ACK, 0, b""));
    add(frame(kind::WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]));
    let indexed = [REQUEST, &[0x40, 3, b'k', b'e', b'y', 0x82, 0x1c, 0x7f]].concat();
    add(frame(kind::HEADERS, flag::END_HEADERS, 1, &indexed));
    add(frame(kind::DATA, 0, 1, b"first"));
    add(frame(kind::HEADERS, flag::END_STREAM | flag::PADDED | flag::PRIORITY, 3, b"\x01\0\0\0\0\x10\x83\x86\0"));
    add(frame(kind::CONTINUATION, 0, 3, &[0x04]));
    add(frame(kind::CONTINUATION, flag::END_HEADERS, 3, &[2, b'/', b'b', 0xbe]));
    add(frame(kind::PING, 0, 0, b"12345678"));
    add(frame(kind::DATA, flag::PADDED, 1, b"\x03second\0\0\0"));
    add(frame(0x42, 0xff, 77, b"unknown"));
    add(frame(kind::PRIORITY, 0, 9, &[0; 5]));
    add(frame(kind::DATA, 0, 1, b""));
    add(request(5, false));
    add(frame(kind::RST_STREAM, 0, 5, &[0, 0, 0, 8]));
    add(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0, 1, b't', 1, b'v']));
    add(frame(kind::DATA, 0, 5, b"late"));
    add(request(7, false));
    add(frame(kind::DATA, flag::PADDED | flag::END_STREAM, 7, b"\x00last"));
    add(frame(kind::HEADERS, flag::END_HEADERS, 9, &[0x82]));
    add(frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2, b'b', b'y', b'e']));
    bytes
}

/// What a server might send to a client with three open streams.
fn answers() -> Vec<u8> {
    let mut bytes = settings(&[(setting::MAX_FRAME_SIZE, 20_000)]);
    let mut add = |more: Vec<u8>| bytes.extend(more);
    add(frame(kind::SETTINGS, flag::ACK, 0, b""));
    add(frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x08, 3, b'1', b'0', b'0']));
    add(frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x88, 0x5f, 1, b'x']));
    add(frame(kind::DATA, flag::PADDED, 1, b"\x02one\0\0"));
    add(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &[0x8d, 0xbe]));
    add(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0x40, 1, b's', 1, b'0']));
    add(frame(kind::RST_STREAM, 0, 5, &[0, 0, 0, 7]));
    add(frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]));
    bytes
}

fn fresh(role: Role) -> (Connection, Recorder) {
    let mut connection = match role {
        Role::Server => Connection::server(Config::default(), pool()),
        Role::Client => Connection::client(Config::default(), pool()),
    };
    if role == Role::Client {
        for _ in 0..3 {
            connection.open(CALL, true).unwrap();
        }
    }
    (connection, Recorder::default())
}

fn run<'a>(role: Role, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Event>, Vec<u8>) {
    let (mut connection, mut recorder) = fresh(role);
    for piece in pieces {
        connection.receive(piece, &mut recorder).unwrap();
    }
    (recorder.events, take(&mut connection))
}

#[test]
fn every_cut_gives_the_same_events_and_the_same_output() {
    for (role, bytes, events) in [(Role::Server, session(), 10), (Role::Client, answers(), 7)] {
        let whole = run(role, [&bytes[..]]);
        assert_eq!(whole.0.len(), events, "{:#?}", whole.0);
        assert_eq!(run(role, bytes.chunks(1)), whole);
        for cut in 0..bytes.len() {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(run(role, [front, back]), whole, "cut at {cut}");
            let (middle, back) = back.split_at(back.len().min(7));
            assert_eq!(run(role, [front, middle, back]), whole, "cut at {cut} and 7 later");
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => bytes.truncate(at.max(30)),
            3 => {
                let end = (at + 1 + random.below(12)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + 1 + random.below(40)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                let place = random.below(bytes.len());
                bytes.splice(place..place, again);
            }
            _ => {
                // A whole frame with a plausible head in a random place, mostly at a frame's boundary or not at all.
                let payload: Vec<u8> = (0..random.below(20)).map(|_| random.below(256) as u8).collect();
                let stream = random.below(12) as u32;
                let frame = frame(random.below(11) as u8, random.below(64) as u8, stream, &payload);
                bytes.splice(at..at, frame);
            }
        }
    }
}

/// Answers what it can, so that the sending side sees damaged input as well.
fn answer(connection: &mut Connection, events: &[Event], random: &mut Random) {
    for event in events {
        if let Event::Headers { stream, .. } | Event::Data { stream, .. } | Event::Reset { stream, .. } = event {
            // Errors are part of the play: streams may be gone, or not be ours to answer.
            let _ = connection.send_headers(*stream, HEAD, random.below(8) == 0);
            let _ = connection.send_bytes(*stream, &vec![0; random.below(3000)], random.below(4) == 0);
            let _ = connection.send_headers(*stream, TRAILERS, true);
            connection.consumed(*stream, random.below(100));
            if random.below(10) == 0 {
                connection.reset(*stream, ErrorCode::CANCEL);
            }
        }
    }
}

#[test]
fn damaged_sessions_never_panic_and_stay_bounded() {
    let mut random = Random(0x5eed);
    let (mut failed, mut survived) = (0, 0);
    for round in 0..10_000 {
        let role = if round % 3 == 2 { Role::Client } else { Role::Server };
        let mut bytes = if role == Role::Server { session() } else { answers() };
        damage(&mut bytes, &mut random);
        let (mut connection, mut recorder) = fresh(role);
        recorder.hold = round % 2 == 0;
        let mut rest = &bytes[..];
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            let (piece, behind) = rest.split_at(1 + random.below(rest.len()));
            rest = behind;
            result = connection.receive(piece, &mut recorder);
            let events = std::mem::take(&mut recorder.events);
            answer(&mut connection, &events, &mut random);
            if let Some((_, n)) = connection.direct()
                && result.is_ok()
            {
                let n = n.min(rest.len()).min(random.below(10));
                result = connection.direct_received(n, &mut recorder);
                rest = &rest[n..];
            }
            if random.below(20) == 0 {
                connection.start_shutdown("");
            }
            assert!(connection.unsent_total() < 300_000 && connection.open_streams() < 100);
            // Damage to the preface is answered in HTTP/1.x, all else in whole frames.
            if random.below(2) == 0 && result != Err(ConnectionError::Http1) {
                frames(&take(&mut connection));
            }
        }
        match result {
            Ok(()) => survived += 1,
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 1000 && survived > 1000, "{failed} failed, {survived} survived");
}

#[test]
fn damaged_header_blocks_never_panic() {
    let mut random = Random(7);
    let mut block = REQUEST.to_vec();
    block.extend([
        0x40, 0x82, 0x1c, 0x7f, 0x84, 0x25, 0xa8, 0x49, 0xe9, 0xbe, 0x3f, 0xe1, 0x1f, 0x5f, 3, b'a', b'b', b'c',
    ]);
    let mut decoder = hpack::Decoder::new();
    for _ in 0..10_000 {
        let mut damaged = block.clone();
        damage(&mut damaged, &mut random);
        let mut bytes = 0;
        if decoder.decode(&damaged, &mut |field: hpack::Field<'_>| bytes += field.value.len()).is_err() {
            decoder = hpack::Decoder::new();
        }
        assert!(bytes < 1 << 20);
    }
}
