//! What a Python worker may send, where the worker lies: frames in shared memory, marshalled messages, and names of
//! memory.

pub mod frames;
pub mod marshal;
pub mod memory;
