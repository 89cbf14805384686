//! Mistakes on demand in the delivery of responses: tests prove that they would catch them.

/// A mistake. Outside tests none is ever made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The last response is not marked as the last.
    FinalLost,
    /// A credit is not given back.
    CreditKept,
}

nereid_mutants::switch!(Mutant);
