//! How a connection, or an attempt to send on it, fails.

use super::ErrorCode;

/// The connection is over: what is left in its output (a GOAWAY, or an answer in the peer's own protocol) is to be
/// sent, then the socket closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    #[error("the peer speaks HTTP/1.x on a port for HTTP/2")]
    Http1,
    #[error("the peer speaks TLS on a port without TLS")]
    Tls,
    #[error("the peer does not speak HTTP/2")]
    NotHttp2,
    /// The peer broke a rule of RFC 9113 or one of our bounds.
    #[error("HTTP/2 connection error {code}: {why}")]
    Violation { code: ErrorCode, why: &'static str },
    /// [`super::Connection::abort`] was called.
    #[error("HTTP/2 connection was aborted with {0}")]
    Aborted(ErrorCode),
}

impl ConnectionError {
    pub(super) fn protocol(why: &'static str) -> ConnectionError {
        ConnectionError::Violation { code: ErrorCode::PROTOCOL_ERROR, why }
    }

    pub(super) fn frame_size(why: &'static str) -> ConnectionError {
        ConnectionError::Violation { code: ErrorCode::FRAME_SIZE_ERROR, why }
    }

    pub(super) fn flow_control(why: &'static str) -> ConnectionError {
        ConnectionError::Violation { code: ErrorCode::FLOW_CONTROL_ERROR, why }
    }

    pub(super) fn closed(why: &'static str) -> ConnectionError {
        ConnectionError::Violation { code: ErrorCode::STREAM_CLOSED, why }
    }

    pub(super) fn flood(why: &'static str) -> ConnectionError {
        ConnectionError::Violation { code: ErrorCode::ENHANCE_YOUR_CALM, why }
    }
}

/// Why something was not sent. Only the stream is concerned, never the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The stream is gone or its sending side is closed. A peer's reset may always come first, so callers drop what
    /// they wanted to send.
    #[error("the stream is closed")]
    Closed,
    #[error("headers or data are out of order on the stream")]
    OutOfOrder,
    #[error("a header list of {size} bytes exceeds the {limit} bytes that the peer accepts")]
    HeaderListTooLarge { size: usize, limit: usize },
    /// Client: the peer's SETTINGS_MAX_CONCURRENT_STREAMS are open; one has to end first.
    #[error("the peer accepts no more concurrent streams")]
    TooManyStreams,
    /// Client: the peer is shutting down, the identifiers are used up, or the connection has failed.
    #[error("the connection takes no new streams")]
    GoingAway,
}
