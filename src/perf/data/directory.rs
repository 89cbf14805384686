//! A directory with a file for each input, named like it: raw little-endian elements, or strings, one a line.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use super::encode::put_string;
use super::{DATA_BYTES_MAX, DataError, DataPlan, Step, Values, datatype, shapes};
use crate::{ModelInfo, TensorFacts};
use nereid_request::DataType;

/// One request without a batch.
pub fn read(directory: &Path, model_info: &ModelInfo, plan: &DataPlan) -> Result<Step, DataError> {
    let mut step = Step::default();
    let mut room = DATA_BYTES_MAX;
    for input in &model_info.inputs {
        // The name is the server's: it must not lead out of the directory.
        let mut parts = Path::new(&input.name).components();
        let is_plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !is_plain || input.name.contains('/') {
            return Err(DataError::input(&input.name, "its name cannot be that of a file in a directory"));
        }
        let file = directory.join(&input.name);
        if input.optional && !file.exists() {
            continue;
        }
        let content = content(&file, &mut room)?;
        let values = values(input, &content, model_info, plan).map_err(|error| match error {
            DataError::Input { input, reason } => {
                DataError::File { file: file.clone(), reason: format!("input '{input}': {reason}") }
            }
            error => error,
        })?;
        step.inputs.insert(input.name.clone(), values);
    }
    Ok(step)
}

fn content(file: &Path, room: &mut usize) -> Result<Vec<u8>, DataError> {
    let failed = |reason: String| DataError::File { file: file.to_owned(), reason };
    let open = File::open(file).map_err(|error| failed(error.to_string()))?;
    // A pipe or a device may have no end.
    let is_file = open.metadata().is_ok_and(|facts| facts.is_file());
    if !is_file {
        return Err(failed("it is not a file".into()));
    }
    let mut content = Vec::new();
    let most = u64::try_from(*room).unwrap_or(u64::MAX);
    open.take(most.saturating_add(1)).read_to_end(&mut content).map_err(|error| failed(error.to_string()))?;
    *room = room.checked_sub(content.len()).ok_or(DataError::TooLarge)?;
    Ok(content)
}

fn values(facts: &TensorFacts, content: &[u8], model_info: &ModelInfo, plan: &DataPlan) -> Result<Values, DataError> {
    let datatype = datatype(facts)?;
    if datatype == DataType::Bytes {
        let lines = content.strip_suffix(b"\n").unwrap_or(content);
        let mut bytes = Vec::new();
        let mut count = 0;
        for line in lines.split(|byte| *byte == b'\n').filter(|_| !content.is_empty()) {
            put_string(&mut bytes, line.strip_suffix(b"\r").unwrap_or(line));
            count += 1;
        }
        return Ok(Values { shape: shapes::of_count(facts, plan, model_info, count)?, bytes });
    }
    let size = datatype.byte_size();
    if !content.len().is_multiple_of(size) {
        let reason =
            format!("{} bytes are no whole number of elements of {datatype}, {size} bytes each", content.len());
        return Err(DataError::input(&facts.name, reason));
    }
    Ok(Values { shape: shapes::of_count(facts, plan, model_info, content.len() / size)?, bytes: content.to_vec() })
}
