//! The entry to a model version: it checks each request against the model, and hands it to the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::ensemble::Composing;
use super::validate::{validate, validate_but_strings};
use super::{Accepted, Checks, ModelLoad, Refused, Scheduler};
use nereid_clock::now_ns;
use nereid_model_config::ModelSpec;
use nereid_model_config::labels::Labels;
use nereid_model_config::provenance::Provenance;
use nereid_observe::statistics::ModelStatistics;
use nereid_request::{Request, SeenAt, Status, Ticket, WakeUp};

/// A version that answers requests.
pub struct ServedModel {
    pub name: String,
    pub namespace: String,
    pub version: i64,
    pub spec: Arc<ModelSpec>,
    pub statistics: Arc<ModelStatistics>,
    pub scheduler: Arc<dyn Scheduler>,
    /// The readiness of its instances.
    pub checks: Arc<Checks>,
    /// Class labels by output name, where an output, or in an ensemble the output of a step that becomes it, has a
    /// label file.
    pub labels: BTreeMap<String, Arc<Labels>>,
    pub load_duration_secs: f64,
    /// Where the values of its configuration come from, if that is kept.
    pub provenance: Option<Arc<Provenance>>,
    /// What clients' requests to it hold.
    pub load: Arc<ModelLoad>,
    /// Number of references to it other than those of requests.
    pub pins: AtomicUsize,
}

impl ServedModel {
    /// Checks a request against this model and hands it to the scheduler: the one way in, for clients as for the steps
    /// of ensembles.
    #[inline]
    pub fn submit(&self, mut request: Box<Request>) -> Result<Accepted, Refused> {
        if request.ingress.is_checked {
            request.stamps.started_ns = now_ns();
            return self.accept(request);
        }
        match self.check(&mut request) {
            Ok(()) => {
                let now_ns = request.stamps.started_ns;
                self.accept_at(request, now_ns)
            }
            Err(status) => Err(Refused { status, request }),
        }
    }

    /// The first half of [`submit`](ServedModel::submit): a request that fails is not passed to any scheduler.
    #[inline]
    pub fn check(&self, request: &mut Request) -> Result<(), Status> {
        request.stamps.started_ns = now_ns();
        request.queueing.priority = self.spec.priority(request.queueing.priority);
        validate(request, &self.spec)
    }

    /// The same except for the strings of its inputs, which are checked separately.
    #[inline]
    pub fn check_but_strings(&self, request: &mut Request) -> Result<(), Status> {
        request.stamps.started_ns = now_ns();
        request.queueing.priority = self.spec.priority(request.queueing.priority);
        validate_but_strings(request, &self.spec)
    }

    /// The second half, for a request that passed the check.
    #[inline]
    pub fn accept(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        self.accept_at(request, now_ns())
    }

    #[inline]
    fn accept_at(&self, mut request: Box<Request>, now_ns: u64) -> Result<Accepted, Refused> {
        if let Err(status) = self.borrow(&mut request) {
            return Err(Refused { status, request });
        }
        if let Some(observer) = &request.observer {
            if observer.shows_generations() {
                observer.generation(self.statistics.generation());
            }
            observer.begins(&self.name, self.version, &request.id, request.stamps.started_ns);
        }
        request.mark_queued(now_ns);
        request.show_inputs(SeenAt::QueueInput);
        self.scheduler.enqueue(request)
    }

    /// Attaches to a request made on behalf of another one the resources of that one's execution, if it needs them.
    #[inline]
    fn borrow(&self, request: &mut Request) -> Result<(), Status> {
        let Some(grant) = &request.links.grant else { return Ok(()) };
        let lease = grant.lend(&self.name).map_err(|status| status.prefixed(&request.log_id()))?;
        if lease.is_some() {
            (request.links.grant, request.links.lease) = (None, lease);
        }
        Ok(())
    }

    /// The same instances under another configuration.
    pub fn with_spec(&self, spec: Arc<ModelSpec>) -> ServedModel {
        ServedModel {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            version: self.version,
            spec,
            statistics: Arc::clone(&self.statistics),
            scheduler: Arc::clone(&self.scheduler),
            checks: Arc::clone(&self.checks),
            labels: self.labels.clone(),
            load_duration_secs: self.load_duration_secs,
            // It is that of the configuration before.
            provenance: None,
            load: Arc::clone(&self.load),
            pins: AtomicUsize::new(0),
        }
    }
}

impl Composing for ServedModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn takes_device_tensors(&self) -> bool {
        self.checks.take_device_tensors()
    }

    fn labels(&self, output: &str) -> Option<Arc<Labels>> {
        self.labels.get(output).cloned()
    }

    fn submit(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        ServedModel::submit(self, request)
    }

    fn may_run_here(&self) -> bool {
        self.scheduler.may_run_here()
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.cancel(ticket)
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.expire(ticket)
    }
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServedModel({} version {})", self.name, self.version)
    }
}
