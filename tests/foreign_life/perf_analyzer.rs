//! Triton's own load client.
