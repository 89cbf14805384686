//! Refusals of the kernel, made up for tests: submissions of which it takes nothing.

use std::cell::Cell;

/// Which submissions a ring refuses.
#[derive(Debug, Clone, Copy)]
pub enum Refusals {
    None,
    All,
    /// So many, from the first on.
    First(u32),
    /// About half of them. The state of a sequence of pseudo-random numbers (xorshift), not 0.
    Half(u64),
}

thread_local! {
    static OF_NEW_RINGS: Cell<Refusals> = const { Cell::new(Refusals::None) };
}

impl Refusals {
    /// Runs `make`: the rings that it makes on this thread refuse like this.
    pub fn during<R>(self, make: impl FnOnce() -> R) -> R {
        OF_NEW_RINGS.set(self);
        let made = make();
        OF_NEW_RINGS.set(Refusals::None);
        made
    }

    pub(super) fn of_new_ring() -> Refusals {
        OF_NEW_RINGS.get()
    }

    /// Whether the next submission is refused.
    pub(super) fn next(&mut self) -> bool {
        match self {
            Refusals::None => false,
            Refusals::All => true,
            Refusals::First(left) => {
                let refuses = *left > 0;
                *left = left.saturating_sub(1);
                refuses
            }
            Refusals::Half(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                state.is_multiple_of(2)
            }
        }
    }
}
