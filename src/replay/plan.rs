//! What is sent, where to, and how fast.

use std::time::Duration;

use nereid_client::{Endpoint, Tls};
use nereid_recording::{Contents, Protocol};

/// Requests at a time.
pub const CONCURRENCY_MAX: usize = 1024;

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Server {
    pub http: Endpoint,
    pub grpc: Endpoint,
    /// None: without TLS.
    pub tls: Option<Tls>,
    /// Of every request, beside those that were recorded: keys, which no recording has.
    pub headers: Vec<(String, String)>,
    /// The longest time until the head of an answer, and from then for each 64 KiB of it.
    pub patience: Duration,
}

impl Server {
    pub fn endpoint(&self, protocol: Protocol) -> &Endpoint {
        match protocol {
            Protocol::Http => &self.http,
            Protocol::Grpc => &self.grpc,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// So many times that of the recording.
    Times(f64),
    /// As soon as a place is free.
    Max,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub server: Server,
    /// None: each request over that of its record.
    pub protocol: Option<Protocol>,
    pub speed: Speed,
    pub concurrency_max: usize,
    /// Outputs are compared, not only statuses.
    pub compares: bool,
    pub tolerance: f64,
    /// Recorded names of models, and those that take their place.
    pub renames: Vec<(String, String)>,
    pub contents: Contents,
}

impl Plan {
    /// The model that takes the place of a recorded one.
    pub fn model<'a>(&'a self, recorded: &'a str) -> &'a str {
        self.renames.iter().find(|(name, _)| name == recorded).map_or(recorded, |(_, other)| other)
    }
}
