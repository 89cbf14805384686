//! Mistakes on demand: the simulation proves that it would catch them.
//!
//! Each place that is marked here does, under its mutant, what a plausible mistake would do. Outside tests the question
//! is a constant.

/// A mistake. The simulation turns on one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// An enqueuer does not wake the worker that sleeps with the token.
    LostWake,
    /// A batch counts requests that were taken back.
    TombstoneCounted,
    /// A batch aims at one row less than a preferred size.
    PreferredOffByOne,
    /// A batch takes what does not fit into it.
    MaxBatchIgnored,
    /// The last priority level comes first.
    PriorityInverted,
    /// A batch that waits for more is not looked at again when its time is up.
    DelayForgotten,
    /// A request that is executed keeps its place in the queue of its level.
    PlaceKept,
    /// A worker that waits for more is not told that a request was taken back.
    RemovalUnseen,
    /// An answer is passed on when it comes, not when it is its turn.
    OrderForgotten,
    /// A place in the order whose request was refused keeps the others waiting.
    RefusalKeepsPlace,
    /// An instance that finds nothing to execute keeps the resources that it was given.
    GrantLeaked,
    /// Resources go to who came first, however often it has executed.
    OrderIgnored,
    /// Who waits for much is passed for ever by those who need little.
    NoAgeing,
    /// The answer of a failed execution goes into the response cache.
    FailureCached,
    /// A full response cache throws out what was used last.
    NewestEvicted,
    /// What the response cache has under a key is an answer, whatever request it was made for.
    SealIgnored,
    /// An ensemble starts a step once for each input, though two of them get the same tensor.
    StepTwice,
    /// A step of an ensemble gets the newest value of an input, not the one of its number.
    WrongIteration,
    /// An ensemble goes on as if a step had not failed.
    ErrorForgotten,
    /// A step that fails keeps its place among those in flight.
    SlotLeaked,
    /// A sequence's place is known by its number alone, so that a late call reaches whoever has the place now.
    StaleSequence,
    /// The last request of a sequence leaves its id behind.
    ForgottenEnd,
    /// An iterative sequence outlives its request.
    IterationGoesOn,
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
