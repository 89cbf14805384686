//! Packed messages of a stream, in both directions.
//!
//! Requests are read in the order in which they came and answers leave in the order in which they were written, so each
//! direction has a queue whose front is worked on in steps while what follows waits.

use std::collections::VecDeque;

use crate::api::coding::packing::Packing;
use nereid_memory::{Gather, Pool};
use nereid_protocol::grpc::{Message, MessagePacker, MessageUnpacker, Mode, ReadError, Unpacked};
use nereid_request::Credit;

/// Bytes of answers that wait to be packed; beyond, all of them leave as they are.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Requests on their way in: the first packed one, and all behind it.
#[derive(Default)]
pub struct Inbox {
    waiting: VecDeque<Message>,
    current: Option<Box<MessageUnpacker>>,
}

pub(super) enum Taken {
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

    pub(super) fn step(&mut self, pool: &Pool) -> Result<Taken, ReadError> {
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

pub(super) enum Packed {
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

    pub(super) fn step(&mut self, pool: &Pool) -> Packed {
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

    /// Whether too many bytes of answers wait to be packed.
    pub(super) fn is_overfull(&self) -> bool {
        self.bytes > WAITING_BYTES_MAX
    }

    /// Everything in its order, as it is.
    pub(super) fn take_plain(&mut self, pool: &Pool) -> Vec<(Gather, Option<Credit>)> {
        self.bytes = 0;
        let current = self.current.take().map(|(packer, _, credit)| (packer.finish(pool, false), credit));
        current.into_iter().chain(self.waiting.drain(..)).collect()
    }
}
