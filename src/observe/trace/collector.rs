//! The [`Collector`] destination: spans are sent in batches, by number or by time, as OTLP over HTTP with protobuf.
//!
//! A collector that does not answer costs spans, never requests: the queue in front is bounded, one batch is sent at a
//! time, and each attempt ends after a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message;
use tracing::{error, warn};

use super::context::Ids;
use super::options::TraceOptions;
use super::record::{Finished, TraceEntry};
use super::spans::{Epoch, spans_of, text};
use super::writer::{Counts, Destination};
use nereid_wire::otlp::{ExportTraceServiceRequest, InstrumentationScope, Resource, ResourceSpans, ScopeSpans, Span};

/// One attempt to send a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for sending everything at the end; the rest is dropped.
const LAST_SEND_TIMEOUT: Duration = Duration::from_secs(3);
/// Failures are logged no more often than this.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct Collector {
    url: String,
    resource: Resource,
    spans: VecDeque<Span>,
    batch_max: usize,
    delay: Duration,
    /// The time at which waiting spans are sent at the latest.
    due: Option<Instant>,
    ids: Ids,
    counts: Arc<Counts>,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    complained_at: Option<Instant>,
}

impl Collector {
    pub fn new(options: &TraceOptions, counts: Arc<Counts>) -> Result<Collector, String> {
        // An error if a provider is installed already, which does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let url = if options.url.contains("://") { options.url.clone() } else { format!("http://{}", options.url) };
        // Without TLS no certificate is checked, and the host need not have any authority installed.
        let is_plain = !url.starts_with("https://");
        let client = reqwest::Client::builder().timeout(SEND_TIMEOUT).no_proxy();
        let client =
            client.redirect(reqwest::redirect::Policy::none()).tls_danger_accept_invalid_certs(is_plain).build();
        Ok(Collector {
            url,
            resource: Resource { attributes: attributes(&options.resources) },
            spans: VecDeque::new(),
            batch_max: options.processor.batch_max.clamp(1, options.processor.queue_max.max(1)),
            delay: Duration::from_millis(options.processor.delay_ms),
            due: None,
            ids: Ids::default(),
            counts,
            runtime: runtime.map_err(|error| format!("there is no runtime to send them: {error}"))?,
            client: client.map_err(|error| format!("there is no client to send them: {error}"))?,
            complained_at: None,
        })
    }

    /// Sends one batch; spans that cannot be sent are dropped.
    fn send(&mut self, timeout: Duration) {
        let batch: Vec<Span> = self.spans.drain(..self.batch_max.min(self.spans.len())).collect();
        let count = batch.len();
        if count == 0 {
            return;
        }
        let scope = InstrumentationScope { name: "triton-server".to_owned(), version: String::new() };
        let message = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans { scope: Some(scope), spans: batch }],
            }],
        };
        let request = self.client.post(&self.url).header("content-type", "application/x-protobuf");
        let request = request.timeout(timeout).body(message.encode_to_vec());
        let outcome = self.runtime.block_on(async {
            let response = request.send().await.map_err(|error| chain(&error))?;
            match response.status() {
                status if status.is_success() => Ok(()),
                status => Err(format!("the collector answers {status}")),
            }
        });
        self.counts.spans_waiting.fetch_sub(count, Ordering::Relaxed);
        if let Err(failure) = outcome {
            self.counts.lost(count as u64);
            if self.complained_at.is_none_or(|at| at.elapsed() >= FAILURE_LOG_INTERVAL) {
                warn!("{count} spans could not be sent to '{}' and are dropped: {failure}", self.url);
                self.complained_at = Some(Instant::now());
            }
        }
    }
}

/// The text of an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The given attributes; a later one of the same name wins, and the service has a name in any case.
fn attributes(given: &[(String, String)]) -> Vec<nereid_wire::otlp::KeyValue> {
    let mut resources: Vec<(&str, &str)> = vec![("service.name", "triton-inference-server")];
    for (key, value) in given {
        match resources.iter_mut().find(|(known, _)| known == key) {
            Some(known) => known.1 = value,
            None => resources.push((key, value)),
        }
    }
    resources.into_iter().map(|(key, value)| text(key, value)).collect()
}

impl Destination for Collector {
    fn trace(&mut self, trace: &Finished, _counts: &Counts) {
        for entry in &trace.entries {
            if let TraceEntry::Tensor { tensor, .. } = entry {
                let name = String::from_utf8_lossy(&tensor.name);
                error!("Tensor level tracing is not supported by the mode: OPENTELEMETRY (tensor '{name}')");
            }
        }
        let epoch = Epoch::now(monotonic_ns());
        let spans = spans_of(trace, &self.ids, epoch);
        // The reservation for the trace is replaced by the number of its spans.
        self.counts.spans_waiting.fetch_add(spans.len(), Ordering::Relaxed);
        self.counts.spans_waiting.fetch_sub(trace.spans(), Ordering::Relaxed);
        self.spans.extend(spans);
        if !self.spans.is_empty() && self.due.is_none() {
            self.due = Some(Instant::now() + self.delay);
        }
        if self.spans.len() >= self.batch_max {
            self.due = Some(Instant::now());
        }
    }

    fn setting_ended(&mut self, _id: u64, _counts: &Counts) {}

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn on_time(&mut self, _counts: &Counts) {
        while !self.spans.is_empty() {
            self.send(SEND_TIMEOUT);
        }
        self.due = None;
    }

    fn finish(&mut self, _counts: &Counts) {
        let end = Instant::now() + LAST_SEND_TIMEOUT;
        while !self.spans.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.counts.lost(self.spans.len() as u64);
                self.spans.clear();
                return;
            }
            self.send(left);
        }
    }
}

/// The clock that stamps are read from.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
