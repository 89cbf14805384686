//! Settings, sampling and files, without a server.
