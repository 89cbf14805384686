//! Row "warmup", as far as it needs no data.

use super::super::Error;
use crate::wire::inference::ModelConfig;

pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    // A sample of batch size 0 is skipped, whatever it holds.
    for sample in config.model_warmup.iter().filter(|sample| sample.batch_size != 0) {
        if let Some((input, _)) = sample.inputs.iter().find(|(_, input)| input.dims.iter().any(|dim| *dim < 0)) {
            return Err(Error::invalid(format!(
                "warmup setting expects all variable-size dimensions are specified for input '{input}'"
            )));
        }
        if let Some((input, _)) = sample.inputs.iter().find(|(_, input)| input.input_data_type.is_none()) {
            return Err(Error::invalid(format!(
                "[request id: <id_unknown>] warmup setting expects input '{input}' to have input_data_type set"
            )));
        }
    }
    Ok(())
}
