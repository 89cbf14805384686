//! Mistakes on demand: the simulation proves that it would catch them.
//!
//! Each place that is marked here does, under its mutant, what a plausible mistake would do. Outside tests the question
//! is a constant.

/// A mistake. The simulation turns on one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// An enqueuer does not wake the worker that sleeps with the token.
    LostWake,
    /// A sequence's place is known by its number alone, so that a late call reaches whoever has the place now.
    StaleSequence,
    /// The last request of a sequence leaves its id behind.
    ForgottenEnd,
    /// The youngest sequence of the backlog gets a place first.
    BacklogOrder,
    /// A slot without a request is left out of the batch.
    MissingNullRow,
    /// A sequence starts with what its predecessor left.
    StaleState,
}

#[cfg(test)]
thread_local! {
    static PRESENT: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Runs `test` with a mistake.
#[cfg(test)]
pub fn with<R>(mutant: Option<Mutant>, test: impl FnOnce() -> R) -> R {
    let before = PRESENT.replace(mutant);
    let result = test();
    PRESENT.set(before);
    result
}

/// Whether this mistake is to be made here and now.
#[inline]
pub fn is(mutant: Mutant) -> bool {
    #[cfg(test)]
    return PRESENT.get() == Some(mutant);
    #[cfg(not(test))]
    {
        let _ = mutant;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_made_only_on_demand() {
        assert!(!is(Mutant::LostWake));
        with(Some(Mutant::LostWake), || assert!(is(Mutant::LostWake)));
        assert!(!is(Mutant::LostWake));
    }
}
