//! How a load report is written: as text, as JSON, and as the message of the protocol.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;

use nereid_observe::load::Report;
use nereid_protocol::{http1, json};
use nereid_wire::xds::data::orca::v3::OrcaLoadReport;

/// The header with which a client requests a report, and names its format.
pub const ASKS: &str = "endpoint-load-metrics-format";
/// The field that carries it.
pub const FIELD: &str = "endpoint-load-metrics";

const QUEUE_DEPTH: &str = "queue_depth";
const CACHE_UTILIZATION: &str = "kv_cache_utilization";
const TOKENS_MAX: &str = "max_token_capacity";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadFormat {
    Json,
    Text,
    /// The protobuf message in base64.
    Bin,
}

impl LoadFormat {
    pub const ALL: [LoadFormat; 3] = [LoadFormat::Json, LoadFormat::Text, LoadFormat::Bin];

    pub fn name(self) -> &'static str {
        match self {
            LoadFormat::Json => "json",
            LoadFormat::Text => "text",
            LoadFormat::Bin => "bin",
        }
    }

    /// The format that a client requests; of several fields the first counts.
    pub fn wanted(head: &http1::Head) -> Option<LoadFormat> {
        LoadFormat::parse(head.header(ASKS)?)
    }

    pub fn parse(value: &[u8]) -> Option<LoadFormat> {
        LoadFormat::ALL.into_iter().find(|format| format.name().as_bytes() == value)
    }

    /// As [`LoadFormat::wanted`]; logs an unknown format, as Triton does.
    pub fn wanted_of_generate(head: &http1::Head) -> Option<LoadFormat> {
        let value = head.header(ASKS)?;
        let found = LoadFormat::parse(value);
        if found.is_none() {
            let other: String = String::from_utf8_lossy(value).chars().take(64).collect();
            tracing::error!("'{ASKS}: {other}': load is reported as 'json', 'text' or 'bin'");
        }
        found
    }

    /// With the prefix by which readers tell the formats apart.
    pub fn write(self, report: &Report) -> String {
        match self {
            LoadFormat::Json => json(report),
            LoadFormat::Text => text(report),
            LoadFormat::Bin => format!("BIN {}", base64(report)),
        }
    }
}

/// Names and values of the report's own fields.
fn fields(report: &Report) -> [(&'static str, f64); 5] {
    [
        ("application_utilization", report.application_utilization),
        ("cpu_utilization", report.cpu_utilization),
        ("mem_utilization", report.memory_utilization),
        ("rps_fractional", report.requests_per_second),
        ("eps", report.errors_per_second),
    ]
}

fn json(report: &Report) -> String {
    let mut writer = json::Writer::new(b"JSON ".to_vec());
    writer.begin_object();
    for (name, value) in fields(report) {
        writer.key(name);
        writer.double(value);
    }
    writer.key("named_metrics");
    writer.begin_object();
    writer.key(QUEUE_DEPTH);
    writer.uint(report.queue_depth);
    if let Some(cache) = &report.cache {
        writer.key(CACHE_UTILIZATION);
        writer.double(cache.utilization);
        writer.key(TOKENS_MAX);
        writer.uint(cache.tokens_max);
    }
    writer.end_object();
    writer.end_object();
    String::from_utf8_lossy(&writer.into_inner()).into_owned()
}

fn text(report: &Report) -> String {
    let mut parts: Vec<String> = fields(report).iter().map(|(name, value)| format!("{name}={value:.6}")).collect();
    parts.push(format!("named_metrics.{QUEUE_DEPTH}={}", report.queue_depth));
    if let Some(cache) = &report.cache {
        parts.push(format!("named_metrics.{CACHE_UTILIZATION}={:.6}", cache.utilization));
        parts.push(format!("named_metrics.{TOKENS_MAX}={}", cache.tokens_max));
    }
    format!("TEXT {}", parts.join(", "))
}

/// The message in base64, as binary metadata and the header carry it.
pub fn base64(report: &Report) -> String {
    STANDARD.encode(message(report).encode_to_vec())
}

/// The message of the protocol.
pub fn message(report: &Report) -> OrcaLoadReport {
    let mut message = OrcaLoadReport {
        cpu_utilization: report.cpu_utilization,
        mem_utilization: report.memory_utilization,
        rps_fractional: report.requests_per_second,
        eps: report.errors_per_second,
        application_utilization: report.application_utilization,
        ..OrcaLoadReport::default()
    };
    message.named_metrics.insert(QUEUE_DEPTH.to_owned(), report.queue_depth as f64);
    if let Some(cache) = &report.cache {
        message.named_metrics.insert(CACHE_UTILIZATION.to_owned(), cache.utilization);
        message.named_metrics.insert(TOKENS_MAX.to_owned(), cache.tokens_max as f64);
    }
    message
}
