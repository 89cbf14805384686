//! Numbers that a seed decides (Steele, Lea and Flood's SplitMix64).

#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// One of the sequences of a seed.
    pub fn new(seed: u64, sequence: u64) -> Random {
        let mut random = Random(seed ^ sequence.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        random.next();
        random
    }

    /// Any number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
