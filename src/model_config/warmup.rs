//! `model_warmup`: the requests that every instance runs before it takes work, resolved to bytes
//! (contract/model_config.md section 6, row "warmup"; contract/schedulers.md section 9).
//!
//! Two steps, because a check of a repository needs the first without the second: the configuration alone, and its
//! files.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use super::{Error, ModelSpec, datatype, labels};
use nereid_wire::inference::model_warmup::Input;
use nereid_wire::inference::model_warmup::input::InputDataType;
use nereid_wire::inference::{DataType, ModelConfig, ModelWarmup};

/// Directory of the data files, in the model's directory.
const DIRECTORY: &str = "warmup";
/// Directory of what samples must be answered with: a directory for each sample with a file for each output.
const EXPECTED: &str = "warmup_expected";
/// The parameter that says how far numbers with a fraction may be from that.
const TOLERANCE: &str = "nereid.warmup.tolerance";
/// Outputs of one sample that are checked.
const EXPECTED_MAX: usize = 1024;

/// Bytes that all samples of a model may hold together.
pub const BYTES_MAX: usize = 1 << 30;
/// Requests of one sample.
pub const BATCH_SIZE_MAX: u32 = 1 << 16;

/// The prefix of errors for a request without an id.
const PREFIX: &str = "[request id: <id_unknown>] ";

/// A sample that is not skipped.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    /// Requests of batch size 1 in one execution; at least 1.
    pub batch_size: u32,
    /// Executions; at least 1.
    pub count: u32,
    /// Of each request, by name.
    pub inputs: Vec<SampleInput>,
    /// What each request must be answered with, by name; empty where any answer does.
    pub expected: Vec<ExpectedOutput>,
    /// How far numbers with a fraction may be from what is expected.
    pub tolerance: f64,
}

/// An output that a sample is checked for (docs/generations.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedOutput {
    pub name: String,
    /// The path of its file in the model's directory, for messages.
    pub file: String,
    /// As an answer over HTTP brings it in binary.
    pub data: Arc<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleInput {
    pub name: String,
    pub data_type: DataType,
    /// The batch dimension included, which every tensor of a batching model has, controls of sequences too.
    pub shape: Vec<i64>,
    /// Position among the model's inputs, and behind them among those that the server adds to requests of sequences;
    /// `None` for a tensor that is passed through.
    pub index: Option<usize>,
    /// As a request brings it: little-endian, strings with their lengths in front.
    pub data: Arc<Vec<u8>>,
}

/// Checks the samples without the files.
pub fn check(config: &ModelConfig) -> Result<(), Error> {
    for sample in active(config) {
        for (name, input) in &sample.inputs {
            if input.dims.iter().any(|&dim| dim < 0) {
                return Err(Error::invalid(format!(
                    "warmup setting expects all variable-size dimensions are specified for input '{name}'"
                )));
            }
        }
        if sample.batch_size > BATCH_SIZE_MAX {
            return Err(Error::invalid(format!(
                "warmup sample '{}' of model '{}' has batch_size {}, more than {BATCH_SIZE_MAX}",
                sample.name, config.name, sample.batch_size
            )));
        }
        for (name, input) in &sample.inputs {
            if input.input_data_type.is_none() {
                return Err(without_data(name));
            }
        }
    }
    Ok(())
}

/// The samples of a model whose directory is `model_directory`, with their data. Random data differ from call to call.
pub fn resolve(spec: &ModelSpec, model_directory: &Path) -> Result<Vec<Sample>, Error> {
    check(&spec.config)?;
    let mut resolver = Resolver { spec, model_directory, room: BYTES_MAX, random: Random::new() };
    let tolerance = tolerance(&spec.config)?;
    active(&spec.config).map(|sample| resolver.sample(sample, tolerance)).collect()
}

fn tolerance(config: &ModelConfig) -> Result<f64, Error> {
    let Some(given) = config.parameters.get(TOLERANCE) else { return Ok(0.0) };
    let text = &given.string_value;
    let read = text.parse().ok().filter(|tolerance: &f64| tolerance.is_finite() && *tolerance >= 0.0);
    read.ok_or_else(|| {
        Error::invalid(format!("parameter '{TOLERANCE}' is '{text}', expected a number that is at least 0"))
    })
}

/// A sample of batch size 0 is skipped, whatever it holds.
fn active(config: &ModelConfig) -> impl Iterator<Item = &ModelWarmup> {
    config.model_warmup.iter().filter(|sample| sample.batch_size != 0)
}

fn without_data(input: &str) -> Error {
    Error::invalid(format!("{PREFIX}warmup setting expects input '{input}' to have input_data_type set"))
}

struct Resolver<'a> {
    spec: &'a ModelSpec,
    model_directory: &'a Path,
    /// Bytes that may still be taken.
    room: usize,
    random: Random,
}

impl Resolver<'_> {
    fn sample(&mut self, sample: &ModelWarmup, tolerance: f64) -> Result<Sample, Error> {
        let inputs = sample.inputs.iter().map(|(name, input)| self.input(sample, name, input));
        let inputs = inputs.collect::<Result<_, _>>()?;
        Ok(Sample {
            name: sample.name.clone(),
            batch_size: sample.batch_size,
            count: sample.count.max(1),
            inputs,
            expected: self.expected(&sample.name)?,
            tolerance,
        })
    }

    /// The files of a sample's outputs, sorted; none where the directory of the sample is not there.
    fn expected(&mut self, sample: &str) -> Result<Vec<ExpectedOutput>, Error> {
        if sample.is_empty() || sample == "." || sample == ".." || sample.contains(['/', '\0']) {
            return Ok(Vec::new());
        }
        let relative = format!("{EXPECTED}/{sample}");
        let unread = |error: std::io::Error| Error::internal(format!("failed to read '{relative}': {error}"));
        let entries = match std::fs::read_dir(self.model_directory.join(&relative)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unread)?,
        };
        let mut names = Vec::new();
        for entry in entries.take(EXPECTED_MAX + 1) {
            names.push(entry.map_err(unread)?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        if names.len() > EXPECTED_MAX {
            return Err(Error::invalid(format!("'{relative}' has more than {EXPECTED_MAX} files")));
        }
        let mut expected = Vec::new();
        for name in names {
            let file = format!("{relative}/{name}");
            if !self.spec.config.output.iter().any(|output| output.name == name) {
                return Err(Error::invalid(format!("'{file}' is named after no output of model '{}'", self.spec.name)));
            }
            let path = self.model_directory.join(&file);
            let cannot = |error: &dyn std::fmt::Display| Error::internal(format!("failed to read '{file}': {error}"));
            if !std::fs::metadata(&path).map_err(|error| cannot(&error))?.is_file() {
                return Err(cannot(&"it is not a file"));
            }
            let mut data = Vec::new();
            let reader = File::open(&path).map_err(|error| cannot(&error))?;
            let bound = self.room.saturating_add(1) as u64;
            reader.take(bound).read_to_end(&mut data).map_err(|error| cannot(&error))?;
            self.room = self
                .room
                .checked_sub(data.len())
                .ok_or_else(|| Error::invalid(format!("'{file}' takes the warmup samples beyond {BYTES_MAX} bytes")))?;
            expected.push(ExpectedOutput { name, file, data: Arc::new(data) });
        }
        Ok(expected)
    }

    fn input(&mut self, sample: &ModelWarmup, name: &str, input: &Input) -> Result<SampleInput, Error> {
        let hidden = || self.spec.hidden_inputs.iter().position(|input| input.name == name);
        let added = || Some(self.spec.inputs.len() + hidden()?);
        let index = self.spec.input_index(name).or_else(added);
        let batch = self.spec.is_batching().then_some(1);
        let too_large = || {
            let (sample, model) = (&sample.name, &self.spec.name);
            Error::invalid(format!(
                "warmup sample '{sample}' of model '{model}': input '{name}' takes the samples beyond {BYTES_MAX} bytes"
            ))
        };
        let byte_size = byte_size(input).filter(|&size| size <= self.room).ok_or_else(too_large)?;
        let data = match &input.input_data_type {
            Some(InputDataType::InputDataFile(file)) => self.file(file, input, byte_size)?.ok_or_else(too_large)?,
            Some(InputDataType::RandomData(_)) => {
                self.random.data(input.data_type(), byte_size).ok_or_else(|| no_memory(byte_size))?
            }
            // Whether the value is true does not count.
            Some(InputDataType::ZeroData(_)) => zeroed(byte_size).ok_or_else(|| no_memory(byte_size))?,
            None => return Err(without_data(name)),
        };
        self.room = self.room.saturating_sub(data.len());
        Ok(SampleInput {
            name: name.to_owned(),
            data_type: input.data_type(),
            shape: batch.into_iter().chain(input.dims.iter().copied()).collect(),
            index,
            data: Arc::new(data),
        })
    }

    /// The bytes of a data file: as many as the tensor needs, or all where they are strings. `None` if they exceed the
    /// bound.
    fn file(&self, file: &str, input: &Input, byte_size: usize) -> Result<Option<Vec<u8>>, Error> {
        let relative = format!("{DIRECTORY}/{file}");
        if file.starts_with('/') || labels::escapes(self.model_directory, &relative) {
            let model = &self.spec.name;
            return Err(Error::unsupported(format!(
                "warmup data file path '{file}' in model '{model}' is outside model directory"
            )));
        }
        let path = self.model_directory.join(relative);
        let cannot = |error: &dyn std::fmt::Display| {
            Error::internal(format!("failed to open text file for read {}: {error}", path.display()))
        };
        // Opening a path that is no regular file, such as a pipe, might block for ever.
        if !std::fs::metadata(&path).map_err(|error| cannot(&error))?.is_file() {
            return Err(cannot(&"it is not a file"));
        }
        let is_text = input.data_type() == DataType::TypeString;
        let wanted = if is_text { self.room.saturating_add(1) } else { byte_size };
        let mut data = Vec::new();
        let reader = File::open(&path).map_err(|error| cannot(&error))?;
        reader.take(wanted as u64).read_to_end(&mut data).map_err(|error| cannot(&error))?;
        if is_text {
            return Ok((data.len() <= self.room).then_some(data));
        }
        if data.len() < byte_size {
            // No blank before the verb: so the text has always been.
            return Err(Error::invalid(format!(
                "{PREFIX}warmup setting expects {byte_size} bytes, but the data provided from {file}only has {} bytes",
                data.len()
            )));
        }
        Ok(Some(data))
    }
}

/// Bytes of the tensor; an empty string takes the four of its length. `None` where they cannot be counted.
fn byte_size(input: &Input) -> Option<usize> {
    let element = datatype::element_bytes(input.data_type()).unwrap_or(size_of::<u32>());
    if input.dims.contains(&0) {
        return Some(0);
    }
    let sizes = input.dims.iter().map(|&dim| usize::try_from(dim).ok());
    sizes.chain([Some(element)]).try_fold(1usize, |product, size| product.checked_mul(size?))
}

fn no_memory(byte_size: usize) -> Error {
    Error::internal(format!("the system has no memory for a warmup sample of {byte_size} bytes"))
}

fn zeroed(byte_size: usize) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    data.try_reserve_exact(byte_size).ok()?;
    data.resize(byte_size, 0);
    Some(data)
}

/// Random numbers that need not be secure: xorshift, seeded by the process.
struct Random(u64);

impl Random {
    fn new() -> Random {
        // Each `RandomState` has keys of its own.
        Random(RandomState::new().hash_one(0) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// `byte_size` bytes of elements: any integers, truth values, numbers from 0 to 1, and empty strings.
    fn data(&mut self, data_type: DataType, byte_size: usize) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        data.try_reserve_exact(byte_size.checked_next_multiple_of(8)?).ok()?;
        while data.len() < byte_size {
            let bits = self.next();
            match data_type {
                DataType::TypeString => {
                    data.resize(byte_size, 0);
                }
                DataType::TypeBool => data.push((bits >> 63) as u8),
                DataType::TypeFp64 => data.extend(((bits >> 11) as f64 / (1u64 << 53) as f64).to_le_bytes()),
                DataType::TypeFp32 => data.extend(((bits >> 40) as f32 / (1u32 << 24) as f32).to_le_bytes()),
                // The upper half of the same number in 32 bits.
                DataType::TypeBf16 => {
                    data.extend(((((bits >> 40) as f32 / (1u32 << 24) as f32).to_bits() >> 16) as u16).to_le_bytes());
                }
                // Exponent of the numbers from 1/2 to 1, any mantissa.
                DataType::TypeFp16 => data.extend((0x3800 | (bits >> 54) as u16).to_le_bytes()),
                _ => data.extend(bits.to_le_bytes()),
            }
        }
        data.truncate(byte_size);
        Some(data)
    }
}

#[cfg(test)]
mod tests;
