//! The kinds of messages between worker and server, and the offsets of their channels in shared memory.
//!
//! `worker/nereid_python/kinds.py` and `wire.py` have the same numbers; a worker refuses a server of another version.

/// The version of everything in this file.
pub const VERSION: i32 = 5;

/// Kinds with this bit: the payload is only the location (key, segment, offset, length) of the message proper.
pub const FAR: u32 = 1 << 31;

/// The control segment: the words of the three streams, the cancellation bytes of the requests, and the streams
/// themselves.
pub const INPUT_WORDS: usize = 0;
pub const OUTPUT_WORDS: usize = 128;
pub const ASIDE_WORDS: usize = 256;
/// The counts of handled messages of the worker's streams.
pub const OUTPUT_HANDLED: usize = 384;
pub const ASIDE_HANDLED: usize = 448;
/// The bell words of the streams' readers (`queue::bell`).
pub const INPUT_BELL: usize = 512;
pub const OUTPUT_BELL: usize = 576;
pub const ASIDE_BELL: usize = 640;
/// The distance from the producer's word to the consumer's.
pub const WORD_STRIDE: usize = 64;
pub const CANCEL_BYTES: usize = 4096;
/// The most unanswered requests of one worker.
pub const OPEN_MAX: usize = 65_536;
pub const STREAMS: usize = 128 * 1024;
pub const STREAM_BYTES: usize = 256 * 1024;
pub const CONTROL_BYTES: usize = STREAMS + 3 * STREAM_BYTES;

/// Slots come in banks; each slot is a page whose second half is its stream.
pub const SLOTS_PER_BANK: usize = 64;
pub const SLOT_BYTES: usize = 4096;
pub const SLOT_STREAM_BYTES: usize = 2048;
/// In a slot: the bell word of its reader; and the slot whose bell is rung for its answers, counted from 1, or 0: its
/// own. An event loop waits at one bell for many slots.
pub const SLOT_BELL: usize = 128;
pub const SLOT_RINGS: usize = 136;
/// The most slots of one worker.
pub const SLOTS_MAX: usize = 4096;

/// On a slot: an answer, and a refusal as (code, text).
pub const ANSWER: u32 = 1;
pub const REFUSED: u32 = 2;

/// From the worker, about its own state and its executions.
pub mod from_worker {
    /// (slot or None): the slot on which the worker waits for readiness queries, if the model has an `is_ready`; a
    /// query is its number
    pub const INITIALIZED: u32 = 101;
    /// (text)
    pub const FAILED: u32 = 102;
    /// (configuration as JSON, or None)
    pub const COMPLETED: u32 = 103;
    /// (results, released ranges): one result for each request of the batch
    pub const DONE: u32 = 104;
    /// (text, positions of the requests that it fails, released ranges)
    pub const BATCH_FAILED: u32 = 105;
    /// (bytes, segments that it gives up): the new segment is sent over the socket
    pub const NEED_SEGMENT: u32 = 106;
    /// (): the new bank is sent over the socket
    pub const NEED_SLOTS: u32 = 107;
    /// (released ranges)
    pub const RELEASED: u32 = 108;
    /// ()
    pub const FINALIZED: u32 = 109;
    /// (number of the query, the result of `is_ready` or None, its error or None)
    pub const READY: u32 = 110;
}

/// To the worker's main thread.
pub mod to_worker {
    /// (freed addresses, requests)
    pub const BATCH: u32 = 200;
    /// (model file, module name, paths, directory of the version, arguments, is decoupled)
    pub const INITIALIZE: u32 = 201;
    /// (model file, module name, paths, directory of the version, configuration as JSON)
    pub const COMPLETE: u32 = 202;
    /// ()
    pub const FINALIZE: u32 = 203;
    /// (freed addresses): the worker shall report the ranges that no array refers to any more
    pub const SWEEP: u32 = 204;
    /// (numbers): lent device tensors of the worker that are no longer in use
    pub const FREED: u32 = 205;
}
