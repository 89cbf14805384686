//! Makes the plan of a run from the command line and the server's description of its model.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::given::{Given, Memory, Source, WindowMode};
use super::mistake::Mistake;
use super::openai::ServiceKind;
use nereid_perf::data::{self, DataError, DataPlan, Recorded, RecordingPlan};
use nereid_perf::openai::PromptError;
use nereid_perf::{
    Client, Load, ModelInfo, Plan, Recording, Rules, Sequences, Service, SharedMemory, Sweep, Target, Template, Times,
    Window, Work,
};
use nereid_recording::Contents;

/// Times in a file of intervals.
const INTERVALS_MAX: usize = 1 << 24;
/// An hour.
const INTERVAL_US_MAX: u64 = 3_600_000_000;
/// perf_analyzer's.
const SEQUENCE_LENGTH: usize = 20;
const LENGTH_VARIATION_PERCENT: f64 = 20.0;

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Mistake(#[from] Mistake),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
}

/// What is sent, and how fast.
struct Data {
    streams: Vec<Vec<Template>>,
    load: Load,
    recording: Option<Recording>,
}

impl Given {
    /// `cores` is how many this process may use.
    pub fn plan(&self, target: Target, model_info: &ModelInfo, cores: usize) -> Result<Plan, PlanError> {
        if self.service == ServiceKind::OpenAi {
            return self.openai_plan(target, cores);
        }
        let has_data = self.sources.iter().any(|source| matches!(source, Source::At(path) if !path.is_dir()));
        let Data { streams, load, recording } = self.data(model_info)?;
        let work = Work {
            streams,
            headers: self.headers.clone(),
            sequences: model_info.sequences.then(|| self.sequences(has_data)),
            input_form: self.input_form.unwrap_or_default(),
            output_form: self.output_form.unwrap_or_default(),
            compression: self.grpc_compression.or(self.http_compression).unwrap_or_default(),
            shared_memory: match self.memory {
                Memory::None => SharedMemory::None,
                Memory::System => SharedMemory::System { output_bytes: self.output_bytes },
                Memory::Arena => SharedMemory::Arena { output_bytes: self.output_bytes },
            },
            decoupled: model_info.decoupled,
            priority: self.priority,
            queue_timeout_us: self.queue_timeout_us,
            recording,
        };
        let mut composing: Vec<String> = model_info.composing_models.clone();
        for name in &self.composing {
            if !composing.contains(name) {
                composing.push(name.clone());
            }
        }
        Ok(Plan {
            metrics: self.metrics_source(&target)?,
            target,
            service: Service::Triton,
            model: self.model.clone(),
            version: self.version.clone(),
            work,
            load,
            rules: self.rules(),
            client: self.client(cores),
            server_statistics: self.server_statistics,
            composing_models: composing,
            records_max: self.records_max(),
        })
    }

    pub(super) fn client(&self, cores: usize) -> Client {
        let mut client = Client { threads: self.thread_count(cores), ..self.client.clone() };
        client.request_timeout = self.request_timeout.unwrap_or(client.request_timeout);
        client
    }

    pub(super) fn records_max(&self) -> usize {
        self.reports.profile.as_ref().map_or(0, |_| self.reports.records_max)
    }

    pub(super) fn rules(&self) -> Rules {
        let window = match self.window_mode {
            WindowMode::Time => Window::Time(Duration::from_millis(self.window_ms)),
            WindowMode::Count => Window::Count(self.window_count),
        };
        Rules { window, latency_threshold: self.threshold(), ..self.rules.clone() }
    }

    /// Lengths that the user's data gives stay as they are, unless a length is requested.
    fn sequences(&self, has_data: bool) -> Sequences {
        let given = &self.sequences;
        let length = given.length.or((!has_data).then_some(SEQUENCE_LENGTH));
        let default_variation = if length.is_some() { LENGTH_VARIATION_PERCENT } else { 0.0 };
        Sequences {
            at_once: given.at_once,
            length,
            length_variation_percent: given.variation_percent.filter(|_| length.is_some()).unwrap_or(default_variation),
            first_id: given.ids.0,
            end_id: given.ids.1,
        }
    }

    pub(super) fn load(&self) -> Result<Load, Mistake> {
        if let Some(span) = self.rate {
            return Ok(Load::Rate { sweep: span.sweep, spacing: self.spacing.unwrap_or_default() });
        }
        if let Some(path) = &self.intervals {
            return Ok(Load::Intervals(intervals(path)?));
        }
        if let Some(span) = self.concurrency {
            return Ok(Load::Concurrency(span.sweep));
        }
        let start = self.old_start.unwrap_or(1);
        let end = match self.old_end {
            Some(end) if self.old_sweep => Some(end).filter(|end| *end > 0),
            _ => Some(start),
        };
        Ok(Load::Concurrency(Sweep { start, end, step: 1 }))
    }

    /// The requests, and the load, which a recording may give.
    fn data(&self, model_info: &ModelInfo) -> Result<Data, PlanError> {
        let Some(file) = &self.recording else {
            let streams = data::streams(model_info, &self.data_plan()?)?;
            return Ok(Data { streams, load: self.load()?, recording: None });
        };
        let contents = match self.sources.as_slice() {
            [Source::Random] => Contents::Random(self.rules.seed),
            _ => Contents::Zero,
        };
        let (model, parameters) = (self.model.clone(), self.parameters.clone());
        let plan = RecordingPlan { file: file.clone(), model, contents, parameters };
        let Recorded { templates, offsets, recording } = data::recorded(model_info, &plan)?;
        let load = match self.loads().next() {
            Some(_) => self.load()?,
            None => Load::Recorded(Times { offsets, speed: self.speed.unwrap_or(1.0) }),
        };
        Ok(Data { streams: vec![templates], load, recording: Some(recording) })
    }

    fn data_plan(&self) -> Result<DataPlan, Mistake> {
        let source = match self.sources.as_slice() {
            [] | [Source::Random] => data::Source::Random,
            [Source::Zero] => data::Source::Zero,
            [Source::At(path)] if path.is_dir() => data::Source::Directory(path.clone()),
            several => {
                let mut files = Vec::new();
                for source in several {
                    match source {
                        Source::At(path) if path.is_dir() => {
                            let text = "--input-data names several sources, and one is a directory";
                            return Err(Mistake::Other(text.into()));
                        }
                        Source::At(path) => files.push(path.clone()),
                        Source::Zero | Source::Random => {}
                    }
                }
                data::Source::Json(files)
            }
        };
        Ok(DataPlan {
            source,
            batch: self.batch,
            shapes: self.shapes.iter().cloned().collect::<BTreeMap<_, _>>(),
            string_length: self.string_length,
            string: self.string.clone(),
            parameters: self.parameters.clone(),
            seed: self.rules.seed,
        })
    }
}

/// The times in a file of --request-intervals: microseconds, one a line.
fn intervals(path: &Path) -> Result<Vec<Duration>, Mistake> {
    let failed = |reason: String| Mistake::Other(format!("{}: {reason}", path.display()));
    let is_file = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.is_file();
    if !is_file {
        return Err(failed("it is not a file".into()));
    }
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut intervals = Vec::new();
    for (at, line) in std::io::BufRead::lines(std::io::BufReader::new(file)).enumerate() {
        let line = line.map_err(|error| failed(format!("line {}: {error}", at + 1)))?;
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let time = line.parse::<u64>().ok().filter(|us| *us <= INTERVAL_US_MAX);
        let shown: String = line.chars().take(40).collect();
        let expected = || failed(format!("line {}: '{shown}' is no number of microseconds up to an hour", at + 1));
        intervals.push(Duration::from_micros(time.ok_or_else(expected)?));
        if intervals.len() > INTERVALS_MAX {
            return Err(failed(format!("it has more than {INTERVALS_MAX} times")));
        }
    }
    match intervals.iter().all(Duration::is_zero) {
        // Otherwise all requests are due at once.
        true => Err(failed("none of its times is above 0".into())),
        false => Ok(intervals),
    }
}
