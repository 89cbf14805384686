//! Figures of OpenAI's interface for each model: times to tokens, tokens, what is under way (docs/openai.md).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_observe::metrics::{CallbackMetric, Counter, Family, Kind, Metric, MetricError, Registry};

/// Upper bounds of the histograms, in seconds.
const FIRST_TOKEN_S: [f64; 17] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 40.0];
const NEXT_TOKEN_S: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0];
const WHOLE_S: [f64; 14] = [0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 600.0];
/// Models with figures of their own; later ones share those of one label.
const MODELS_MAX: usize = 1024;
const OVERFLOW: &str = "other";

/// The families, and the figures of each model in them.
pub struct Metrics {
    families: Option<Families>,
    models: Mutex<HashMap<String, Arc<ModelMetrics>>>,
}

struct Families {
    registry: Registry,
    first_token: Family,
    next_token: Family,
    whole: Family,
    prompt_tokens: Family,
    generated_tokens: Family,
    succeeded: Family,
    failed: Family,
    disconnected: Family,
}

/// The figures of one model.
pub struct ModelMetrics {
    first_token: Metric,
    next_token: Metric,
    whole: Metric,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    succeeded: Counter,
    failed: Counter,
    disconnected: Counter,
    /// Calls that wait for their first response, and those that have one.
    waiting: Arc<AtomicU64>,
    running: Arc<AtomicU64>,
    #[expect(dead_code, reason = "the samples are gone when it is dropped")]
    gauges: [CallbackMetric; 2],
}

impl Metrics {
    pub fn new(registry: &Registry) -> Metrics {
        let families = Families::new(registry);
        let families =
            families.inspect_err(|error| tracing::warn!("metrics of OpenAI's interface are left out: {error}"));
        Metrics { families: families.ok(), models: Mutex::default() }
    }

    /// The figures of a model, by the name that requests give it.
    pub fn of(&self, model: &str) -> Option<Arc<ModelMetrics>> {
        let families = self.families.as_ref()?;
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = models.get(model) {
            return Some(Arc::clone(found));
        }
        let name = if models.len() < MODELS_MAX { model } else { OVERFLOW };
        if let Some(found) = models.get(name) {
            return Some(Arc::clone(found));
        }
        let made = Arc::new(families.of(name).ok()?);
        models.insert(name.to_owned(), Arc::clone(&made));
        Some(made)
    }
}

impl Families {
    fn new(registry: &Registry) -> Result<Families, MetricError> {
        let histogram = |name: &str, help: &str| registry.own_family(name, help, Kind::Histogram);
        let counter = |name: &str, help: &str| registry.own_family(name, help, Kind::Counter);
        Ok(Families {
            registry: registry.clone(),
            first_token: histogram("nv_openai_time_to_first_token_seconds", "Time to the first response of a model")?,
            next_token: histogram("nv_openai_inter_token_latency_seconds", "Time between two responses of a stream")?,
            whole: histogram("nv_openai_e2e_request_latency_seconds", "Time to the end of an answer")?,
            prompt_tokens: counter("nv_openai_prompt_tokens_total", "Tokens of prompts, as models report them")?,
            generated_tokens: counter("nv_openai_generation_tokens_total", "Tokens that models report as written")?,
            succeeded: counter("nv_openai_request_success_total", "Calls that were answered")?,
            failed: counter("nv_openai_request_failure_total", "Calls whose model failed")?,
            disconnected: counter("nv_openai_disconnected_clients_total", "Clients that left before the end")?,
        })
    }

    fn of(&self, model: &str) -> Result<ModelMetrics, MetricError> {
        let labels = [("model", model)];
        let (waiting, running): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let gauge = |name: &str, help: &str, of: &Arc<AtomicU64>| {
            let of = Arc::clone(of);
            self.registry.gauge(name, help, &labels, move || of.load(Ordering::Relaxed) as f64)
        };
        let gauges = [
            gauge("nv_openai_num_requests_waiting", "Calls without a response yet", &waiting)?,
            gauge("nv_openai_num_requests_running", "Calls with a response whose answer goes on", &running)?,
        ];
        Ok(ModelMetrics {
            first_token: self.first_token.metric(&labels, &FIRST_TOKEN_S)?,
            next_token: self.next_token.metric(&labels, &NEXT_TOKEN_S)?,
            whole: self.whole.metric(&labels, &WHOLE_S)?,
            prompt_tokens: self.prompt_tokens.counter(&labels)?,
            generated_tokens: self.generated_tokens.counter(&labels)?,
            succeeded: self.succeeded.counter(&labels)?,
            failed: self.failed.counter(&labels)?,
            disconnected: self.disconnected.counter(&labels)?,
            waiting,
            running,
            gauges,
        })
    }
}

/// Times the answer of one call.
pub struct CallTimes {
    of: Arc<ModelMetrics>,
    began_ns: u64,
    last_ns: Option<u64>,
    is_over: bool,
}

impl CallTimes {
    pub fn begin(of: Arc<ModelMetrics>, began_ns: u64) -> CallTimes {
        of.waiting.fetch_add(1, Ordering::Relaxed);
        CallTimes { of, began_ns, last_ns: None, is_over: false }
    }

    /// A response has come.
    pub fn response(&mut self, now_ns: u64) {
        let (family, since_ns) = match self.last_ns {
            None => {
                self.of.waiting.fetch_sub(1, Ordering::Relaxed);
                self.of.running.fetch_add(1, Ordering::Relaxed);
                (&self.of.first_token, self.began_ns)
            }
            Some(last_ns) => (&self.of.next_token, last_ns),
        };
        // The kind of the family has this operation.
        let _ = family.observe(seconds(since_ns, now_ns));
        self.last_ns = Some(now_ns);
    }

    /// The answer is complete, or has failed.
    pub fn end(&mut self, now_ns: u64, tokens: (Option<u64>, u64), has_failed: bool) {
        self.is_over = true;
        let (prompt, generated) = tokens;
        self.of.prompt_tokens.increment(prompt.unwrap_or_default());
        self.of.generated_tokens.increment(generated);
        if has_failed { &self.of.failed } else { &self.of.succeeded }.increment(1);
        let _ = self.of.whole.observe(seconds(self.began_ns, now_ns));
    }
}

impl Drop for CallTimes {
    /// A call that ends before its answer has lost its client.
    fn drop(&mut self) {
        if !self.is_over {
            self.of.disconnected.increment(1);
        }
        let gauge = if self.last_ns.is_some() { &self.of.running } else { &self.of.waiting };
        gauge.fetch_sub(1, Ordering::Relaxed);
    }
}

fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}
