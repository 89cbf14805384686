//! What all parts of management use: the models, the pool, and the codec of messages.

use std::sync::Arc;

use crate::api::audit::Auditor;
use crate::api::error::too_large;
use crate::api::facts::Facts;
use crate::api::mail::Post;
use crate::repository::{Lifecycle, ModelMap};
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::grpc::{self, Encoder};
use nereid_request::Status;

/// Bytes of a message that a shard reads itself: the longest that means something are names and settings.
const SHORT_BYTES_MAX: usize = 64 * 1024;
/// Messages of so many bytes are read without a charge.
const UNCHARGED_BYTES: usize = 4096;
/// Bytes that an entry of a list or map takes, roughly.
const FIELD_BYTES: usize = 160;

/// Reads a message other than inference. What it becomes is charged while it is read: a few bytes of protobuf can make
/// an entry of a list or map.
pub(super) fn decode<M: prost::Message + Default>(message: &Slice) -> Result<M, Status> {
    let pool = message.pool().filter(|_| message.len() > UNCHARGED_BYTES);
    let bytes = || message.len().saturating_add(grpc::count_fields(message).saturating_mul(FIELD_BYTES));
    let _held = pool.map(|pool| pool.hold(bytes())).transpose()?;
    M::decode(&**message).map_err(|_| Status::internal("Unable to parse request"))
}

/// Reads a message on a shard, which a long one would keep.
pub(super) fn decode_short<M: prost::Message + Default>(message: &Slice) -> Result<M, Status> {
    match message.len() <= SHORT_BYTES_MAX {
        true => decode(message),
        false => Err(Status::invalid(format!(
            "the request message has {} bytes, at most {SHORT_BYTES_MAX} are read",
            message.len()
        ))),
    }
}

/// The part of one shard's service that answers management.
pub struct Management {
    pub(super) facts: Arc<Facts>,
    pub(super) models: Arc<ModelMap>,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) pool: Pool,
    pub(super) post: Post,
    pub(super) encoder: Encoder,
    /// Where calls that change the server are recorded.
    pub(in crate::api) audit: Option<Box<Auditor>>,
}

impl Management {
    pub fn new(
        facts: Arc<Facts>,
        models: Arc<ModelMap>,
        lifecycle: Arc<Lifecycle>,
        pool: Pool,
        post: Post,
    ) -> Management {
        let audit =
            facts.settings.records.audit.as_ref().map(|log| Box::new(Auditor::new(Arc::clone(log), facts.settings.ui)));
        Management { facts, models, lifecycle, pool, post, encoder: Encoder::new(), audit }
    }

    /// Models came or went.
    pub fn models_changed(&mut self, models: &Arc<ModelMap>) {
        self.models = Arc::clone(models);
    }

    pub(super) fn frame(&mut self, message: &impl prost::Message) -> Result<Gather, Status> {
        let mut framed = Gather::new();
        self.encoder.message(message, &self.pool, &mut framed).map_err(too_large)?;
        Ok(framed)
    }
}
