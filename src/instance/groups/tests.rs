//! Which instances are asked for, kept, and on which threads.
