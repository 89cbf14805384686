//! Checks the data files of a configuration against the tensors that they fill: initial states and warm-up samples.
//! Only their sizes are checked.

use std::fs;
use std::io;
use std::path::Path;

use super::super::{Error, labels};
use super::{Findings, state};
use nereid_wire::inference::model_sequence_batching::initial_state::StateData;
use nereid_wire::inference::model_warmup::input::InputDataType;
use nereid_wire::inference::{DataType, ModelConfig};

/// The directories of the model that hold the files.
const INITIAL_STATES: &str = "initial_state";
const WARMUP: &str = "warmup";

/// The findings on the data files of the model in `model_dir`. The configuration passed [`super::at_load`].
pub fn data_files(config: &ModelConfig, model_dir: &Path) -> Findings {
    let mut findings = Findings::default();
    for (index, state) in state::states(config).iter().enumerate() {
        let [initial] = state.initial_state.as_slice() else { continue };
        let Some(StateData::DataFile(file)) = &initial.state_data else { continue };
        let path = format!("sequence_batching.state[{index}].initial_state[0].data_file");
        let data = Data { setting: "initial_state", file, data_type: initial.data_type(), dims: &initial.dims };
        if let Err(error) = data.check(config, model_dir, INITIAL_STATES) {
            findings.push(path, error);
        }
    }
    // A sample of batch size 0 is skipped, whatever it holds.
    for (index, sample) in config.model_warmup.iter().enumerate().filter(|(_, sample)| sample.batch_size != 0) {
        for (name, input) in &sample.inputs {
            let Some(InputDataType::InputDataFile(file)) = &input.input_data_type else { continue };
            let path = format!("model_warmup[{index}].inputs[{name:?}].input_data_file");
            let data = Data { setting: "warmup", file, data_type: input.data_type(), dims: &input.dims };
            if let Err(error) = data.check(config, model_dir, WARMUP) {
                findings.push(path, error);
            }
        }
    }
    findings
}

/// One file and the tensor that it fills.
struct Data<'a> {
    setting: &'static str,
    file: &'a str,
    data_type: DataType,
    dims: &'a [i64],
}

impl Data<'_> {
    fn check(&self, config: &ModelConfig, model_dir: &Path, directory: &str) -> Result<(), Error> {
        let Data { setting, file, .. } = self;
        let relative = format!("{directory}/{file}");
        if file.starts_with('/') || labels::escapes(model_dir, &relative) {
            return Err(Error::unsupported(format!(
                "{setting} data file path '{file}' in model '{}' is outside model directory",
                config.name
            )));
        }
        let path = model_dir.join(&relative);
        let provided = size(&path).map_err(|error| {
            Error::internal(format!("failed to open text file for read {}: {error}", path.display()))
        })?;
        // Strings bring their own lengths.
        if self.data_type == DataType::TypeString {
            return Ok(());
        }
        let expected = state::tensor_bytes(self.data_type, self.dims).unwrap_or(u64::MAX);
        if expected <= provided {
            return Ok(());
        }
        let (id, end) = if *setting == "warmup" { ("[request id: <id_unknown>] ", "") } else { ("", ".") };
        Err(Error::invalid(format!(
            "{id}{setting} setting expects {expected} bytes, but the data provided from {file}only has {provided} \
             bytes{end}"
        )))
    }
}

fn size(path: &Path) -> io::Result<u64> {
    let metadata = fs::metadata(path)?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(io::Error::other("not a file")) }
}

#[cfg(test)]
mod tests {
    use super::super::super::labels::tests::Scratch;
    use super::super::super::{from_dynamic, parse};
    use super::*;

    fn found(text: &str, model_dir: &Path) -> Vec<(String, Error)> {
        let config = from_dynamic(&parse("c", text.as_bytes()).unwrap().message).unwrap();
        data_files(&config, model_dir).into_iter().map(|finding| (finding.path, finding.error)).collect()
    }

    fn state(data_type: &str, dims: &str, file: &str) -> String {
        format!(
            "name: \"m\" sequence_batching {{ state {{ initial_state {{ data_type: {data_type} dims: [ {dims} ] \
             data_file: {file:?} }} }} }}"
        )
    }

    fn sample(data_type: &str, dims: &str, file: &str) -> String {
        format!(
            "name: \"m\" model_warmup {{ batch_size: 1 inputs {{ key: \"i\" value {{ data_type: {data_type} \
             dims: [ {dims} ] input_data_file: {file:?} }} }} }}"
        )
    }

    #[test]
    fn files_must_be_large_enough() {
        let scratch = Scratch::new("data_files");
        for directory in ["initial_state", "warmup"] {
            scratch.write(&format!("{directory}/twelve"), b"123456789012");
        }
        let directory = scratch.path();
        for (data_type, dims) in [("TYPE_FP32", "3"), ("TYPE_INT8", "3, 4"), ("TYPE_FP64", "0"), ("TYPE_STRING", "99")]
        {
            assert_eq!(found(&state(data_type, dims, "twelve"), directory), []);
            assert_eq!(found(&sample(data_type, dims, "twelve"), directory), []);
        }
        assert_eq!(
            found(&state("TYPE_FP32", "4", "twelve"), directory),
            [(
                "sequence_batching.state[0].initial_state[0].data_file".to_owned(),
                Error::invalid(
                    "initial_state setting expects 16 bytes, but the data provided from twelveonly has 12 \
                                bytes."
                )
            )]
        );
        assert_eq!(
            found(&sample("TYPE_INT64", "2", "twelve"), directory),
            [(
                "model_warmup[0].inputs[\"i\"].input_data_file".to_owned(),
                Error::invalid(
                    "[request id: <id_unknown>] warmup setting expects 16 bytes, but the data provided from \
                     twelveonly has 12 bytes"
                )
            )]
        );
        // No file is as large as this.
        let large = "9223372036854775807, 9223372036854775807";
        let error = &found(&state("TYPE_FP32", large, "twelve"), directory)[0].1;
        assert!(error.to_string().contains("expects 18446744073709551615 bytes"), "{error}");
        let skipped = sample("TYPE_INT64", "2", "twelve").replace("batch_size: 1", "batch_size: 0");
        assert_eq!(found(&skipped, directory), []);
    }

    #[test]
    fn files_must_be_there_and_inside_the_model() {
        let scratch = Scratch::new("data_files_absent");
        scratch.write("warmup/directory/file", b"");
        scratch.write("1/file", b"12345678");
        scratch.write("../data_files_outside", b"12345678");
        let directory = scratch.path();
        for file in ["absent", "directory"] {
            let path = directory.join("warmup").join(file);
            let error = &found(&sample("TYPE_INT64", "1", file), directory)[0].1;
            let start = format!("failed to open text file for read {}: ", path.display());
            assert!(matches!(error, Error::Internal { message } if message.starts_with(&start)), "{error:?}");
        }
        assert_eq!(found(&sample("TYPE_INT64", "1", "../1/file"), directory), []);
        for file in ["../../data_files_outside", "/etc/passwd"] {
            let expected = format!("warmup data file path '{file}' in model 'm' is outside model directory");
            assert_eq!(found(&sample("TYPE_INT64", "1", file), directory)[0].1, Error::unsupported(expected));
        }
        let outside = directory.join("../data_files_outside");
        fs::remove_file(outside).unwrap();
    }
}
