//! What all kinds of inference on one shard use: the models, the calls under way, and what is kept of requests.

use std::sync::Arc;

use super::access::Access;
use super::awaiting::Resumed;
use super::calls::Calls;
use super::facts::Facts;
use super::load_reports::LoadReports;
use super::plan_cache::PlanCache;
use super::steps::PackingBudget;
use super::watch::Watches;
use crate::repository::demand::Demand;
use crate::repository::{ModelMap, next_steps, parse_version};
use nereid_memory::Pool;
use nereid_request::Status;
use nereid_scheduler::{ServedModel, next_step};

/// Owned by the shard's service, which lends it to the part that is at work.
pub struct InferContext {
    pub facts: Arc<Facts>,
    /// Which requests need a key, at present.
    pub access: Arc<Access>,
    pub models: Arc<ModelMap>,
    pub pool: Pool,
    pub calls: Calls,
    pub watches: Watches,
    pub plan_cache: PlanCache,
    pub packing_budget: PackingBudget,
    pub load_reports: LoadReports,
    /// Loads on demand, where they are on.
    pub demand: Option<Arc<Demand>>,
    /// The call that begins once more after a load, while it does.
    pub resumed: Option<Resumed>,
}

impl InferContext {
    /// The model that a request names, by texts of the wire.
    pub fn find(&self, model: &[u8], version: &[u8]) -> Result<Arc<ServedModel>, Status> {
        let version = parse_version(version)?;
        let found = self.models.lookup(model, version).cloned();
        found.inspect_err(|_| next_step::log(|| next_steps::of_request(&self.models, model, version)))
    }
}
