//! Decisions of a target that are not part of what it reads: where an input is cut, which bounds hold.

/// A sequence of numbers that follows from its seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

/// Bytes of an input that seed the decisions.
pub const SEED_BYTES: usize = 4;

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `below` - 1; 0 for `below` = 0.
    pub fn below(&mut self, below: usize) -> usize {
        (self.number() % (below.max(1) as u64)) as usize
    }

    /// True in one of `of` cases.
    pub fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    /// One of `from`, which is not empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Cuts `bytes` into pieces: whole, byte by byte, or at arbitrary places.
    pub fn cut<'a>(&mut self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let longest = *self.pick(&[1, 2, 7, 64, 1024, usize::MAX]);
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = 1 + self.below(longest.min(rest.len()));
            let (piece, behind) = rest.split_at(len);
            pieces.push(piece);
            rest = behind;
        }
        pieces
    }
}

/// The decisions that an input begins with, and the rest of it.
pub fn split(data: &[u8]) -> (Dice, &[u8]) {
    let (seed, rest) = data.split_at(data.len().min(SEED_BYTES));
    let seed = seed.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte));
    (Dice::new(seed), rest)
}
