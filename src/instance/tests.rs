//! Instances of a pretended model: how they start, change and end.
