//! Recorded requests: the format of their files, the thread of a server that writes them, and their reader
//! (docs/record-and-replay.md).
//!
//! ```text
//! shard ─ Exchange ─► Recorder (bounded queue) ─► writer's thread: facts, redaction ─► file ─► Reader ─► replay, perf
//! ```
//!
//! A shard hands an exchange over as it is; whatever costs time for each byte happens on the writer's thread.

mod bounded;
mod compare;
mod exchange;
mod format;
mod message;
mod reader;
mod recorder;
mod redaction;
mod resend;
mod unpack;
mod values;

pub use compare::{Difference, compare};
pub use exchange::{Answer, Body, Exchange};
pub use format::{
    AnswerFacts, BODY_BYTES_MAX, FileHead, LINE_BYTES_MAX, Protocol, Record, RecordHead, RequestFacts, TensorFacts,
    VERSION, WriteError, write_head, write_record,
};
pub use message::{Infer, MessageError, Parameter, Tensor};
pub use reader::{ReadError, Reader};
pub use recorder::{Outcome, Recorder, RecorderError, Settings};
pub use redaction::{REDACTED, Redaction};
pub use resend::{Contents, ResendError};
pub use values::{element_bytes, made_contents};
