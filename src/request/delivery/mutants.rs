//! Mistakes on demand in the delivery of responses: tests prove that they would catch them.

/// A mistake. Outside tests none is ever made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The last response is not marked as the last.
    FinalLost,
    /// A credit is not given back.
    CreditKept,
}

#[cfg(any(test, all(feature = "testing", debug_assertions)))]
thread_local! {
    static PRESENT: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Runs `test` with a mistake, on this thread.
#[cfg(any(test, all(feature = "testing", debug_assertions)))]
pub fn with<R>(mutant: Option<Mutant>, test: impl FnOnce() -> R) -> R {
    let before = PRESENT.replace(mutant);
    let result = test();
    PRESENT.set(before);
    result
}

/// Whether this mistake is to be made here and now.
#[inline]
pub fn is(mutant: Mutant) -> bool {
    #[cfg(any(test, all(feature = "testing", debug_assertions)))]
    return PRESENT.get() == Some(mutant);
    #[cfg(not(any(test, all(feature = "testing", debug_assertions))))]
    {
        let _ = mutant;
        false
    }
}
