//! Where the time of a request went, for who asks.
