//! The head of an inference request over HTTP.

use std::sync::Arc;

use super::dialect::Dialect;
use crate::api::coding::packing::Packing;
use crate::api::forwarding::Forwarded;
use crate::api::infer::Manner;
use crate::api::watch::Watch;
use nereid_request::Status;
use nereid_scheduler::ServedModel;

/// What a request's head says that counts when its body is there, plain.
pub struct Opening {
    pub model: Arc<ServedModel>,
    /// Of its JSON, if it says so: the number, or why it is none.
    pub header_len: Option<Result<i64, Status>>,
    /// The same as the request puts it, where it is repeated so.
    pub given_len: Option<String>,
    /// Only the HTTP port itself packs and unpacks and forwards headers (contract/http.md sections 8 and 9).
    pub packing: Option<Packing>,
    pub forwarded: Forwarded,
    pub dialect: Dialect,
    pub manner: Manner,
    pub watch: Option<Arc<Watch>>,
}

impl Opening {
    /// Where the binary tail begins, as far as the head says so.
    pub fn align_at(&self) -> usize {
        self.header_len.as_ref().and_then(|length| usize::try_from(*length.as_ref().ok()?).ok()).unwrap_or(0)
    }

    /// The head says that `length` bytes of `body_len` are JSON.
    pub fn bad_length(&self, length: i64, body_len: usize) -> Status {
        let mut number = itoa::Buffer::new();
        let got = self.given_len.as_deref().unwrap_or_else(|| number.format(length));
        Status::invalid(format!("inference header size should be in range (0, {body_len}), got: {got}"))
    }
}
