//! Damaged files of every format.
