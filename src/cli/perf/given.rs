//! The values of a command line of `nereid perf`, flag by flag, and whether they contradict each other.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::flags::Action;
use super::mistake::Mistake;
use super::openai::{OpenAiGiven, ServiceKind};
use super::value::Span;
use super::words::Items;
use nereid_perf::{Client, Compression, Form, Parameter, Rules, Spacing};

/// Of random strings, in perf_analyzer.
const STRING_LENGTH: usize = 128;

/// Why parameters of sequences contradict a recording.
const WITHOUT_SEQUENCES: &str = ": requests of a recording belong to no sequence; nereid replay sends those that do";

/// Fills up while flags are read.
#[derive(Debug, Clone)]
pub struct Given {
    pub model: String,
    /// Empty: the server chooses.
    pub version: String,
    pub url: Option<String>,
    pub service: ServiceKind,
    pub openai: OpenAiGiven,
    pub wire: Wire,
    pub streaming: bool,
    pub asks_async: bool,
    pub asks_sync: bool,
    pub tls: TlsGiven,
    pub composing: Vec<String>,

    pub concurrency: Option<Span<usize>>,
    pub rate: Option<Span<f64>>,
    pub spacing: Option<Spacing>,
    pub intervals: Option<PathBuf>,
    /// Of the times of a recording.
    pub speed: Option<f64>,
    pub old_start: Option<usize>,
    pub old_end: Option<usize>,
    pub old_sweep: bool,
    pub threshold_ms: f64,
    pub sequences: SequencesGiven,

    pub rules: Rules,
    pub window_mode: WindowMode,
    pub window_ms: u64,
    pub window_count: u64,

    pub batch: u32,
    pub sources: Vec<Source>,
    pub recording: Option<PathBuf>,
    pub shapes: Vec<(String, Vec<i64>)>,
    pub string_length: usize,
    pub string: Option<String>,
    pub memory: Memory,
    pub output_bytes: usize,
    pub input_form: Option<Form>,
    pub output_form: Option<Form>,
    pub grpc_compression: Option<Compression>,
    pub http_compression: Option<Compression>,
    pub headers: Vec<(String, String)>,
    pub parameters: Vec<(String, Parameter)>,
    pub priority: u64,
    pub queue_timeout_us: Option<u64>,

    pub client: Client,
    pub request_timeout: Option<Duration>,
    pub threads: Option<usize>,
    pub threads_max: Option<usize>,

    pub verbose: bool,
    pub server_statistics: bool,
    pub reports: Reports,
    pub metrics: MetricsGiven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Http,
    Grpc,
    /// Rings of shared memory, which carry gRPC's messages.
    Ipc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowMode {
    Time,
    Count,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Zero,
    Random,
    At(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    None,
    System,
    Arena,
}

#[derive(Debug, Clone, Default)]
pub struct TlsGiven {
    pub grpc: Option<bool>,
    pub grpc_files: TlsFiles,
    pub https_files: TlsFiles,
    pub verify_peer: Option<bool>,
    pub verify_host: Option<bool>,
}

#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct SequencesGiven {
    pub at_once: usize,
    pub length: Option<usize>,
    pub variation_percent: Option<f64>,
    pub ids: (u64, Option<u64>),
}

#[derive(Debug, Clone, Default)]
pub struct Reports {
    pub csv: Option<PathBuf>,
    pub verbose_csv: bool,
    pub json: Option<PathBuf>,
    pub html: Option<PathBuf>,
    pub profile: Option<PathBuf>,
    pub records_max: usize,
}

#[derive(Debug, Clone, Default)]
pub struct MetricsGiven {
    pub wanted: bool,
    pub url: Option<String>,
    pub interval_ms: Option<u64>,
}

/// The request of a command line.
#[derive(Debug)]
pub enum PerfCommand {
    Measure(Box<Given>),
    Help,
    Version,
}

impl Default for Given {
    /// perf_analyzer's defaults.
    fn default() -> Given {
        Given {
            model: String::new(),
            version: String::new(),
            url: None,
            service: ServiceKind::Triton,
            openai: OpenAiGiven::default(),
            wire: Wire::Http,
            streaming: false,
            asks_async: false,
            asks_sync: false,
            tls: TlsGiven::default(),
            composing: Vec::new(),
            concurrency: None,
            rate: None,
            spacing: None,
            intervals: None,
            speed: None,
            old_start: None,
            old_end: None,
            old_sweep: false,
            threshold_ms: 0.0,
            sequences: SequencesGiven { at_once: 4, length: None, variation_percent: None, ids: (1, None) },
            rules: Rules::default(),
            window_mode: WindowMode::Time,
            window_ms: 5000,
            window_count: 50,
            batch: 1,
            sources: Vec::new(),
            recording: None,
            shapes: Vec::new(),
            string_length: STRING_LENGTH,
            string: None,
            memory: Memory::None,
            output_bytes: 100 * 1024,
            input_form: None,
            output_form: None,
            grpc_compression: None,
            http_compression: None,
            headers: Vec::new(),
            parameters: Vec::new(),
            priority: 0,
            queue_timeout_us: None,
            client: Client::default(),
            request_timeout: None,
            threads: None,
            threads_max: None,
            verbose: false,
            server_statistics: true,
            reports: Reports { records_max: 1_000_000, ..Reports::default() },
            metrics: MetricsGiven::default(),
        }
    }
}

impl PerfCommand {
    pub fn parse(words: &[OsString]) -> Result<PerfCommand, Mistake> {
        let mut given = Given::default();
        for item in Items::new(words) {
            let (flag, value) = item?;
            match (&flag.action, value) {
                (Action::Help, _) => return Ok(PerfCommand::Help),
                (Action::Version, _) => return Ok(PerfCommand::Version),
                (Action::Switch(switch), _) => switch(&mut given),
                (Action::Set(set), Some(value)) => set(&mut given, &value)?,
                // A flag that takes a value has one by now.
                (Action::Set(_), None) => return Err(Mistake::NeedsValue(format!("--{}", flag.name))),
                (Action::Refuse(reason), _) => return Err(Mistake::Refused { flag: flag.name, reason }),
            }
        }
        given.check()?;
        Ok(PerfCommand::Measure(Box::new(given)))
    }
}

impl Given {
    fn check(&self) -> Result<(), Mistake> {
        if self.model.is_empty() {
            return Err(Mistake::Other("which model? -m names it".into()));
        }
        self.check_load()?;
        self.check_service()?;
        self.check_wire()?;
        self.check_sources()?;
        self.check_recording()?;
        self.check_reports()?;
        self.check_client()
    }

    /// The flags that set a load, of those that are given.
    pub fn loads(&self) -> impl Iterator<Item = &'static str> {
        let has_old = self.old_start.is_some() || self.old_end.is_some() || self.old_sweep;
        let modes = [
            ("--concurrency-range", self.concurrency.is_some()),
            ("--request-rate-range", self.rate.is_some()),
            ("--request-intervals", self.intervals.is_some()),
            ("-t, -c and -d", has_old),
        ];
        modes.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    fn check_load(&self) -> Result<(), Mistake> {
        let mut chosen = self.loads();
        if let (Some(one), Some(other)) = (chosen.next(), chosen.next()) {
            return Err(Mistake::Conflict(one, other, ": there is one load"));
        }
        if self.old_sweep && self.old_end.is_none() {
            return Err(Mistake::Without { flag: "-d", needs: "-c, where the sweep ends, 0 for nowhere" });
        }
        let start = self.old_start.unwrap_or(1);
        if self.old_sweep && self.old_end.is_some_and(|end| end != 0 && end < start) {
            return Err(Mistake::Conflict("-t", "-c", ": the sweep ends before it starts"));
        }
        let spans = [
            self.concurrency.map(|span| (span.sweep.end.is_none(), span.has_end)),
            self.rate.map(|span| (span.sweep.end.is_none(), span.has_end)),
            self.old_sweep.then(|| (self.old_end == Some(0), true)),
        ];
        let (is_open, has_end) = spans.into_iter().flatten().next().unwrap_or((false, false));
        if is_open && self.threshold_ms == 0.0 {
            return Err(Mistake::Without {
                flag: "a range that ends with 0",
                needs: "--latency-threshold, or it would never end",
            });
        }
        if self.rules.binary_search && (!has_end || is_open) {
            return Err(Mistake::Without { flag: "--binary-search", needs: "a range with a start and an end" });
        }
        if self.rules.binary_search && self.threshold_ms == 0.0 {
            return Err(Mistake::Without {
                flag: "--binary-search",
                needs: "--latency-threshold, the bound of the search",
            });
        }
        Ok(())
    }

    fn check_wire(&self) -> Result<(), Mistake> {
        let is_grpc = self.wire == Wire::Grpc;
        let is_http = self.wire == Wire::Http;
        self.check_ring()?;
        let only = |flag: &'static str, needs: &'static str| Err(Mistake::Without { flag, needs });
        if self.asks_async && self.asks_sync {
            return Err(Mistake::Conflict("--async", "--sync", ""));
        }
        if self.streaming && !is_grpc && self.service == ServiceKind::Triton {
            return only("--streaming", "-i grpc or --service-kind openai");
        }
        if self.streaming && self.asks_sync {
            return Err(Mistake::Conflict("--streaming", "--sync", ": a stream is asynchronous"));
        }
        if !is_http && (self.input_form.is_some() || self.output_form.is_some()) {
            return only("--input-tensor-format and --output-tensor-format", "-i http: gRPC has one form of tensors");
        }
        if self.grpc_compression.is_some() && !is_grpc {
            return only("--grpc-compression-algorithm", "-i grpc");
        }
        if self.http_compression.is_some() && !is_http {
            return only("--http-compression-algorithm", "-i http");
        }
        let is_https = self.url.as_deref().is_some_and(|url| url.starts_with("https://"));
        let files = |files: &TlsFiles| files.ca.is_some() || files.certificate.is_some() || files.key.is_some();
        let has_https =
            files(&self.tls.https_files) || self.tls.verify_peer.is_some() || self.tls.verify_host.is_some();
        if has_https && (!is_http || !is_https) {
            return only("--ssl-https-…", "-i http and a URL that begins with https://");
        }
        let has_grpc = self.tls.grpc == Some(true) || files(&self.tls.grpc_files);
        if has_grpc && !is_grpc {
            return only("--ssl-grpc-…", "-i grpc");
        }
        if files(&self.tls.grpc_files) && self.tls.grpc != Some(true) {
            return only("--ssl-grpc-…", "--ssl-grpc-use-ssl=true");
        }
        for files in [&self.tls.grpc_files, &self.tls.https_files] {
            if files.certificate.is_some() != files.key.is_some() {
                return only("a client's certificate", "its key, and the other way round");
            }
        }
        Ok(())
    }

    /// What a ring of shared memory has not, and what it alone has.
    fn check_ring(&self) -> Result<(), Mistake> {
        if self.wire != Wire::Ipc {
            let own = [
                ("--shared-memory arena", self.memory == Memory::Arena),
                ("--ipc-spin-us", !self.client.ring_spin.is_zero()),
            ];
            return match own.into_iter().find(|(_, is_given)| *is_given) {
                Some((flag, _)) => Err(Mistake::Without { flag, needs: "-i ipc" }),
                None => Ok(()),
            };
        }
        if self.url.is_none() {
            let needs = "-u <path>, the path of the server's --ipc-path";
            return Err(Mistake::Without { flag: "-i ipc", needs });
        }
        let tls = &self.tls;
        let files = |files: &TlsFiles| files.ca.is_some() || files.certificate.is_some() || files.key.is_some();
        let has_tls = tls.grpc == Some(true)
            || tls.verify_peer.is_some()
            || tls.verify_host.is_some()
            || files(&tls.grpc_files)
            || files(&tls.https_files);
        let has_packing = self.grpc_compression.is_some_and(|packing| packing != Compression::None);
        let foreign = [
            ("--streaming", self.streaming, ": each request is a call there; measure streams with -i grpc"),
            ("--ssl-…", has_tls, ": a ring is memory of this host, without TLS; leave these flags out"),
            ("--grpc-compression-algorithm", has_packing, ": messages in a ring are not packed"),
        ];
        match foreign.into_iter().find(|(_, is_given, _)| *is_given) {
            Some((flag, _, hint)) => Err(Mistake::Conflict("-i ipc", flag, hint)),
            None => Ok(()),
        }
    }

    fn check_sources(&self) -> Result<(), Mistake> {
        if self.sources.len() > 1 && !self.sources.iter().all(|source| matches!(source, Source::At(_))) {
            return Err(Mistake::Other("--input-data names several sources, and not all are files".into()));
        }
        if let Some(name) = repeated(self.shapes.iter().map(|(name, _)| name.as_str())) {
            return Err(Mistake::Other(format!("--shape gives two shapes for input '{name}'")));
        }
        if let Some(name) = repeated(self.parameters.iter().map(|(name, _)| name.as_str())) {
            return Err(Mistake::Other(format!("--request-parameter gives '{name}' two values")));
        }
        Ok(())
    }

    /// Requests of a recording are as they came.
    fn check_recording(&self) -> Result<(), Mistake> {
        if self.recording.is_none() {
            let needs = "--input-recording, whose times it changes";
            return if self.speed.is_some() { Err(Mistake::Without { flag: "--speed", needs }) } else { Ok(()) };
        }
        let has_files = self.sources.iter().any(|source| matches!(source, Source::At(_)));
        let foreign = [
            ("--input-data=<path>", has_files, ": requests have one source"),
            ("--shape", !self.shapes.is_empty(), ": shapes are those of the recording"),
            ("-b", self.batch != 1, ": batches are those of the recording"),
            ("--string-length", self.string_length != STRING_LENGTH, ": strings have their recorded lengths"),
            ("--string-data", self.string.is_some(), ": strings are those of the recording"),
            ("--request-parameter sequence_id", self.has_parameter("sequence_id"), WITHOUT_SEQUENCES),
            ("--request-parameter sequence_start", self.has_parameter("sequence_start"), WITHOUT_SEQUENCES),
            ("--request-parameter sequence_end", self.has_parameter("sequence_end"), WITHOUT_SEQUENCES),
        ];
        if let Some((flag, _, hint)) = foreign.iter().find(|(_, is_given, _)| *is_given) {
            return Err(Mistake::Conflict("--input-recording", flag, hint));
        }
        match (self.speed, self.loads().next()) {
            (Some(_), Some(load)) => Err(Mistake::Conflict("--speed", load, ": that load has times of its own")),
            _ => Ok(()),
        }
    }

    fn has_parameter(&self, name: &str) -> bool {
        self.parameters.iter().any(|(given, _)| given == name)
    }

    fn check_reports(&self) -> Result<(), Mistake> {
        if self.reports.verbose_csv && self.reports.csv.is_none() {
            return Err(Mistake::Without { flag: "--verbose-csv", needs: "-f, the file to be written" });
        }
        if !self.metrics.wanted && (self.metrics.url.is_some() || self.metrics.interval_ms.is_some()) {
            return Err(Mistake::Without { flag: "--metrics-url and --metrics-interval", needs: "--collect-metrics" });
        }
        let reports = [&self.reports.csv, &self.reports.json, &self.reports.html, &self.reports.profile];
        let paths: Vec<_> = reports.into_iter().flatten().collect();
        let same = paths.iter().enumerate().find(|(at, path)| paths.iter().take(*at).any(|other| other == *path));
        match same {
            None => Ok(()),
            Some((_, path)) => Err(Mistake::Other(format!("two reports cannot be one file: {}", path.display()))),
        }
    }

    fn check_client(&self) -> Result<(), Mistake> {
        let pins = self.client.pin_to.len();
        if pins > 0 && self.threads.is_some_and(|threads| threads > pins) {
            return Err(Mistake::Conflict("--pin", "--threads", ": there are more threads than cores"));
        }
        if self.client.unique_connections && self.client.connections.is_some() {
            return Err(Mistake::Conflict(
                "--unique-connections",
                "--connections",
                ": either sets the number of connections",
            ));
        }
        Ok(())
    }

    /// Threads that send, on a machine with `cores`.
    pub fn thread_count(&self, cores: usize) -> usize {
        let pins = self.client.pin_to.len();
        let wanted = match (self.threads, pins) {
            (Some(threads), _) => threads,
            (None, 0) => self.threads_max.map_or(1, |_| cores.max(1)),
            (None, pins) => pins,
        };
        wanted.min(self.threads_max.unwrap_or(usize::MAX))
    }

    pub fn threshold(&self) -> Option<Duration> {
        (self.threshold_ms > 0.0).then(|| Duration::from_secs_f64(self.threshold_ms / 1000.0))
    }

    /// Notes for stderr on accepted flags that have no effect.
    pub fn notes(&self) -> Vec<&'static str> {
        let mut notes = Vec::new();
        if self.spacing.is_some() && self.rate.is_none() {
            notes.push("--request-distribution has no effect without --request-rate-range");
        }
        if (self.old_end.is_some()) && !self.old_sweep {
            notes.push("-c has no effect without -d");
        }
        notes
    }
}

/// The first name that was there before.
fn repeated<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = std::collections::BTreeSet::new();
    names.find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests;
