//! Deliberate mistakes, by which the simulation of the whole server (`tests/simulation`) proves that it would catch
//! them.
//!
//! Each marked place behaves under its mutant as a plausible mistake would. Outside the builds of tests the condition
//! is a constant, and nothing of it is left. Mistakes of the schedulers, and of the delivery of responses, stand in the
//! crates that have a simulation of their own.

/// A mistake. A simulation turns on one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Memory that is given back stays counted.
    ChargeKept,
    /// An answer goes to the newest of the requests that are pipelined.
    AnswersSwapped,
    /// Bytes of a tensor that is received in parts land at its beginning.
    DirectMisplaced,
    /// Bytes of frames that are received many at once land at the beginning of their tensor.
    ScatterMisplaced,
    /// The calls of a connection that ends stay.
    CallsKept,
    /// The deadline of a call does not start.
    DeadlineForgotten,
    /// The deadline of a call goes on when the call is over.
    DeadlineKept,
    /// A connection that is closed stays counted.
    ConnectionCounted,
    /// The service is not told that a client has left.
    CancellationUnheard,
    /// A shard keeps its map of models when it gets a new one.
    MapKept,
    /// Plans of requests outlive the models that they were made for.
    PlansKept,
    /// The workers that got a request are not woken.
    WakesForgotten,
    /// A request that is answered stays counted as in flight.
    InFlightKept,
    /// An execution that fails is answered for the first request of its batch only.
    FailureOfOne,
    /// A request that succeeded is not counted.
    SuccessUncounted,
    /// A shard sleeps although a connection waits for the end of its send.
    QuietSendForgotten,
}

/// Defines the switch of a crate's mistakes beside its `Mutant`: `is`, whether a mistake is to be made here and now,
/// and in builds of tests `with`, which runs a test with one.
#[macro_export]
macro_rules! switch {
    ($mutant:ty) => {
        #[cfg(any(test, all(feature = "testing", debug_assertions)))]
        thread_local! {
            static PRESENT: std::cell::Cell<Option<$mutant>> = const { std::cell::Cell::new(None) };
        }

        /// Runs `test` with a mistake, on this thread.
        #[cfg(any(test, all(feature = "testing", debug_assertions)))]
        pub fn with<R>(mutant: Option<$mutant>, test: impl FnOnce() -> R) -> R {
            let before = PRESENT.replace(mutant);
            let result = test();
            PRESENT.set(before);
            result
        }

        /// Whether this mistake is to be made here and now.
        #[inline]
        pub fn is(mutant: $mutant) -> bool {
            #[cfg(any(test, all(feature = "testing", debug_assertions)))]
            return PRESENT.get() == Some(mutant);
            #[cfg(not(any(test, all(feature = "testing", debug_assertions))))]
            {
                let _ = mutant;
                false
            }
        }
    };
}

switch!(Mutant);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_made_only_on_demand() {
        assert!(!is(Mutant::ChargeKept));
        with(Some(Mutant::ChargeKept), || {
            assert!(is(Mutant::ChargeKept));
            assert!(!is(Mutant::MapKept));
            assert!(std::thread::spawn(|| !is(Mutant::ChargeKept)).join().unwrap(), "on its thread alone");
        });
        assert!(!is(Mutant::ChargeKept));
    }
}
