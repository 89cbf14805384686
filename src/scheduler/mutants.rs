//! Deliberate mistakes, by which the simulation proves that it would catch them.
//!
//! Each marked place behaves under its mutant as a plausible mistake would. Outside tests the condition is a constant.

/// A mistake. The simulation turns on one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// An enqueuer does not wake the worker that sleeps with the token.
    LostWake,
    /// A batch counts requests that were taken back.
    TombstoneCounted,
    /// A batch aims at one row less than a preferred size.
    PreferredOffByOne,
    /// A batch takes a request that does not fit into it.
    MaxBatchIgnored,
    /// The last priority level comes first.
    PriorityInverted,
    /// A batch that waits for more is not checked again when its time is up.
    DelayForgotten,
    /// A request that is executed keeps its place in the queue of its level.
    PlaceKept,
    /// A worker that waits for more is not woken when a request is taken back.
    RemovalUnseen,
    /// An answer is passed on when it comes, not when it is due.
    OrderForgotten,
    /// A refused request keeps its place in the order, and the others wait for it.
    RefusalKeepsPlace,
    /// An instance that finds nothing to execute keeps the resources that it was granted.
    GrantLeaked,
    /// Resources go to the first instance that requested them, however often it has executed.
    OrderIgnored,
    /// An instance that needs many resources is passed for ever by those that need few.
    NoAgeing,
    /// The answer of a failed execution goes into the response cache.
    FailureCached,
    /// A full response cache evicts the entry that was used last.
    NewestEvicted,
    /// The response cache returns the entry under a key, whatever request it was made for.
    SealIgnored,
    /// An ensemble starts a step once for each input, even when two inputs get the same tensor.
    StepTwice,
    /// A step of an ensemble gets the newest value of an input, not the one with its number.
    WrongIteration,
    /// An ensemble goes on as if a step had not failed.
    ErrorForgotten,
    /// A step that fails keeps its place among those in flight.
    SlotLeaked,
    /// A worker that keeps a request of an ensemble behind its execution does not continue it.
    HandOverForgotten,
    /// A sequence is identified by its slot number alone, so that a late call reaches the sequence that has the slot
    /// now.
    StaleSequence,
    /// The last request of a sequence leaves its id registered.
    ForgottenEnd,
    /// An iterative sequence outlives its request.
    IterationGoesOn,
    /// The youngest sequence of the backlog gets a slot first.
    BacklogOrder,
    /// A slot without a request is left out of the batch.
    MissingNullRow,
    /// A sequence starts with the state that its predecessor left.
    StaleState,
}

nereid_mutants::switch!(Mutant);

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
