//! The figures of one page of metrics, by model and for the server.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::histogram::Histogram;
use nereid_client::exposition::{Sample, samples};

/// Samples of one page that are read; the rest is left out.
pub const SAMPLES_MAX: usize = 4_194_304;
/// Models of one page, or of one index, that are kept; the rest is left out.
pub const MODELS_MAX: usize = 65_536;
/// GPUs of one page that are kept.
pub const GPUS_MAX: usize = 256;
/// Bytes of a name, a version or a reason that are kept.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// A model's series on the page.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelKey {
    pub name: String,
    pub version: String,
    /// The repository, with `--model-namespacing`; otherwise empty.
    pub namespace: String,
}

/// The parts of a request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Request,
    Queue,
    Input,
    Infer,
    Output,
}

impl Phase {
    pub const ALL: [Phase; 5] = [Phase::Request, Phase::Queue, Phase::Input, Phase::Infer, Phase::Output];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Request => "request",
            Phase::Queue => "queue",
            Phase::Input => "input",
            Phase::Infer => "infer",
            Phase::Output => "output",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// Of `request_duration_us`, `compute_infer_summary_us` and the like: the phase and the rest of the name.
    fn of(name: &str) -> Option<(Phase, &str)> {
        let phases = [
            ("request_", Phase::Request),
            ("queue_", Phase::Queue),
            ("compute_input_", Phase::Input),
            ("compute_infer_", Phase::Infer),
            ("compute_output_", Phase::Output),
        ];
        phases.iter().find_map(|(prefix, phase)| Some((*phase, name.strip_prefix(prefix)?)))
    }
}

/// Quantiles that a summary of the page states itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Summary {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

/// One time of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PhaseFigures {
    /// The sum of the counter, in microseconds.
    pub total_us: Option<f64>,
    pub histogram: Option<Histogram>,
    pub summary: Summary,
}

/// One model version. Series of several GPUs, or several tags, are added up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelFigures {
    pub success: Option<f64>,
    pub failure: Option<f64>,
    pub inferences: Option<f64>,
    pub executions: Option<f64>,
    /// Requests that wait for an instance.
    pub pending: Option<f64>,
    pub refused: Option<f64>,
    pub cache_hits: Option<f64>,
    pub cache_misses: Option<f64>,
    pub load_secs: Option<f64>,
    pub phases: [PhaseFigures; 5],
}

/// The process and its host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerFigures {
    /// Seconds since 1970.
    pub start_secs: Option<f64>,
    /// The program's version, where the page has it.
    pub build: Option<String>,
    pub shards: Option<f64>,
    pub shards_stuck: Option<f64>,
    pub connections: Option<f64>,
    pub refused: Option<f64>,
    pub panics: Option<f64>,
    pub pool_bytes: Option<f64>,
    pub resident_bytes: Option<f64>,
    pub cpu_utilization: Option<f64>,
    pub memory_total_bytes: Option<f64>,
    pub memory_used_bytes: Option<f64>,
    pub pinned_total_bytes: Option<f64>,
    pub pinned_used_bytes: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuFigures {
    pub utilization: Option<f64>,
    pub memory_total_bytes: Option<f64>,
    pub memory_used_bytes: Option<f64>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    pub models: BTreeMap<ModelKey, ModelFigures>,
    pub server: ServerFigures,
    pub gpus: BTreeMap<String, GpuFigures>,
    /// Samples that were not read or not kept because there are too many.
    pub left_out: usize,
}

/// The labels that matter here.
#[derive(Default)]
struct SampleLabels<'a> {
    model: Cow<'a, str>,
    version: Cow<'a, str>,
    namespace: Cow<'a, str>,
    gpu: Option<Cow<'a, str>>,
    le: Option<f64>,
    quantile: Option<f64>,
}

impl<'a> SampleLabels<'a> {
    fn of(sample: &Sample<'a>) -> SampleLabels<'a> {
        let mut labels = SampleLabels::default();
        for (name, value) in sample.labels() {
            match name {
                "model" => labels.model = value,
                "version" => labels.version = value,
                "namespace" => labels.namespace = value,
                "gpu_uuid" => labels.gpu = Some(value),
                "le" => labels.le = value.parse().ok(),
                "quantile" => labels.quantile = value.parse().ok(),
                _ => {}
            }
        }
        labels
    }
}

impl Figures {
    /// Reads a page; what it does not know is left out.
    pub fn parse(page: &str) -> Figures {
        let mut figures = Figures::default();
        for (number, sample) in samples(page).enumerate() {
            if number >= SAMPLES_MAX {
                figures.left_out += 1;
            } else {
                figures.note(&sample);
            }
        }
        figures
    }

    fn note(&mut self, sample: &Sample<'_>) {
        let name = sample.name();
        let is_of_model = sample.series.contains("model=\"");
        match is_of_model {
            true => self.note_of_model(name, sample),
            false if name.starts_with("nv_gpu_") => self.note_of_gpu(name, sample),
            false => self.server.note(name, sample),
        }
    }

    fn note_of_model(&mut self, name: &str, sample: &Sample<'_>) {
        let Some(family) = Family::of(name) else { return };
        let labels = SampleLabels::of(sample);
        let short = |text: Cow<'_, str>| cut(&text, TEXT_BYTES_MAX).to_owned();
        let key =
            ModelKey { name: short(labels.model), version: short(labels.version), namespace: short(labels.namespace) };
        let has_room = self.models.len() < MODELS_MAX;
        let model = match self.models.get_mut(&key) {
            Some(model) => model,
            None if has_room => self.models.entry(key).or_default(),
            None => {
                self.left_out += 1;
                return;
            }
        };
        model.note(family, sample.value, labels.le, labels.quantile);
    }

    fn note_of_gpu(&mut self, name: &str, sample: &Sample<'_>) {
        let Some(uuid) = SampleLabels::of(sample).gpu else { return };
        let uuid = cut(&uuid, TEXT_BYTES_MAX);
        if !self.gpus.contains_key(uuid) && self.gpus.len() >= GPUS_MAX {
            self.left_out += 1;
            return;
        }
        let gpu = self.gpus.entry(uuid.to_owned()).or_default();
        let place = match name {
            "nv_gpu_utilization" => &mut gpu.utilization,
            "nv_gpu_memory_total_bytes" => &mut gpu.memory_total_bytes,
            "nv_gpu_memory_used_bytes" => &mut gpu.memory_used_bytes,
            "nv_gpu_power_usage" => &mut gpu.power_watts,
            "nv_gpu_power_limit" => &mut gpu.power_limit_watts,
            _ => return,
        };
        *place = Some(sample.value).filter(|value| value.is_finite());
    }
}

/// What a series of a model counts.
#[derive(Debug, Clone, Copy)]
enum Family {
    Success,
    Failure,
    Inferences,
    Executions,
    Pending,
    Refused,
    CacheHits,
    CacheMisses,
    LoadSecs,
    Total(Phase),
    Bucket(Phase),
    Count(Phase),
    Sum(Phase),
    Quantile(Phase),
}

impl Family {
    fn of(name: &str) -> Option<Family> {
        let known = match name {
            "nv_inference_request_success" => Family::Success,
            "nv_inference_request_failure" => Family::Failure,
            "nv_inference_count" => Family::Inferences,
            "nv_inference_exec_count" => Family::Executions,
            "nv_inference_pending_request_count" => Family::Pending,
            "nereid_model_refused_requests_total" => Family::Refused,
            "nv_cache_num_hits_per_model" => Family::CacheHits,
            "nv_cache_num_misses_per_model" => Family::CacheMisses,
            "nv_model_load_duration_secs" => Family::LoadSecs,
            _ => return Family::of_phase(name),
        };
        Some(known)
    }

    fn of_phase(name: &str) -> Option<Family> {
        if let Some(rest) = name.strip_prefix("nv_inference_") {
            return match Phase::of(rest)? {
                (phase, "duration_us") => Some(Family::Total(phase)),
                (phase, "summary_us") => Some(Family::Quantile(phase)),
                _ => None,
            };
        }
        let (phase, rest) = Phase::of(name.strip_prefix("nereid_")?)?;
        match rest {
            "duration_us_bucket" => Some(Family::Bucket(phase)),
            "duration_us_count" => Some(Family::Count(phase)),
            "duration_us_sum" => Some(Family::Sum(phase)),
            _ => None,
        }
    }
}

impl ModelFigures {
    pub fn phase(&self, phase: Phase) -> Option<&PhaseFigures> {
        self.phases.get(phase.index())
    }

    fn note(&mut self, family: Family, value: f64, le: Option<f64>, quantile: Option<f64>) {
        let plain = match family {
            Family::Success => &mut self.success,
            Family::Failure => &mut self.failure,
            Family::Inferences => &mut self.inferences,
            Family::Executions => &mut self.executions,
            Family::Pending => &mut self.pending,
            Family::Refused => &mut self.refused,
            Family::CacheHits => &mut self.cache_hits,
            Family::CacheMisses => &mut self.cache_misses,
            Family::LoadSecs => &mut self.load_secs,
            Family::Total(phase)
            | Family::Bucket(phase)
            | Family::Count(phase)
            | Family::Sum(phase)
            | Family::Quantile(phase) => {
                let Some(figures) = self.phases.get_mut(phase.index()) else { return };
                return figures.note(family, value, le, quantile);
            }
        };
        add(plain, value);
    }
}

impl PhaseFigures {
    fn note(&mut self, family: Family, value: f64, le: Option<f64>, quantile: Option<f64>) {
        if !value.is_finite() {
            return;
        }
        match (family, le, quantile) {
            (Family::Bucket(_), Some(bound), _) => {
                self.histogram.get_or_insert_default().add_bucket(bound, value);
            }
            (Family::Count(_), ..) => self.histogram.get_or_insert_default().count += value,
            (Family::Sum(_), ..) => self.histogram.get_or_insert_default().sum += value,
            (Family::Quantile(_), _, Some(quantile)) => {
                let place = match quantile {
                    0.5 => &mut self.summary.p50,
                    0.99 => &mut self.summary.p99,
                    _ => return,
                };
                // Quantiles of several series cannot be added: the worst of them is shown.
                *place = Some(place.map_or(value, |known| known.max(value)));
            }
            (Family::Total(_), ..) => add(&mut self.total_us, value),
            _ => {}
        }
    }
}

impl ServerFigures {
    fn note(&mut self, name: &str, sample: &Sample<'_>) {
        let place = match name {
            "nereid_build_info" => {
                let version = sample.labels().find(|(name, _)| *name == "version");
                self.build = version.map(|(_, version)| cut(&version, TEXT_BYTES_MAX).to_owned());
                return;
            }
            "nereid_start_time_seconds" | "process_start_time_seconds" => {
                self.start_secs = Some(sample.value).filter(|value| value.is_finite());
                return;
            }
            "process_resident_memory_bytes" => &mut self.resident_bytes,
            "nereid_shards" => &mut self.shards,
            "nereid_shards_stuck" => &mut self.shards_stuck,
            "nereid_connections" => &mut self.connections,
            "nereid_refused_requests_total" => &mut self.refused,
            "nereid_panics_total" => &mut self.panics,
            "nereid_pool_bytes_in_use" => &mut self.pool_bytes,
            "nv_cpu_utilization" => &mut self.cpu_utilization,
            "nv_cpu_memory_total_bytes" => &mut self.memory_total_bytes,
            "nv_cpu_memory_used_bytes" => &mut self.memory_used_bytes,
            "nv_pinned_memory_pool_total_bytes" => &mut self.pinned_total_bytes,
            "nv_pinned_memory_pool_used_bytes" => &mut self.pinned_used_bytes,
            _ => return,
        };
        add(place, sample.value);
    }
}

fn add(place: &mut Option<f64>, value: f64) {
    if value.is_finite() {
        *place = Some(place.unwrap_or_default() + value);
    }
}

/// At most `bytes_max` bytes of a text, cut between characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}
