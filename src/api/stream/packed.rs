//! Packed messages of a stream, in both directions.
//!
//! Requests are read in the order in which they came and answers leave in the order in which they were said, so each
//! direction has a queue whose front is worked on in steps while what follows waits.

use std::collections::VecDeque;

use super::super::Api;
use super::super::packing::Packing;
use super::super::steps::LONG_STEPS_AT_ONCE;
use super::super::watch::Arrival;
use super::Stream;
use nereid_memory::{Gather, Pool};
use nereid_protocol::grpc::{Message, MessagePacker, MessageUnpacker, Mode, ReadError, Unpacked};
use nereid_protocol::service::{GrpcStatus, Replies, Token};
use nereid_request::Credit;

/// Bytes of answers that wait to be packed; beyond, all of them leave as they are.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Requests on their way in: the first packed one, and all behind it.
#[derive(Default)]
pub struct Inbox {
    waiting: VecDeque<Message>,
    current: Option<Box<MessageUnpacker>>,
}

enum Taken {
    Nothing,
    More { is_long: bool },
    Message(Message),
}

impl Inbox {
    pub fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    pub fn push(&mut self, message: Message) {
        self.waiting.push_back(message);
    }

    fn step(&mut self, pool: &Pool) -> Result<Taken, ReadError> {
        let Some(unpacker) = &mut self.current else {
            return Ok(match self.waiting.pop_front() {
                None => Taken::Nothing,
                Some(Message::Compressed(encoding, packed, limits)) => {
                    let unpacker = MessageUnpacker::new(Mode::Infer, encoding, limits, packed);
                    self.current = Some(Box::new(unpacker));
                    Taken::More { is_long: false }
                }
                Some(message) => Taken::Message(message),
            });
        };
        Ok(match unpacker.step(pool)? {
            Unpacked::More { is_long } => Taken::More { is_long },
            Unpacked::Message(message) => {
                self.current = None;
                Taken::Message(message)
            }
        })
    }
}

/// Answers on their way out, if they are to be packed.
#[derive(Default)]
pub struct Outbox {
    packing: Option<Packing>,
    waiting: VecDeque<(Gather, Option<Credit>)>,
    current: Option<(Box<MessagePacker>, usize, Option<Credit>)>,
    /// Of all of them, before they are packed.
    bytes: usize,
}

enum Packed {
    Nothing,
    More,
    Message(Gather, Option<Credit>),
}

impl Outbox {
    pub fn new(packing: Option<Packing>) -> Outbox {
        Outbox { packing, ..Outbox::default() }
    }

    pub fn is_packing(&self) -> bool {
        self.packing.is_some()
    }

    pub fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    pub fn push(&mut self, message: Gather, credit: Option<Credit>) {
        self.bytes = self.bytes.saturating_add(message.len());
        self.waiting.push_back((message, credit));
    }

    fn step(&mut self, pool: &Pool) -> Packed {
        if let Some((packer, ..)) = &mut self.current {
            if !packer.step(pool) {
                return Packed::More;
            }
            let Some((packer, bytes, credit)) = self.current.take() else { return Packed::Nothing };
            self.bytes = self.bytes.saturating_sub(bytes);
            return Packed::Message(packer.finish(pool, true), credit);
        }
        let Some((message, credit)) = self.waiting.pop_front() else { return Packed::Nothing };
        let Some(Packing { format, level }) = self.packing else { return Packed::Message(message, credit) };
        let bytes = message.len();
        self.current = Some((Box::new(MessagePacker::new(format, level, message)), bytes, credit));
        Packed::More
    }

    /// Everything in its order, as it is.
    fn take_plain(&mut self, pool: &Pool) -> Vec<(Gather, Option<Credit>)> {
        self.bytes = 0;
        let current = self.current.take().map(|(packer, _, credit)| (packer.finish(pool, false), credit));
        current.into_iter().chain(self.waiting.drain(..)).collect()
    }
}

impl Stream {
    /// Something waits to be packed or unpacked that can be.
    fn has_packed(&self) -> bool {
        (!self.inbox.is_empty() && !self.is_held) || !self.outbox.is_empty()
    }

    /// Says what waits to be packed without packing it.
    pub(super) fn say_plain(&mut self, pool: &Pool, replies: &mut Replies) {
        for (message, credit) in self.outbox.take_plain(pool) {
            self.emit(message, credit, replies);
        }
    }
}

impl Api {
    /// Sees to it that what waits on the stream to be packed or unpacked is.
    pub(in crate::api) fn drive_stream(&mut self, token: Token, replies: &mut Replies) {
        self.drive_stream_since(token, None, replies);
    }

    /// The same when a message has come. The one that is taken next keeps its arrival; others arrive when they are
    /// unpacked.
    pub(super) fn drive_stream_since(&mut self, token: Token, arrival: Option<Arrival>, replies: &mut Replies) {
        let Some(stream) = self.calls.stream(token) else { return };
        if stream.has_packed() && !std::mem::replace(&mut stream.is_driven, true) {
            self.go_on_with_stream(token, arrival, replies);
        }
    }

    /// Packs and unpacks a portion of what waits on the stream.
    pub(in crate::api) fn go_on_with_stream(&mut self, token: Token, arrival: Option<Arrival>, replies: &mut Replies) {
        if !self.unpack_streamed(token, arrival, replies) {
            return;
        }
        self.pack_streamed(token, replies);
        let Some(stream) = self.calls.stream(token) else { return };
        if stream.flush(replies) {
            self.calls.end_work(token.0);
        } else if stream.has_packed() {
            self.calls.come_back_to(token.0);
        } else {
            stream.is_driven = false;
        }
    }

    /// False if that was the end of the stream.
    fn unpack_streamed(&mut self, token: Token, mut arrival: Option<Arrival>, replies: &mut Replies) -> bool {
        let mut long_steps = 0;
        while long_steps < LONG_STEPS_AT_ONCE {
            let pool = self.pool.clone();
            let Some(stream) = self.calls.stream(token) else { return false };
            if stream.inbox.is_empty() || stream.is_held || !self.may_unpack() {
                return true;
            }
            let Some(stream) = self.calls.stream(token) else { return false };
            match stream.inbox.step(&pool) {
                Ok(Taken::Nothing) => return true,
                Ok(Taken::More { is_long }) => long_steps += usize::from(is_long),
                Ok(Taken::Message(message)) => self.take_streamed(token, message, arrival.take(), replies),
                Err(error) => {
                    self.end_stream(token, GrpcStatus::new(error.code(), error.to_string()), replies);
                    return false;
                }
            }
        }
        true
    }

    fn pack_streamed(&mut self, token: Token, replies: &mut Replies) {
        let mut steps = 0;
        while steps < LONG_STEPS_AT_ONCE {
            let pool = self.pool.clone();
            let Some(stream) = self.calls.stream(token) else { return };
            if stream.outbox.bytes > WAITING_BYTES_MAX {
                return stream.say_plain(&pool, replies);
            }
            if stream.outbox.is_empty() || !self.may_unpack() {
                return;
            }
            let Some(stream) = self.calls.stream(token) else { return };
            match stream.outbox.step(&pool) {
                Packed::Nothing => return,
                Packed::More => steps += 1,
                Packed::Message(message, credit) => stream.emit(message, credit, replies),
            }
        }
    }
}
