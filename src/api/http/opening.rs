//! The head of an inference request over HTTP.

use std::sync::Arc;

use super::dialect::Dialect;
use crate::api::coding::packing::Packing;
use crate::api::forwarding::Forwarded;
use crate::api::infer::Manner;
use crate::api::watch::Watch;
use crate::repository::traffic::Route;
use nereid_request::Status;
use nereid_scheduler::ServedModel;

/// What of a request's head is needed once its body is complete and uncompressed.
pub struct Opening {
    pub model: Arc<ServedModel>,
    /// What a traffic rule has decided, if the model has one.
    pub route: Option<Box<Route>>,
    /// The length of its JSON, if the head states it: the number, or why it is none.
    pub header_len: Option<Result<i64, Status>>,
    /// The length as the request writes it, where the error repeats it.
    pub given_len: Option<String>,
    /// Only the HTTP port itself packs and unpacks and forwards headers (contract/http.md sections 8 and 9).
    pub packing: Option<Packing>,
    pub forwarded: Forwarded,
    pub dialect: Dialect,
    pub manner: Manner,
    pub watch: Option<Arc<Watch>>,
}

impl Opening {
    /// Where the binary tail begins, if the head states it.
    pub fn align_at(&self) -> usize {
        self.header_len.as_ref().and_then(|length| usize::try_from(*length.as_ref().ok()?).ok()).unwrap_or(0)
    }

    /// The error of a head that states `length` bytes of JSON in `body_len`.
    pub fn bad_length(&self, length: i64, body_len: usize) -> Status {
        let mut number = itoa::Buffer::new();
        let got = self.given_len.as_deref().unwrap_or_else(|| number.format(length));
        Status::invalid(format!("inference header size should be in range (0, {body_len}), got: {got}"))
    }
}
