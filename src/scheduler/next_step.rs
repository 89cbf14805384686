//! The next step behind the refusal of a request, in the log.
//!
//! The texts that clients receive are Triton's, letter for letter (contract/http.md section 6), so what the model has
//! and what would fit goes to the log. Clients cause these lines, so there is at most one a second in the process.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::info;

use nereid_clock::now_ns;
use nereid_model_config::text::suggestion;
use nereid_model_config::{ModelSpec, TensorSpec};
use nereid_request::{Shape, Status, format_shape};

/// Nanoseconds between two lines.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Most names in a line.
const NAMES_MAX: usize = 32;

/// Logs the line unless one was logged within the last second; `text` is called only for a line that is logged.
pub fn log(text: impl FnOnce() -> String) {
    static LOGGED_NS: AtomicU64 = AtomicU64::new(0);
    if is_due(&LOGGED_NS, now_ns()) {
        info!("next step: {}", text());
    }
}

/// Whether a line is due at `now_ns`; only one of several threads gets true.
fn is_due(logged_ns: &AtomicU64, now_ns: u64) -> bool {
    let last_ns = logged_ns.load(Ordering::Relaxed);
    let is_due = last_ns == 0 || now_ns.saturating_sub(last_ns) >= INTERVAL_NS;
    is_due && logged_ns.compare_exchange(last_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// The refusal of an input that the model does not have.
pub fn unexpected_input(name: &impl Display, spec: &ModelSpec) -> Status {
    let text = format!("unexpected inference input '{name}' for model '{}'", spec.name);
    log(|| format!("{}{}", of_tensors("inputs", spec, &spec.inputs), near(name, &spec.inputs)));
    Status::invalid(text)
}

/// The refusal of an output that the model does not have.
pub fn unexpected_output(name: &impl Display, spec: &ModelSpec) -> Status {
    let text = format!("unexpected inference output '{name}' for model '{}'", spec.name);
    log(|| format!("{}{}", of_tensors("outputs", spec, &spec.outputs), near(name, &spec.outputs)));
    Status::invalid(text)
}

/// A shape that fits an input of which a request's shape does not.
pub fn shape_example(config: &TensorSpec, spec: &ModelSpec) -> String {
    let batch = (spec.max_batch_size > 0).then_some(1);
    let dims = config.dims.iter().map(|&dim| if dim < 0 { 1 } else { dim });
    let example: Shape = batch.into_iter().chain(dims).collect();
    let batching = match spec.max_batch_size {
        0 => String::new(),
        most => format!(", where the first dimension is the batch, 1 to {most}"),
    };
    let shown = format_shape(&example);
    format!("input '{}' of model '{}' takes for example the shape {shown}{batching}", config.name, spec.name)
}

/// `model 'm' has the inputs A (FP32 [-1,3]), B (…)`.
fn of_tensors(what: &str, spec: &ModelSpec, tensors: &[TensorSpec]) -> String {
    let shown = |tensor: &TensorSpec| {
        let batch = (spec.max_batch_size > 0).then_some(-1);
        let shape: Shape = batch.into_iter().chain(tensor.dims.iter().copied()).collect();
        format!("{} ({} {})", tensor.name, tensor.datatype, format_shape(&shape))
    };
    let names: Vec<String> = tensors.iter().take(NAMES_MAX).map(shown).collect();
    let rest = match tensors.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    format!("model '{}' has the {what} {}{rest}", spec.name, names.join(", "))
}

fn near(name: &impl Display, tensors: &[TensorSpec]) -> String {
    suggestion(&name.to_string(), tensors.iter().map(|tensor| &*tensor.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_wire::inference::{DataType, ModelConfig, ModelInput, ModelOutput};

    fn spec(max_batch_size: i32) -> ModelSpec {
        let input = |name: &str, dims: &[i64]| ModelInput {
            name: name.to_owned(),
            data_type: DataType::TypeFp32.into(),
            dims: dims.to_vec(),
            ..ModelInput::default()
        };
        ModelSpec::new(ModelConfig {
            name: "m".to_owned(),
            backend: "identity".to_owned(),
            max_batch_size,
            input: vec![input("image", &[-1, 3]), input("mask", &[2])],
            output: vec![ModelOutput {
                name: "classes".to_owned(),
                data_type: DataType::TypeInt64.into(),
                dims: vec![1],
                ..ModelOutput::default()
            }],
            ..ModelConfig::default()
        })
        .expect("a configuration")
    }

    #[test]
    fn tensors_are_listed_with_the_shapes_that_requests_have() {
        let inputs = |spec: &ModelSpec| of_tensors("inputs", spec, &spec.inputs);
        assert_eq!(inputs(&spec(0)), "model 'm' has the inputs image (FP32 [-1,3]), mask (FP32 [2])");
        assert_eq!(inputs(&spec(4)), "model 'm' has the inputs image (FP32 [-1,-1,3]), mask (FP32 [-1,2])");
        let spec = spec(0);
        assert_eq!(near(&"imag", &spec.inputs), "; did you mean \"image\"?");
        assert_eq!(near(&"nothing", &spec.inputs), "");
        assert_eq!(
            unexpected_output(&"class", &spec),
            Status::invalid("unexpected inference output 'class' for model 'm'")
        );
        assert_eq!(
            unexpected_input(&"class", &spec),
            Status::invalid("unexpected inference input 'class' for model 'm'")
        );
    }

    #[test]
    fn an_example_of_a_shape_fits() {
        let (plain, batching) = (spec(0), spec(4));
        let example = |spec: &ModelSpec| shape_example(&spec.inputs[0], spec);
        assert_eq!(example(&plain), "input 'image' of model 'm' takes for example the shape [1,3]");
        assert_eq!(
            example(&batching),
            "input 'image' of model 'm' takes for example the shape [1,1,3], where the first dimension is the batch, \
             1 to 4"
        );
    }

    #[test]
    fn there_is_one_line_a_second() {
        let logged_ns = AtomicU64::new(0);
        let start_ns = 5;
        assert!(is_due(&logged_ns, start_ns));
        assert!(!is_due(&logged_ns, start_ns + INTERVAL_NS - 1));
        assert!(is_due(&logged_ns, start_ns + INTERVAL_NS));
        assert!(!is_due(&logged_ns, start_ns), "a clock read before by another thread");
    }
}
