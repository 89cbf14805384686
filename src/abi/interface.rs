//! Triton's C interfaces as a table, and the headers that are written from it.
//!
//! One table stands behind the headers of `include/triton/core`, the check that every exported function takes and gives
//! what its declaration says, and the list of what has to be exported. It is read from the texts beside [`table`].

mod header;
pub mod table;

#[cfg(test)]
mod tests;

pub use header::{Header, headers};
pub use table::{Table, TableError};
