//! Liveness and readiness (contract/schedulers.md section 10, "Readiness").
//!
//! A shard answers most of it by itself. Where instances of a model decide, a control thread checks them, and the call
//! waits for their answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::base::Management;
use super::outcome::{Outcome, Probe, Protocol};
use crate::api::error;
use crate::api::facts::{Facts, ServerState};
use crate::api::mail::{Mail, Post};
use crate::repository::ModelMap;
use nereid_memory::{Gather, Pool};
use nereid_observe::panics;
use nereid_protocol::http1::Response;
use nereid_protocol::service::CallKey;
use nereid_request::Status;
use nereid_scheduler::{Checks, ServedModel, Verdict, query_all};
use nereid_wire::health::HealthCheckResponse;
use nereid_wire::health::health_check_response::ServingStatus;
use nereid_wire::inference as wire;

impl Facts {
    /// Initialised, without a stuck shard or many panics, and if that counts with devices that work; while exiting an
    /// error.
    pub fn is_live(&self) -> Result<bool, Status> {
        match self.state() {
            ServerState::Exiting => Err(Status::unavailable("Server exiting")),
            ServerState::Starting | ServerState::Failed => Ok(false),
            ServerState::Ready | ServerState::Leaving => {
                let has_stuck = self.stuck_shards.load(Ordering::Acquire) > 0;
                Ok(!self.has_lost_gpu() && !has_stuck && !panics::are_too_many())
            }
        }
    }

    fn has_lost_gpu(&self) -> bool {
        self.settings.strict_device_liveness && self.settings.gpus.failure().is_some()
    }

    /// Ready for new clients, and with strict readiness complete; while exiting an error. The checks of instances come
    /// on top.
    pub fn is_ready(&self, models: &ModelMap) -> Result<bool, Status> {
        let takes_clients = self.is_live()? && self.state() == ServerState::Ready;
        Ok(takes_clients && (!self.settings.strict_readiness || models.is_complete()))
    }

    /// The checks that decide whether the server is ready; none if it is not, or if no instance decides.
    pub fn checks(&self, models: &ModelMap) -> Vec<Arc<Checks>> {
        match self.is_ready(models) {
            Ok(true) if self.settings.strict_readiness => models.checks(),
            _ => Vec::new(),
        }
    }

    /// What management answers while the server is exiting, or if it could not start.
    pub fn check_not_exiting(&self) -> Result<(), Status> {
        match self.state() {
            ServerState::Exiting | ServerState::Failed => Err(Status::unavailable("Server not ready")),
            ServerState::Starting | ServerState::Ready | ServerState::Leaving => Ok(()),
        }
    }
}

/// The version that a question about readiness means, `None` if it is unknown or not ready. While the server exits,
/// none is ready for requests: an error, which the lookup precedes.
pub(super) fn ready_model<'a>(
    facts: &Facts,
    models: &'a ModelMap,
    model: &[u8],
    version: &[u8],
) -> Result<Option<&'a Arc<ServedModel>>, Status> {
    let found = models.lookup_ready(model, models.version(model, version)?)?;
    if found.is_some() {
        facts.check_not_exiting()?;
    }
    Ok(found)
}

/// Has instances checked on another thread, which posts the outcome to the call.
pub(in crate::api) fn check_instances(
    post: &Post,
    call: CallKey,
    protocol: Protocol,
    probe: Probe,
    checks: &[Arc<Checks>],
) {
    let post = Arc::clone(post);
    let tell = move |verdict| {
        let outcome = match verdict {
            Verdict::Ready => Ok(Outcome::Checked(probe, true)),
            Verdict::NotReady(_) => Ok(Outcome::Checked(probe, false)),
            Verdict::Unknown(status) => Err(status),
        };
        post(Mail::Done { call, protocol, outcome });
    };
    query_all(checks, probe != Probe::Model, Box::new(tell));
}

/// The answer over HTTP.
pub(super) fn probe_reply(probe: Probe, is_ready: bool, pool: &Pool) -> Response {
    match (is_ready, probe) {
        (true, _) => Response::empty(200),
        (false, Probe::Server | Probe::Serving) => Response::empty(400),
        (false, Probe::Model) => error::error_body(pool, 400, "Model version not ready", None),
    }
}

impl Management {
    /// The checks that decide whether a model version is ready; none if it is not, or if no instance decides.
    pub(super) fn checks_of_model(&self, model: &[u8], version: &[u8]) -> Vec<Arc<Checks>> {
        let found = ready_model(&self.facts, &self.models, model, version).ok().flatten();
        found.map(|model| Arc::clone(&model.checks)).into_iter().filter(|checks| checks.is_needed()).collect()
    }

    /// The framed answer over gRPC.
    pub(super) fn probe_message(&mut self, probe: Probe, ready: bool) -> Result<Gather, Status> {
        match probe {
            Probe::Server => self.frame(&wire::ServerReadyResponse { ready }),
            Probe::Model => self.frame(&wire::ModelReadyResponse { ready }),
            Probe::Serving => {
                let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
                self.frame(&HealthCheckResponse { status: status as i32 })
            }
        }
    }
}
