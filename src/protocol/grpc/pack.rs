//! A framed message becomes a compressed one, in bounded steps, or stays as it is where that is shorter.

use super::PREFIX_BYTES;
use crate::compression::{Format, Level, Outcome, Packer};
use nereid_memory::{Gather, Pool, Slice};

/// One message on its way.
pub struct MessagePacker(Packer);

impl MessagePacker {
    /// `framed`: a message behind its prefix.
    pub fn new(format: Format, level: Level, mut framed: Gather) -> MessagePacker {
        let mut pieces = Vec::new();
        framed.take(usize::MAX, &mut pieces);
        let mut prefix = PREFIX_BYTES;
        for piece in &mut pieces {
            let n = piece.len().min(prefix);
            piece.advance(n);
            prefix -= n;
        }
        MessagePacker(Packer::new(format, level, pieces))
    }

    /// Packs a bounded part; true when the message can be sent.
    pub fn step(&mut self, pool: &Pool) -> bool {
        self.0.grows() || self.0.step(pool)
    }

    /// The message behind its prefix, once a step has returned that it can be sent. Before that, and where packing
    /// gains nothing, it is not compressed, which the flag in its prefix states.
    pub fn finish(self, pool: &Pool, is_packed: bool) -> Gather {
        let is_packed = is_packed && !self.0.grows();
        match if is_packed { self.0.finish() } else { self.0.give_up() } {
            Outcome::Packed(pieces) => framed(1, pieces, pool),
            Outcome::Plain(pieces) => framed(0, pieces, pool),
        }
    }
}

fn framed(flag: u8, pieces: Vec<Slice>, pool: &Pool) -> Gather {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    let mut framed = Gather::new();
    framed.put(pool, &[flag, a, b, c, d]);
    pieces.into_iter().for_each(|piece| framed.push(pool, piece));
    framed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::{Encoding, Limits, Message, MessageReader, Mode};

    fn packed(message: &[u8], pool: &Pool) -> Vec<u8> {
        let plain = framed(0, vec![Slice::copy_of(message)], pool);
        let mut packer = MessagePacker::new(Format::Gzip, Level::Medium, plain);
        while !packer.step(pool) {}
        packer.finish(pool, true).to_vec()
    }

    #[test]
    fn a_message_is_packed_only_where_that_helps() {
        let pool = Pool::new(1 << 24);
        for (message, flag) in [(&b""[..], 0), (b"short", 0), (&[7; 3000], 1), (&[1; 200_000], 1)] {
            let bytes = packed(message, &pool);
            assert_eq!(bytes[0], flag, "of {}", message.len());
            let len = u32::from_be_bytes(*bytes[1..].first_chunk().unwrap()) as usize;
            assert_eq!(len, bytes.len() - PREFIX_BYTES);
            match flag {
                0 => assert_eq!(&bytes[PREFIX_BYTES..], message),
                _ => assert!(len < message.len() / 10),
            }
        }
    }

    #[test]
    fn what_is_given_up_goes_out_as_it_came() {
        let pool = Pool::new(1 << 24);
        let plain = framed(0, vec![Slice::copy_of(&[5; 50_000])], &pool);
        let mut packer = MessagePacker::new(Format::Deflate, Level::Low, plain);
        assert!(!packer.step(&pool));
        let bytes = packer.finish(&pool, false).to_vec();
        assert_eq!(bytes[..PREFIX_BYTES], [0, 0, 0, 195, 80]);
        assert!(bytes[PREFIX_BYTES..].iter().all(|byte| *byte == 5));
    }

    #[test]
    fn the_reader_takes_it() {
        let pool = Pool::new(1 << 24);
        let mut reader = MessageReader::new(pool.clone(), Limits::default(), Mode::Collect);
        reader.set_encoding(Encoding::Gzip);
        let bytes = packed(&[9; 5000], &pool);
        assert_eq!(reader.feed(&bytes), Ok(bytes.len()));
        assert!(matches!(reader.next_message(), Some(Message::Compressed(Encoding::Gzip, ..))));
    }
}
