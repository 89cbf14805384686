//! What a connection announces to its peer, and the bounds that it holds itself to.

use super::frame::{DEFAULT_WINDOW, MAX_31, MAX_MAX_FRAME_SIZE, MIN_MAX_FRAME_SIZE};
use crate::hpack;

/// One for all connections of a listener. Values outside of what HTTP/2 allows are brought into range.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes that a peer may send on one stream beyond what was taken. Large, because a window that closes inside a
    /// tensor costs a round trip.
    pub stream_window: u32,
    pub connection_window: u32,
    /// Largest frame payload that we take, in bytes.
    pub max_frame_size: u32,
    /// Streams that a peer may have open; more are refused.
    pub max_concurrent_streams: u32,
    /// Bytes of a header list by RFC 9113 section 10.5.1 (octets and 32 for each field).
    pub max_header_list_size: u32,
    /// Bytes of the table that the peer's header blocks may use.
    pub header_table_size: u32,
    /// Bytes of a header block that is recognised when it comes again; beyond it each is decoded.
    pub repeated_block_max: usize,
    /// CONTINUATION frames behind one HEADERS frame.
    pub continuations_max: u32,
    /// Bytes of replies (PING, SETTINGS, RST_STREAM) that may wait because the peer does not read them.
    pub control_unsent_max: usize,
    /// Streams that may end abnormally (reset by the peer, or by us for its mistakes) beyond those that end well.
    pub abnormal_ends_max: u32,
    /// By how much that allowance recovers each second, see [`super::Connection::tick`].
    pub abnormal_ends_per_s: u32,
    /// Frames that may come without moving anything forward (empty DATA, PRIORITY, WINDOW_UPDATE, unknown types).
    pub idle_frames_max: u32,
    pub idle_frames_per_s: u32,
    /// DATA is cut into frames only while less than this waits in the output: what is not yet cut can still be
    /// dropped by a reset, and streams take turns.
    pub output_target: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            stream_window: 4 << 20,
            connection_window: 16 << 20,
            max_frame_size: 1 << 20,
            max_concurrent_streams: 1000,
            max_header_list_size: 64 << 10,
            header_table_size: hpack::DEFAULT_TABLE_SIZE as u32,
            repeated_block_max: 1024,
            continuations_max: 64,
            control_unsent_max: 64 << 10,
            abnormal_ends_max: 2000,
            abnormal_ends_per_s: 200,
            idle_frames_max: 10_000,
            idle_frames_per_s: 1000,
            output_target: 1 << 20,
        }
    }
}

impl Config {
    /// Brings every value into the range of RFC 9113 section 6.5.2. The connection window cannot be smaller than the
    /// one that every connection starts with.
    pub(super) fn in_range(mut self) -> Config {
        self.stream_window = self.stream_window.clamp(1, MAX_31);
        self.connection_window = self.connection_window.clamp(DEFAULT_WINDOW, MAX_31);
        self.max_frame_size = self.max_frame_size.clamp(MIN_MAX_FRAME_SIZE, MAX_MAX_FRAME_SIZE);
        self.max_concurrent_streams = self.max_concurrent_streams.clamp(1, 1 << 20);
        self.max_header_list_size = self.max_header_list_size.clamp(1024, 16 << 20);
        self.header_table_size = self.header_table_size.min(1 << 20);
        self.output_target = self.output_target.max(1);
        self
    }

    /// Bytes that one header block may have on the wire. A list within its bound cannot be much longer than the bound,
    /// whatever its representation; a block far beyond it is an attack rather than a long header.
    pub(super) fn header_block_max(&self) -> usize {
        (self.max_header_list_size as usize).saturating_mul(4).max(MIN_MAX_FRAME_SIZE as usize)
    }
}
