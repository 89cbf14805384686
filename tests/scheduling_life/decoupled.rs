//! Any number of responses to a request (backends.md sections 2 and 3).
