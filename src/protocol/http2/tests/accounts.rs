//! A peer that keeps account of what it allows: nothing is sent beyond it, and nothing that it allows waits.

use std::collections::BTreeMap;

use super::*;
use crate::hpack::CachedFields;

/// One stream, as the peer sees it.
#[derive(Default)]
struct Account {
    window: i64,
    /// What the server was given to send, and what of that has arrived.
    given: Vec<u8>,
    arrived: Vec<u8>,
    /// Field lists that arrived.
    lists: usize,
    has_head: bool,
    is_finished: bool,
    has_ended: bool,
}

/// A client that has opened streams, and the server that answers them.
struct Peer {
    script: Script,
    decoder: hpack::Decoder,
    streams: BTreeMap<u32, Account>,
    next: u32,
    window: i64,
    initial_window: i64,
    frame_max: u32,
    head: CachedFields,
    trailers: CachedFields,
    random: u64,
}

impl Peer {
    fn new(seed: u64) -> Peer {
        let config = Config { output_target: 3000, ..Config::default() };
        Peer {
            script: Script::server(config),
            decoder: hpack::Decoder::new(),
            streams: BTreeMap::new(),
            next: 1,
            window: 65_535,
            initial_window: 65_535,
            frame_max: 16_384,
            head: CachedFields::new(&HEAD),
            trailers: CachedFields::new(&TRAILERS),
            random: seed | 1 << 63,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % n.max(1)
    }

    /// A length that often is exactly what a window or a frame has left, or one more or less.
    fn length(&mut self, id: u32) -> usize {
        let window = self.streams.get(&id).map_or(0, |stream| stream.window).min(self.window).max(0) as usize;
        match self.below(8) {
            0..3 => (window + self.below(3)).saturating_sub(1).min(90_000),
            3 => (self.frame_max as usize + self.below(3)).saturating_sub(1),
            4 => 0,
            _ => self.below(3000),
        }
    }

    fn open(&mut self) {
        let id = self.next;
        self.next += 2;
        self.script.feed(&request(id, true)).unwrap();
        self.streams.insert(id, Account { window: self.initial_window, ..Account::default() });
    }

    fn any_stream(&mut self) -> Option<u32> {
        let at = self.below(self.streams.len());
        self.streams.keys().nth(at).copied()
    }

    /// Lets the server do something on one stream.
    fn answer(&mut self) {
        let Some(id) = self.any_stream() else { return };
        let (length, choice) = (self.length(id), self.below(10));
        let bytes: Vec<u8> = (0..length).map(|_| self.below(256) as u8).collect();
        let Some(account) = self.streams.get_mut(&id).filter(|account| !account.is_finished) else { return };
        let connection = &mut self.script.connection;
        let mut data = Gather::new();
        if !bytes.is_empty() {
            data.push_whole(Slice::copy_of(&bytes));
        }
        if !account.has_head {
            if choice < 4 && connection.answer(StreamId(id), &mut self.head, &mut data, &mut self.trailers) {
                account.given.extend(bytes);
                account.is_finished = true;
                return;
            }
            connection.send_headers(StreamId(id), HEAD, false).unwrap();
            account.has_head = true;
        }
        account.is_finished = choice % 5 == 0;
        match choice {
            0..6 => connection.send_data(StreamId(id), &mut data, account.is_finished).unwrap(),
            6..9 => connection.send_bytes(StreamId(id), &bytes, account.is_finished).unwrap(),
            _ => {
                account.is_finished = true;
                connection.send_headers(StreamId(id), TRAILERS, true).unwrap();
                return;
            }
        }
        account.given.extend(bytes);
    }

    /// Allows more, or less.
    fn allow(&mut self) {
        let by = 1 + self.below(5000) as u32;
        let update = |stream: u32| frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
        match (self.below(6), self.any_stream()) {
            (0..2, _) => {
                self.script.feed(&update(0)).unwrap();
                self.window += i64::from(by);
            }
            (2..4, Some(id)) => {
                self.script.feed(&update(id)).unwrap();
                self.streams.entry(id).and_modify(|stream| stream.window += i64::from(by));
            }
            (4, _) => {
                let (window, frame_max) = (self.below(20_000) as u32, 16_384 + self.below(1000) as u32);
                let table = self.below(3) * 60;
                let announced = [
                    (setting::INITIAL_WINDOW_SIZE, window),
                    (setting::MAX_FRAME_SIZE, frame_max),
                    (setting::HEADER_TABLE_SIZE, table as u32),
                ];
                // What was sent before counts by the old settings.
                self.read();
                self.script.feed(&settings(&announced)).unwrap();
                let by = i64::from(window) - self.initial_window;
                self.streams.values_mut().for_each(|stream| stream.window += by);
                (self.initial_window, self.frame_max) = (i64::from(window), frame_max);
                self.decoder.set_limit(table);
            }
            _ => {}
        }
    }

    /// Reads all that the server sends, and checks it against the accounts.
    fn read(&mut self) {
        for (head, payload) in self.script.sent() {
            assert!(head.length <= self.frame_max, "a frame of {} bytes, {} allowed", head.length, self.frame_max);
            match head.kind {
                kind::DATA => {
                    let stream = self.streams.get_mut(&head.stream).unwrap();
                    (stream.window, self.window) =
                        (stream.window - i64::from(head.length), self.window - i64::from(head.length));
                    // A frame without a byte is not subject to flow control.
                    let is_allowed = head.length == 0 || stream.window.min(self.window) >= 0;
                    assert!(is_allowed, "{} bytes too many", -stream.window.min(self.window));
                    assert!(stream.lists == 1 && !stream.has_ended, "data without a head, or behind the end");
                    stream.arrived.extend(payload);
                    stream.has_ended = head.flags & flag::END_STREAM != 0;
                }
                kind::HEADERS => {
                    let mut names = Vec::new();
                    let mut sink = |field: hpack::Field<'_>| names.push(field.name.to_vec());
                    self.decoder.decode(&payload, &mut sink).unwrap();
                    let stream = self.streams.get_mut(&head.stream).unwrap();
                    let expected: &[&[u8]] = if stream.lists == 0 { &[HEAD[0].0, HEAD[1].0] } else { &[TRAILERS[0].0] };
                    assert_eq!(names, expected);
                    assert!(!stream.has_ended);
                    stream.lists += 1;
                    stream.has_ended = head.flags & flag::END_STREAM != 0;
                }
                kind::SETTINGS => assert!(head.flags & flag::ACK != 0),
                other => panic!("a frame of kind {other}"),
            }
        }
        let mut waiting = 0;
        for (id, stream) in &self.streams {
            let unsent = self.script.connection.unsent(StreamId(*id));
            assert!(unsent == 0 || stream.window.min(self.window) <= 0, "{unsent} bytes wait, although they may go");
            assert!(unsent > 0 || stream.arrived == stream.given, "bytes were lost or changed");
            assert_eq!(stream.has_ended, stream.is_finished && unsent == 0);
            waiting += unsent;
        }
        assert_eq!(self.script.connection.unsent_total(), waiting);
        self.streams.retain(|_, stream| !stream.has_ended);
    }
}

#[test]
fn what_the_peer_allows_is_sent_and_not_a_byte_more() {
    let (mut blocked, mut ended) = (0, 0);
    for seed in 1..400 {
        let mut peer = Peer::new(seed * 0x9e37_79b9);
        for _ in 0..60 {
            match peer.below(5) {
                0 if peer.streams.len() < 5 => peer.open(),
                0..3 => peer.answer(),
                _ => peer.allow(),
            }
            if peer.below(3) > 0 {
                peer.read();
            }
        }
        peer.read();
        blocked += peer.script.connection.unsent_total().min(1);
        // With room enough, all of it arrives.
        let ids: Vec<u32> = peer.streams.keys().copied().collect();
        for id in std::iter::once(0).chain(ids) {
            peer.script.feed(&frame(kind::WINDOW_UPDATE, 0, id, &(1u32 << 24).to_be_bytes())).unwrap();
            peer.streams.entry(id).and_modify(|stream| stream.window += 1 << 24);
            ended += 1;
        }
        peer.window += 1 << 24;
        peer.read();
        assert_eq!(peer.script.connection.unsent_total(), 0);
    }
    assert!(blocked > 50 && ended > 500, "{blocked} runs were blocked, {ended} streams were left");
}
