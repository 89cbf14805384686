//! Both protocols over Unix sockets.
