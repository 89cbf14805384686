//! What all kinds of inference on one shard use: the models, the calls under way, and what is kept of requests.

use std::sync::Arc;

use super::access::Access;
use super::awaiting::Resumed;
use super::calls::Calls;
use super::facts::Facts;
use super::load_reports::LoadReports;
use super::plan_cache::PlanCache;
use super::routes::{Route, labelled_route};
use super::steps::PackingBudget;
use super::watch::Watches;
use crate::repository::demand::Demand;
use crate::repository::traffic::Fields;
use crate::repository::{Choice, ModelMap, next_steps};
use nereid_memory::Pool;
use nereid_protocol::service::Kept;
use nereid_request::Status;
use nereid_scheduler::next_step;

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
    /// The model that a request names, by texts of the wire, and what the rest of the request decides about its
    /// version. `fields`: the headers of the request.
    pub fn find(&self, model: &[u8], version: &[u8], fields: Fields<'_>) -> Result<Choice, Status> {
        let found = self.models.choose(model, version, fields);
        found.inspect_err(|_| {
            if let Ok(version) = self.models.version(model, version) {
                next_step::log(|| next_steps::of_request(&self.models, model, version));
            }
        })
    }

    /// The route of a path that names a version by a label of its model.
    pub fn labelled_route<'a>(&self, path: &'a [u8]) -> Option<Route<'a>> {
        let found = labelled_route(path)?;
        let target = match found {
            Route::ModelMetadata(target)
            | Route::ModelReady(target)
            | Route::Infer(target)
            | Route::ModelConfig(target)
            | Route::ModelStatistics(target)
            | Route::Generate(target)
            | Route::GenerateStream(target) => target,
            _ => return None,
        };
        let version = target.version?;
        // The labels of a model are known once it is loaded, which an inference or a question about it may begin.
        let may_load = self.demand.is_some()
            && !matches!(found, Route::ModelReady(_) | Route::ModelStatistics(_))
            && self.models.is_absent(target.model);
        (may_load || self.models.label(target.model, version).is_some()).then_some(found)
    }

    /// What decides about the versions of models in the headers of a call.
    pub fn routing_of<'a>(&self, value: impl Fn(&[u8]) -> Option<&'a [u8]>) -> Kept {
        let fields = self.models.routing_fields().iter().map(|name| name.as_bytes());
        fields.filter_map(|name| Some((name.into(), value(name)?.into()))).collect()
    }
}

/// The value of one of the kept headers.
pub fn kept_field<'a>(kept: &'a Kept, name: &str) -> Option<&'a [u8]> {
    kept.iter().find(|(known, _)| **known == *name.as_bytes()).map(|(_, value)| &**value)
}
