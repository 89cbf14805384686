//! The same Python models in the official server of release 2.51 and in ours: the same requests, over HTTP and gRPC,
//! and the answers held side by side, field by field (docs/differences.md has what may differ).

mod answers;
mod comparison;
mod known;
mod servers;
