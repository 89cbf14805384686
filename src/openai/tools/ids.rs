//! The ids of tool calls (contract/openai.md section 1.6).
//!
//! They need to differ, not to be secret, so a small generator is enough; a given seed makes tests repeatable.

use std::hash::{BuildHasher, RandomState};

use super::ToolParserKind;

/// Random numbers for ids (splitmix64).
#[derive(Debug, Clone)]
pub struct IdSource {
    state: u64,
}

impl IdSource {
    pub fn new(seed: u64) -> IdSource {
        IdSource { state: seed }
    }

    /// With a seed that differs from call to call and from process to process.
    pub fn random() -> IdSource {
        IdSource::new(RandomState::new().hash_one(0))
    }

    /// An id in the form that the parser's calls have.
    pub(super) fn call_id(&mut self, kind: ToolParserKind) -> String {
        match kind {
            ToolParserKind::Llama3 => format!("cmpl-{}", self.uuid()),
            ToolParserKind::Mistral => self.alphanumeric(9),
            ToolParserKind::Hermes | ToolParserKind::Pythonic => {
                format!("chatcmpl-tool-{:016x}{:016x}", self.next(), self.next())
            }
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In the form of a UUID of version 1, whose node has the bit that marks it as random.
    fn uuid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-1{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | ((low >> 48) & 0x3fff),
            (low & 0xffff_ffff_ffff) | 0x0100_0000_0000,
        )
    }

    fn alphanumeric(&mut self, length: usize) -> String {
        let any = |number: u64| match number % 62 {
            digit @ 0..=9 => b'0' + digit as u8,
            upper @ 10..=35 => b'A' + (upper - 10) as u8,
            lower => b'a' + (lower - 36) as u8,
        };
        (0..length).map(|_| char::from(any(self.next()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_of_their_parser() {
        let mut ids = IdSource::new(1);
        for _ in 0..100 {
            let id = ids.call_id(ToolParserKind::Llama3);
            let parts: Vec<&str> = id.strip_prefix("cmpl-").unwrap().split('-').collect();
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{id}");
            assert!(parts[2].starts_with('1') && matches!(parts[3].as_bytes()[0], b'8'..=b'b'), "{id}");
            let id = ids.call_id(ToolParserKind::Mistral);
            assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            let id = ids.call_id(ToolParserKind::Hermes);
            let hex = id.strip_prefix("chatcmpl-tool-").unwrap();
            assert!(hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        }
    }

    #[test]
    fn ids_differ_unless_their_seed_is_the_same() {
        let mut ids = IdSource::new(7);
        let first = ids.call_id(ToolParserKind::Mistral);
        assert_ne!(ids.call_id(ToolParserKind::Mistral), first);
        assert_eq!(IdSource::new(7).call_id(ToolParserKind::Mistral), first);
        assert_ne!(IdSource::random().next(), IdSource::random().next());
    }
}
