//! Bounds of the work that one turn does, so that no call keeps the others of its shard waiting.

/// Long steps of decoding or encoding that are done at once before the rest is put off to a later turn.
pub const LONG_STEPS_AT_ONCE: usize = 2;
/// JSON tokens, or elements of a tensor in JSON, that one step reads. With 4,096 the p99 of a client beside hostile
/// documents was half as high again, and large bodies took longer (benches/results/2026-11-hostile.md).
pub const TOKENS_PER_STEP: usize = 1024;
/// Steps of any length, so that many small inputs make a turn no longer than few large ones.
pub const STEPS_AT_ONCE: usize = 64;
/// Steps of unpacking and packing in one turn, most of them of a few microseconds: long ones are counted apart.
const UNPACKING_STEPS_A_TURN: usize = 48;

/// The steps of unpacking and packing that a turn has left.
pub struct PackingBudget {
    steps_left: usize,
}

impl PackingBudget {
    pub fn of_turn() -> PackingBudget {
        PackingBudget { steps_left: UNPACKING_STEPS_A_TURN }
    }

    /// Takes one step of this turn, if one is left: a turn may bring many small requests, and only some of them are
    /// unpacked at once.
    pub fn take_step(&mut self) -> bool {
        let has_step = self.steps_left > 0;
        self.steps_left = self.steps_left.saturating_sub(1);
        has_step
    }
}
