//! What is varied: the fields of the configurations, the values that each may take, and the loads.
//!
//! A field that bears on the results of a model is here only if the user named it. A value that has no effect beside
//! another one is replaced by the one that stands for all such ([`Space::canonical`]), so that nothing is measured
//! twice.

use std::collections::BTreeMap;
use std::fmt;

use super::configuration::ModelFacts;
use super::plan::{LoadRule, Setting};

/// Names of fields, as the user writes them.
pub const FIELDS: [&str; 7] = [
    "instances",
    "max_batch_size",
    "max_queue_delay_microseconds",
    "preferred_batch_size",
    "intra_op_thread_count",
    "run_to_completion",
    "parameters.<key>",
];
/// Largest batch that is tried without being named.
const BATCH_MAX: u64 = 128;
/// Values of a field.
const VALUES_MAX: usize = 64;
/// Combinations up to which the different ones are counted.
const CHOICES_MAX: usize = 10_000;
/// Backends of models that `--run-to-completion=measured` may act on.
const MEASURED_BACKENDS: [&str; 5] = ["onnxruntime", "tensorflow", "openvino", "fil", "affine"];
/// Longest execution that it acts on.
const MEASURED_US_MAX: f64 = 50.0;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldKind {
    /// Of the dynamic batcher; off: there is none.
    Delay,
    MaxBatch,
    Instances,
    Preferred,
    Threads,
    /// A flag of the server.
    RunToCompletion,
    /// A parameter of the model that the user named.
    Parameter(String),
}

impl FieldKind {
    pub fn name(&self) -> String {
        match self {
            FieldKind::Delay => "max_queue_delay_microseconds".to_owned(),
            FieldKind::MaxBatch => "max_batch_size".to_owned(),
            FieldKind::Instances => "instances".to_owned(),
            FieldKind::Preferred => "preferred_batch_size".to_owned(),
            FieldKind::Threads => "intra_op_thread_count".to_owned(),
            FieldKind::RunToCompletion => "run_to_completion".to_owned(),
            FieldKind::Parameter(key) => format!("parameters.{key}"),
        }
    }

    /// The field that a name means.
    pub fn of_name(name: &str) -> Option<FieldKind> {
        Some(match name {
            "max_queue_delay_microseconds" | "delay" => FieldKind::Delay,
            "max_batch_size" | "batch" => FieldKind::MaxBatch,
            "instances" | "instance_group" | "count" => FieldKind::Instances,
            "preferred_batch_size" | "preferred" => FieldKind::Preferred,
            "intra_op_thread_count" | "threads" => FieldKind::Threads,
            "run_to_completion" | "run-to-completion" => FieldKind::RunToCompletion,
            _ => match name.strip_prefix("parameters.") {
                Some("intra_op_thread_count") => FieldKind::Threads,
                Some(key) if !key.is_empty() => FieldKind::Parameter(key.to_owned()),
                _ => return None,
            },
        })
    }

    /// The value that a text means, if it is one.
    fn value(&self, text: &str) -> Option<Value> {
        let number = |least: u64, most: u64| {
            text.parse().ok().filter(|number| (least..=most).contains(number)).map(Value::Number)
        };
        match self {
            FieldKind::Delay if text == "off" => Some(Value::Off),
            FieldKind::Delay => number(0, 60_000_000),
            FieldKind::MaxBatch => number(1, 1 << 20),
            FieldKind::Instances => number(1, 1024),
            FieldKind::Preferred if text == "default" => Some(Value::Default),
            FieldKind::Preferred if text == "half" => Some(Value::Half),
            FieldKind::Preferred => number(1, 1 << 20),
            FieldKind::Threads if text == "default" => Some(Value::Default),
            FieldKind::Threads => number(1, 4096),
            FieldKind::RunToCompletion => {
                ["off", "declared", "auto", "measured"].contains(&text).then(|| Value::Text(text.to_owned()))
            }
            FieldKind::Parameter(_) if text == "default" => Some(Value::Default),
            FieldKind::Parameter(_) => Some(Value::Text(text.to_owned())),
        }
    }
}

/// A value of a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// The configuration does not have it.
    Default,
    Off,
    Number(u64),
    Numbers(Vec<u64>),
    /// Half of the largest batch.
    Half,
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Default => f.write_str("default"),
            Value::Off => f.write_str("off"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Numbers(numbers) => {
                let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
                f.write_str(&texts.join("+"))
            }
            Value::Half => f.write_str("half"),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// One dimension of the space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The model that it belongs to; none: the server.
    pub model: Option<String>,
    pub kind: FieldKind,
    /// In an order in which neighbours resemble each other.
    pub values: Vec<Value>,
    /// The value of the unmodified configuration.
    pub start: usize,
}

impl Field {
    pub fn name(&self) -> String {
        match &self.model {
            Some(model) => format!("{model}/{}", self.kind.name()),
            None => self.kind.name(),
        }
    }
}

/// How much load a point has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Level {
    /// Closed loop of 2 x batch x instances, divided by this.
    Follows(u32),
    /// Closed loop, for each model.
    Concurrency(usize),
    /// Open loop, requests a second of all models together.
    Rate(f64),
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Follows(1) => f.write_str("2 x batch x instances"),
            Level::Follows(divisor) => write!(f, "2 x batch x instances / {divisor}"),
            Level::Concurrency(concurrency) => write!(f, "concurrency {concurrency}"),
            Level::Rate(rate) => write!(f, "{rate} requests/s"),
        }
    }
}

/// The loads, the highest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Loads {
    pub levels: Vec<Level>,
    /// So many of them are wanted; the rest shows the capacity where the goal cannot be met at these.
    pub wanted: usize,
    /// They are a dimension of the search; else a lower one is taken where the latency is too high.
    pub is_dimension: bool,
}

impl Loads {
    pub fn of(rule: &LoadRule) -> Loads {
        match rule {
            LoadRule::Follows => {
                let levels: Vec<Level> = (0..11).map(|shift| Level::Follows(1 << shift)).collect();
                Loads { wanted: levels.len(), levels, is_dimension: false }
            }
            LoadRule::Concurrency(list) => {
                let mut wanted = list.clone();
                wanted.sort_unstable_by(|one, other| other.cmp(one));
                wanted.dedup();
                let mut least = wanted.last().copied().unwrap_or(1);
                let mut levels: Vec<Level> = wanted.iter().copied().map(Level::Concurrency).collect();
                while least > 1 {
                    least /= 2;
                    levels.push(Level::Concurrency(least));
                }
                Loads { wanted: wanted.len().max(1), levels, is_dimension: true }
            }
            LoadRule::Rate(rate) => {
                let levels = (0..8).map(|shift| Level::Rate(rate / f64::from(1 << shift))).collect();
                Loads { levels, wanted: 1, is_dimension: true }
            }
        }
    }
}

/// A value of every field, and a load: positions in the space.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    pub values: Vec<usize>,
    pub load: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Space {
    pub fields: Vec<Field>,
    pub loads: Loads,
    /// Threads of all instances of a model together, where threads are varied.
    pub cores: u64,
}

impl Space {
    /// The space of these models. `ladders` are the delays of each model beside 0. `settings` limit or replace values.
    pub fn new(
        models: &[ModelFacts],
        settings: &[Setting],
        ladders: &BTreeMap<String, Vec<u64>>,
        load: &LoadRule,
        server: &ServerFacts,
    ) -> Result<Space, String> {
        let cores = server.cores.max(1) as u64;
        let mut fields = Vec::new();
        for facts in models {
            let ladder = ladders.get(&facts.name).map(Vec::as_slice).unwrap_or_default();
            fields.extend(automatic(facts, ladder, cores));
        }
        let is_quick = |facts: &ModelFacts| {
            let executes_quickly = facts.execution_us.is_some_and(|us| us <= MEASURED_US_MAX);
            MEASURED_BACKENDS.contains(&facts.backend.as_str()) && facts.is_on_cpu && executes_quickly
        };
        if models.iter().any(is_quick) {
            fields.push(run_to_completion(&server.run_to_completion, &["auto", "measured"]));
        }
        let mut space = Space { fields, loads: Loads::of(load), cores };
        for setting in settings {
            space.set(setting, models, server)?;
        }
        // The batcher's field tells what has an effect, even where it has one value.
        space.fields.retain(|field| field.values.len() > 1 || field.kind == FieldKind::Delay);
        Ok(space)
    }

    /// Takes the user's values in the place of the automatic ones; the value of the unmodified configuration stays.
    fn set(&mut self, setting: &Setting, models: &[ModelFacts], server: &ServerFacts) -> Result<(), String> {
        let named = |what: &str| format!("--set {}={}: {what}", setting.field, setting.values.join(","));
        let (model, name) = match setting.field.rsplit_once('/') {
            Some((model, name)) => (Some(model), name),
            None => (None, setting.field.as_str()),
        };
        let kind = FieldKind::of_name(name)
            .ok_or_else(|| named(&format!("there is no field '{name}'; the fields are {}", FIELDS.join(", "))))?;
        let mut values = Vec::new();
        for text in &setting.values {
            values.push(kind.value(text).ok_or_else(|| named(&format!("'{text}' is no value of this field")))?);
        }
        if values.is_empty() || values.len() > VALUES_MAX {
            return Err(named(&format!("a field has 1 to {VALUES_MAX} values")));
        }
        if kind == FieldKind::RunToCompletion {
            self.fields.retain(|field| field.kind != kind);
            let names: Vec<String> = values.iter().map(Value::to_string).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.fields.push(run_to_completion(&server.run_to_completion, &names));
            return Ok(());
        }
        let meant: Vec<&ModelFacts> =
            models.iter().filter(|facts| model.is_none_or(|model| model == facts.name)).collect();
        if meant.is_empty() {
            let names: Vec<&str> = models.iter().map(|facts| facts.name.as_str()).collect();
            return Err(named(&format!("the models that are tuned are {}", names.join(", "))));
        }
        for facts in meant {
            let start = facts.value(&kind).ok_or_else(|| {
                let why = "it takes no batches, or has several instance groups";
                named(&format!("model '{}' has no such field: {why}", facts.name))
            });
            let start = match (start, model) {
                (Ok(start), _) => start,
                // A field for all models concerns those that have it.
                (Err(_), None) if models.len() > 1 => continue,
                (Err(error), _) => return Err(error),
            };
            let is_this = |field: &Field| field.model.as_deref() == Some(&facts.name) && field.kind == kind;
            self.fields.retain(|field| !is_this(field));
            self.fields.push(field(facts, kind.clone(), start, values.clone()));
        }
        Ok(())
    }

    /// Nothing can be changed.
    pub fn is_single(&self) -> bool {
        self.fields.iter().all(|field| field.values.len() < 2)
    }

    /// The unmodified configuration at the highest load.
    pub fn baseline(&self) -> Choice {
        Choice { values: self.fields.iter().map(|field| field.start).collect(), load: 0 }
    }

    /// The value of a field in a choice.
    pub fn value(&self, choice: &Choice, at: usize) -> Option<&Value> {
        self.fields.get(at)?.values.get(*choice.values.get(at)?)
    }

    pub fn level(&self, choice: &Choice) -> Level {
        self.loads.levels.get(choice.load).copied().unwrap_or(Level::Concurrency(1))
    }

    /// Where the field of that model is.
    pub fn position(&self, model: Option<&str>, kind: &FieldKind) -> Option<usize> {
        self.fields.iter().position(|field| field.model.as_deref() == model && field.kind == *kind)
    }

    /// The value of a model's field in a choice.
    pub fn of_model(&self, choice: &Choice, model: &str, kind: &FieldKind) -> Option<&Value> {
        self.value(choice, self.position(Some(model), kind)?)
    }

    /// The choice that stands for all that have the same effect.
    pub fn canonical(&self, choice: &Choice) -> Choice {
        let mut canonical = choice.clone();
        let mut put = |at: usize, index: usize| {
            if let Some(value) = canonical.values.get_mut(at) {
                *value = index;
            }
        };
        for (at, field) in self.fields.iter().enumerate() {
            let (FieldKind::Delay, Some(model)) = (&field.kind, field.model.as_deref()) else { continue };
            let delay = self.value(choice, at);
            let batch = self.position(Some(model), &FieldKind::MaxBatch);
            let preferred = self.position(Some(model), &FieldKind::Preferred);
            let is_off = delay == Some(&Value::Off);
            let is_single = batch.and_then(|batch| self.value(choice, batch)) == Some(&Value::Number(1));
            if is_off && let Some((batch, field)) = batch.and_then(|batch| Some((batch, self.fields.get(batch)?))) {
                put(batch, field.start);
            }
            let zero = field.values.iter().position(|value| *value == Value::Number(0));
            if !is_off
                && is_single
                && let Some(zero) = zero
            {
                put(at, zero);
            }
            let is_idle = is_off || is_single || delay == Some(&Value::Number(0));
            if is_idle && let Some((at, field)) = preferred.and_then(|at| Some((at, self.fields.get(at)?))) {
                put(at, field.start);
            }
        }
        canonical
    }

    /// Whether the choice makes sense. The unmodified configuration always does.
    pub fn allows(&self, choice: &Choice) -> bool {
        let models: Vec<&str> = self.fields.iter().filter_map(|field| field.model.as_deref()).collect();
        models.iter().all(|model| {
            let of = |kind: &FieldKind| self.of_model(choice, model, kind);
            let is_start = |kind: &FieldKind| {
                let at = self.position(Some(model), kind);
                at.is_none_or(|at| choice.values.get(at).copied() == self.fields.get(at).map(|field| field.start))
            };
            let threads = match (of(&FieldKind::Threads), of(&FieldKind::Instances)) {
                (Some(Value::Number(threads)), Some(Value::Number(instances))) => threads.saturating_mul(*instances),
                (Some(Value::Number(threads)), None) => *threads,
                _ => 0,
            };
            let fits = threads <= self.cores || (is_start(&FieldKind::Threads) && is_start(&FieldKind::Instances));
            let batch = match of(&FieldKind::MaxBatch) {
                Some(Value::Number(batch)) => *batch,
                _ => u64::MAX,
            };
            let preferred = match of(&FieldKind::Preferred) {
                Some(Value::Number(size)) => *size <= batch,
                Some(Value::Numbers(sizes)) => sizes.iter().all(|size| *size <= batch),
                Some(Value::Half) => batch >= 2,
                _ => true,
            };
            fits && preferred
        })
    }

    /// Loads of a configuration that are choices of their own.
    fn load_count(&self) -> usize {
        if self.loads.is_dimension { self.loads.wanted } else { 1 }
    }

    /// The choices one after the other, at the highest load unless loads are a dimension: `None` in the place of those
    /// that make no sense, or that another one stands for. So a caller can end it at any time.
    pub fn walk(&self) -> impl Iterator<Item = Option<Choice>> + '_ {
        let mut next = Some(vec![0usize; self.fields.len()]);
        let mut load = 0;
        std::iter::from_fn(move || {
            let values = next.as_mut()?;
            let choice = Choice { values: values.clone(), load };
            load += 1;
            if load >= self.load_count() {
                load = 0;
                let mut is_over = true;
                for (value, field) in values.iter_mut().zip(&self.fields) {
                    *value += 1;
                    if *value < field.values.len() {
                        is_over = false;
                        break;
                    }
                    *value = 0;
                }
                if is_over {
                    next = None;
                }
            }
            let counts = self.canonical(&choice) == choice && self.allows(&choice);
            Some(counts.then_some(choice))
        })
    }

    /// How many choices there are that differ in their effect. Of a space with more than [`CHOICES_MAX`] combinations
    /// it is their number.
    pub fn size(&self) -> usize {
        let counts = self.fields.iter().map(|field| field.values.len()).chain([self.load_count()]);
        let combinations = counts.fold(1usize, usize::saturating_mul);
        if combinations > CHOICES_MAX { combinations } else { self.walk().flatten().count() }
    }

    /// What differs from the unmodified configuration, by names of fields.
    pub fn changes(&self, choice: &Choice) -> BTreeMap<String, String> {
        let fields = self.fields.iter().zip(&choice.values);
        let changed = fields.filter(|(field, value)| field.start != **value);
        changed.filter_map(|(field, value)| Some((field.name(), field.values.get(*value)?.to_string()))).collect()
    }

    /// The same for people.
    pub fn describe(&self, choice: &Choice) -> String {
        let changes = self.changes(choice);
        match changes.is_empty() {
            true => "the present configuration".to_owned(),
            false => changes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "),
        }
    }

    /// Identifies a choice in a file of results, whatever else the space has.
    pub fn key(&self, choice: &Choice) -> String {
        let changes = self.changes(choice);
        let mut key: String = changes.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        key.push_str(&format!("@ {}", self.level(choice)));
        key
    }
}

/// Of the machine and the flags of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    pub cores: usize,
    /// The value of the flag.
    pub run_to_completion: String,
}

fn run_to_completion(present: &str, values: &[&str]) -> Field {
    let mut names: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
    if !names.iter().any(|name| name == present) {
        names.insert(0, present.to_owned());
    }
    let start = names.iter().position(|name| name == present).unwrap_or(0);
    Field { model: None, kind: FieldKind::RunToCompletion, values: names.into_iter().map(Value::Text).collect(), start }
}

/// A field of a model, with its present value among the others.
fn field(facts: &ModelFacts, kind: FieldKind, present: Value, mut values: Vec<Value>) -> Field {
    values.push(present.clone());
    values.sort();
    values.dedup();
    let start = values.iter().position(|value| *value == present).unwrap_or(0);
    Field { model: Some(facts.name.clone()), kind, values, start }
}

fn doubled(least: u64, most: u64) -> Vec<Value> {
    let powers = (0..63).map(|shift| 1u64 << shift);
    powers.filter(|power| *power >= least).take_while(|power| *power <= most).map(Value::Number).collect()
}

/// The fields that are varied without being named.
fn automatic(facts: &ModelFacts, ladder: &[u64], cores: u64) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut add = |kind: FieldKind, values: Vec<Value>| {
        if let Some(present) = facts.value(&kind) {
            fields.push(field(facts, kind, present, values));
        }
    };
    // The batcher first: without it larger batches have no effect.
    if facts.may_batch {
        let delays = std::iter::once(0).chain(ladder.iter().copied()).map(Value::Number);
        add(FieldKind::Delay, delays.collect());
        add(FieldKind::MaxBatch, doubled(facts.batch_min.max(1), BATCH_MAX.max(facts.max_batch)));
    }
    add(FieldKind::Instances, doubled(1, (2 * cores).max(4)));
    if facts.may_batch {
        add(FieldKind::Preferred, vec![Value::Default, Value::Half]);
    }
    if facts.backend == "onnxruntime" && facts.is_on_cpu {
        add(FieldKind::Threads, doubled(1, cores));
    }
    fields
}

#[cfg(test)]
mod tests;
