//! Compressed requests and answers, in steps.

pub mod packing;
pub mod unpacking;
