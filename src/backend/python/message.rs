//! What worker and server tell each other: the kinds of messages, and where in shared memory their channels lie.
//!
//! `worker/nereid_python/kinds.py` and `wire.py` have the same numbers; a worker refuses a server of another version.

/// Of everything in this file.
pub const VERSION: i32 = 3;

/// Kinds from this bit on stand for their payload's place: the payload is (key, segment, offset, length) of the message
/// proper.
pub const FAR: u32 = 1 << 31;

/// The control segment: where the words of the three streams lie, which cancellation byte belongs to which request, and
/// the streams themselves.
pub const INPUT_WORDS: usize = 0;
pub const OUTPUT_WORDS: usize = 128;
pub const ASIDE_WORDS: usize = 256;
/// How many messages of the worker's streams were handled.
pub const OUTPUT_HANDLED: usize = 384;
pub const ASIDE_HANDLED: usize = 448;
/// From the word of the producer to that of the consumer.
pub const WORD_STRIDE: usize = 64;
pub const CANCEL_BYTES: usize = 4096;
/// Requests of one worker that are not answered at a time.
pub const OPEN_MAX: usize = 65_536;
pub const STREAMS: usize = 128 * 1024;
pub const STREAM_BYTES: usize = 256 * 1024;
pub const CONTROL_BYTES: usize = STREAMS + 3 * STREAM_BYTES;

/// Slots come in banks; each slot is a page whose second half is its stream.
pub const SLOTS_PER_BANK: usize = 64;
pub const SLOT_BYTES: usize = 4096;
pub const SLOT_STREAM_BYTES: usize = 2048;
/// Questions of one worker that are open at a time.
pub const SLOTS_MAX: usize = 4096;

/// On a slot: an answer, and a refusal as (code, text).
pub const ANSWER: u32 = 1;
pub const REFUSED: u32 = 2;

/// From the worker, about its own life.
pub mod from_worker {
    /// (slot or None): where the worker waits for the question whether the model is ready, if it has an `is_ready`; the
    /// question is its number
    pub const INITIALIZED: u32 = 101;
    /// (text)
    pub const FAILED: u32 = 102;
    /// (configuration as JSON, or None)
    pub const COMPLETED: u32 = 103;
    /// (results, released ranges): one result for each request of the batch
    pub const DONE: u32 = 104;
    /// (text, positions of the requests that it fails, released ranges)
    pub const BATCH_FAILED: u32 = 105;
    /// (bytes, segments that go for it): the segment comes over the socket
    pub const NEED_SEGMENT: u32 = 106;
    /// (): the bank comes over the socket
    pub const NEED_SLOTS: u32 = 107;
    /// (released ranges)
    pub const RELEASED: u32 = 108;
    /// ()
    pub const FINALIZED: u32 = 109;
    /// (number of the question, what `is_ready` returned or None, what was wrong with it or None)
    pub const READY: u32 = 110;
}

/// To the worker's main thread.
pub mod to_worker {
    /// (freed places, requests)
    pub const BATCH: u32 = 200;
    /// (model file, module name, paths, directory of the version, arguments, is decoupled)
    pub const INITIALIZE: u32 = 201;
    /// (model file, module name, paths, directory of the version, configuration as JSON)
    pub const COMPLETE: u32 = 202;
    /// ()
    pub const FINALIZE: u32 = 203;
    /// (freed places): the ranges that nothing refers to are wanted back
    pub const SWEEP: u32 = 204;
    /// (numbers): what the worker has lent on devices and nobody needs any more
    pub const FREED: u32 = 205;
}
