//! Mail to a shard's service, and what it needs of other threads.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::access::Access;
use super::calls::delays::DelayedStep;
use super::management::outcome::{Outcome, Protocol};
use super::openai::job::Prepared;
use crate::repository::ModelMap;
use crate::repository::demand::Loaded;
use nereid_memory::Gather;
use nereid_observe::metrics::PageFormat;
use nereid_protocol::http1;
use nereid_protocol::service::CallKey;
use nereid_request::{Delivery, Job, Status};

/// Messages from other threads to a shard's service.
pub enum Mail {
    /// A model answered.
    Delivered { key: u64, delivery: Delivery },
    /// A job for a request whose home is this shard.
    Home(Box<dyn Job>),
    /// The end of a delay.
    Delayed(DelayedStep),
    /// The metrics page for a call; none if no control thread could write it.
    Metrics { call: CallKey, format: PageFormat, page: Option<Gather> },
    /// The answer of a control thread to a call.
    Answered { call: CallKey, response: http1::Response },
    /// Models came or went. The sender is dropped once this shard uses the new map.
    Models { models: Arc<ModelMap>, acknowledge: Sender<()> },
    /// A request of OpenAI's interface was prepared.
    OpenAi { key: u64, prepared: Box<Prepared> },
    /// The load has ended that a call waits for.
    ModelLoaded { key: u64, loaded: Loaded },
    /// Other keys are valid.
    Access(Arc<Access>),
    /// A control thread has finished the work of a call.
    Done { call: CallKey, protocol: Protocol, outcome: Result<Outcome, Status> },
}

impl From<(u64, Delivery)> for Mail {
    #[inline]
    fn from((key, delivery): (u64, Delivery)) -> Mail {
        Mail::Delivered { key, delivery }
    }
}

impl From<Box<dyn Job>> for Mail {
    #[inline]
    fn from(job: Box<dyn Job>) -> Mail {
        Mail::Home(job)
    }
}

/// Runs a job away from the shards.
pub type Control = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;
/// Posts to this shard from anywhere.
pub type Post = Arc<dyn Fn(Mail) + Send + Sync>;
/// Renders the metrics page, in parts; slow, so it runs on a control thread.
pub type RenderMetrics = Arc<dyn Fn(PageFormat) -> Vec<String> + Send + Sync>;
