//! Backends behind Triton's C interface, both ways: those of `examples/backends/` in our server and in the official
//! one, and the official Python backend, as it comes in its package, in ours. The responses must be equal.

mod answers;
mod built;
mod python;
mod servers;
mod streams;
