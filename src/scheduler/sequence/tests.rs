//! The sequence batcher in small steps.
