//! Reads a server: health, metadata, repository index and metrics, one after the other.

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::figures::{Figures, TEXT_BYTES_MAX, cut};
use super::index::{ModelState, rows};
use nereid_client::{CallError, Endpoint, HttpLink, Tls};

const METRICS_PORT: u16 = 8002;
const METRICS_PATH: &str = "/metrics";

/// The HTTP port of a server.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    pub endpoint: Endpoint,
    pub has_tls: bool,
    /// For this port, and for a page of metrics behind TLS.
    pub tls: Tls,
    /// They go to the HTTP port only: they may have keys.
    pub headers: Vec<(String, String)>,
}

/// Where the page of metrics is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// Not given: at the HTTP port itself, where Nereid's `--http-metrics` puts it, or else at port 8002 of its host.
    Usual,
    At {
        endpoint: Endpoint,
        path: String,
        has_tls: bool,
    },
}

/// No server answers at the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    pub address: String,
    pub reason: String,
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot connect to {}: {}", self.address, self.reason)
    }
}

/// What a server said at one time.
#[derive(Debug, Clone)]
pub struct Reading {
    pub at: Instant,
    pub clock: SystemTime,
    pub address: String,
    pub live: bool,
    pub ready: bool,
    /// Of its metadata; empty where it does not show them.
    pub name: String,
    pub version: String,
    /// The error says why it is not there.
    pub index: Result<Vec<ModelState>, String>,
    pub figures: Result<Figures, String>,
}

impl Reading {
    /// Seconds since the start of the process, where the server exports it.
    pub fn uptime_secs(&self) -> Option<u64> {
        let start = self.figures.as_ref().ok()?.server.start_secs.filter(|secs| *secs >= 0.0)?;
        let now = self.clock.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64();
        Some((now - start).max(0.0) as u64)
    }

    /// Why a part is missing, for people.
    pub fn notes(&self) -> Vec<String> {
        let index = self.index.as_ref().err().map(|error| format!("no repository index: {error}"));
        let figures = self.figures.as_ref().err().map(|error| format!("no metrics: {error}"));
        let cut = self.figures.as_ref().ok().filter(|figures| figures.left_out > 0);
        let cut = cut.map(|figures| format!("{} samples of the metrics are left out", figures.left_out));
        index.into_iter().chain(figures).chain(cut).collect()
    }
}

/// One server.
pub struct Source {
    http: HttpLink,
    /// `None`: at the HTTP port.
    metrics: Option<HttpLink>,
    path: String,
    /// Whether the HTTP port may still turn out to have the page.
    is_open: bool,
}

impl Source {
    /// `patience`: the longest time in which an answer makes no progress. The error names the file of TLS that is of no
    /// use.
    pub fn new(server: ServerAddress, metrics: MetricsAddress, patience: Duration) -> Result<Source, String> {
        let ServerAddress { endpoint, has_tls, tls, headers } = server;
        let (is_open, at, path, metrics_have_tls) = match metrics {
            MetricsAddress::Usual => {
                let host = match &endpoint {
                    Endpoint::Tcp { host, .. } => host.clone(),
                    Endpoint::Unix(_) => "localhost".to_owned(),
                };
                (true, Endpoint::Tcp { host, port: METRICS_PORT }, METRICS_PATH.to_owned(), false)
            }
            MetricsAddress::At { endpoint, path, has_tls } => (false, endpoint, path, has_tls),
        };
        let metrics = HttpLink::new(at, Some(&tls).filter(|_| metrics_have_tls), Vec::new(), patience)?;
        let http = HttpLink::new(endpoint, Some(&tls).filter(|_| has_tls), headers, patience)?;
        Ok(Source { http, metrics: Some(metrics), path, is_open })
    }

    pub fn address(&self) -> String {
        self.http.endpoint().to_string()
    }

    /// Reads everything once. Parts that the server refuses are errors inside of the reading.
    pub fn read(&mut self) -> Result<Reading, Unreachable> {
        let address = self.address();
        let lost = |reason: String| Unreachable { address: address.clone(), reason };
        let mut probe = |path: &str| {
            let status = self.http.call(|client| client.exchange("GET", path, "")).map(|answer| answer.status);
            status.map(|status| status == 200).or_else(|error| match error {
                CallError::Connection(reason) | CallError::TimedOut(reason) => Err(lost(reason)),
                CallError::Refused(_) => Ok(false),
            })
        };
        let (live, ready) = (probe("/v2/health/live")?, probe("/v2/health/ready")?);
        let mut document =
            |method: &str, path: &str, body: &str| match self.http.call(|client| client.call(method, path, body)) {
                Ok(value) => Ok(Ok(value)),
                Err(CallError::Refused(reason)) => Ok(Err(reason)),
                Err(CallError::Connection(reason) | CallError::TimedOut(reason)) => Err(lost(reason)),
            };
        let metadata = document("GET", "/v2", "")?.unwrap_or(Value::Null);
        let index = document("POST", "/v2/repository/index", "{}")?.map(|answer| rows(&answer));
        let text = |name: &str| cut(metadata[name].as_str().unwrap_or_default(), TEXT_BYTES_MAX).to_owned();
        let (name, version) = (text("name"), text("version"));
        let page = self.page();
        // Between the requests for the two pages: rates are between readings of metrics.
        let at = Instant::now();
        let figures = page.map(|page| Figures::parse(&page));
        Ok(Reading { at, clock: SystemTime::now(), address, live, ready, name, version, index, figures })
    }

    fn page(&mut self) -> Result<String, String> {
        let path = self.path.clone();
        if self.is_open || self.metrics.is_none() {
            match self.http.call(|client| client.page(&path)) {
                Ok(page) if self.metrics.is_none() || is_exposition(&page) => {
                    (self.is_open, self.metrics) = (false, None);
                    return Ok(page);
                }
                // The port has no such page: the other one is asked from now on.
                Ok(_) | Err(CallError::Refused(_)) if self.is_open => {}
                Ok(_) => return Err("the page is empty".to_owned()),
                Err(CallError::Refused(reason) | CallError::Connection(reason) | CallError::TimedOut(reason)) => {
                    return Err(reason);
                }
            }
        }
        let Some(metrics) = &mut self.metrics else { return Err("there is no page".to_owned()) };
        let at = format!("{}{path}", metrics.endpoint());
        let page = metrics.call(|client| client.page(&path));
        if page.is_ok() {
            self.is_open = false;
        }
        page.map_err(|error| match error {
            CallError::Refused(reason) | CallError::Connection(reason) | CallError::TimedOut(reason) => {
                format!("{at}: {reason}")
            }
        })
    }
}

/// Any server answers 200 to something; a page of metrics has comments.
fn is_exposition(page: &str) -> bool {
    page.lines().any(|line| line.starts_with("# TYPE "))
}
