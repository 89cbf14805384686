//! What fuzz targets call of the link to workers: messages, and memory that a worker names.

pub use super::answers::Answer;
pub use super::inbound::{Announce, Inbound, Range};
pub use super::link::{Bounds, Link};
pub use super::marshal::{Malformed, Value, Writer};
