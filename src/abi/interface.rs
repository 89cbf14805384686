//! Triton's C interfaces as a table, and the headers that are generated from it.
//!
//! One table is the source of the headers of `include/triton/core`, of the check that every exported function matches
//! its declaration, and of the list of symbols to export. It is read from the texts beside [`table`].

mod header;
pub mod table;

#[cfg(test)]
mod tests;

pub use header::{Header, headers};
pub use table::{Table, TableError};
