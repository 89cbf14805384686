//! A client in Go.
