//! Why a request is refused that could be served at another time, or by another server.
//!
//! The reasons have one name each, which a client reads beside the error over either protocol and an operator in the
//! metrics (docs/overload.md). They lie here, below everything that refuses.

use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the HTTP header, and of the metadata at the end of a gRPC call, whose value is the name of the reason.
pub const REFUSED: &str = "nereid-refused";

/// What the server lacks for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefusalReason {
    /// Bytes of the server, a connection, a client address, a model; of the system.
    RequestMemory = 0,
    ConnectionMemory = 1,
    ClientMemory = 2,
    ModelMemory = 3,
    SystemMemory = 4,
    /// Calls of the shard, and the parts of them that a connection, a client address, a model and a stream may have.
    Calls = 5,
    ConnectionCalls = 6,
    ClientCalls = 7,
    ModelCalls = 8,
    StreamCalls = 9,
    /// Its client does not read the responses that it has.
    UnreadResponses = 10,
    /// `max_queue_size`.
    QueueFull = 11,
    /// It waited in its queue for longer than it may.
    QueueTimeout = 12,
    /// It would be answered too late.
    Deadline = 13,
    /// Loads and other operations on models wait.
    Operations = 14,
    /// The model has no instance, or no version, that takes requests now.
    ModelUnavailable = 15,
    /// The server ends.
    Exiting = 16,
    /// The model is being loaded because requests came for it, and too many wait for it, or this one waits too long.
    ModelLoading = 17,
}

/// Milliseconds after which a client may come again that was refused for lack of something that others use: the same
/// as `Retry-After` of HTTP.
const PUSHBACK_MS: &str = "1000";

static SENT: [AtomicU64; RefusalReason::ALL.len()] = [const { AtomicU64::new(0) }; RefusalReason::ALL.len()];

impl RefusalReason {
    /// By their numbers.
    pub const ALL: [RefusalReason; 18] = [
        RefusalReason::RequestMemory,
        RefusalReason::ConnectionMemory,
        RefusalReason::ClientMemory,
        RefusalReason::ModelMemory,
        RefusalReason::SystemMemory,
        RefusalReason::Calls,
        RefusalReason::ConnectionCalls,
        RefusalReason::ClientCalls,
        RefusalReason::ModelCalls,
        RefusalReason::StreamCalls,
        RefusalReason::UnreadResponses,
        RefusalReason::QueueFull,
        RefusalReason::QueueTimeout,
        RefusalReason::Deadline,
        RefusalReason::Operations,
        RefusalReason::ModelUnavailable,
        RefusalReason::Exiting,
        RefusalReason::ModelLoading,
    ];

    /// The reasons of a model's own: its statistics count them.
    pub const OF_MODEL: [RefusalReason; 4] =
        [RefusalReason::QueueFull, RefusalReason::Deadline, RefusalReason::ModelMemory, RefusalReason::ModelCalls];

    pub fn name(self) -> &'static str {
        match self {
            RefusalReason::RequestMemory => "request_memory",
            RefusalReason::ConnectionMemory => "connection_memory",
            RefusalReason::ClientMemory => "client_memory",
            RefusalReason::ModelMemory => "model_memory",
            RefusalReason::SystemMemory => "system_memory",
            RefusalReason::Calls => "calls",
            RefusalReason::ConnectionCalls => "connection_calls",
            RefusalReason::ClientCalls => "client_calls",
            RefusalReason::ModelCalls => "model_calls",
            RefusalReason::StreamCalls => "stream_calls",
            RefusalReason::UnreadResponses => "unread_responses",
            RefusalReason::QueueFull => "queue_full",
            RefusalReason::QueueTimeout => "queue_timeout",
            RefusalReason::Deadline => "deadline",
            RefusalReason::Operations => "operations",
            RefusalReason::ModelUnavailable => "model_unavailable",
            RefusalReason::Exiting => "exiting",
            RefusalReason::ModelLoading => "model_loading",
        }
    }

    /// The value of `grpc-retry-pushback-ms` (gRFC A6). None where the client should not wait: a request whose time
    /// runs out, or whose server ends, can only be served by another server, at once.
    pub fn pushback_ms(self) -> Option<&'static str> {
        match self {
            RefusalReason::Deadline | RefusalReason::QueueTimeout | RefusalReason::Exiting => None,
            _ => Some(PUSHBACK_MS),
        }
    }

    /// Counts a refusal that is sent to a client.
    pub fn count(self) {
        if let Some(count) = SENT.get(self as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Refusals of this kind that the process has sent.
    pub fn sent(self) -> u64 {
        SENT.get(self as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_place_and_a_name_of_its_own() {
        let mut names: Vec<_> = RefusalReason::ALL.iter().map(|reason| reason.name()).collect();
        for (at, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason:?}");
            // They are values of HTTP fields and of labels.
            assert!(reason.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{reason:?}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RefusalReason::ALL.len());
    }

    #[test]
    fn only_a_wait_that_can_help_is_requested() {
        for reason in RefusalReason::ALL {
            let helps =
                !matches!(reason, RefusalReason::Deadline | RefusalReason::QueueTimeout | RefusalReason::Exiting);
            assert_eq!(reason.pushback_ms().is_some(), helps, "{reason:?}");
        }
        assert_eq!(PUSHBACK_MS.parse(), Ok(1000));
    }
}
