//! The settings of `--backend-config=openvino` and of a model's parameters, parsed once (contract/frameworks.md
//! section 3, "Files, devices, parameters").

use nereid_backend::ModelContext;
use nereid_request::Status;

const CPU: &str = "CPU";

/// The library loses the errors of runs with a single thread, and answers with an earlier result instead
/// (contract/frameworks.md section 11, trap 2).
const THREADS_MIN: u32 = 2;
/// The highest thread count that is passed on: far above any host's.
const THREADS_MAX: u32 = 4096;

/// The `max_batch_size` of auto-completion: `--backend-config=openvino,default-max-batch-size`.
pub fn default_max_batch_size(context: &ModelContext) -> Result<i32, Status> {
    let Some(text) = context.setting("default-max-batch-size") else { return Ok(4) };
    let parsed = text.trim().parse().map_err(|_| {
        Status::invalid(format!("--backend-config=openvino,default-max-batch-size expects a number, got '{text}'"))
    });
    parsed.map(|size: i32| size.max(1))
}

/// What the parameters of one model ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSettings {
    /// `TARGET_DEVICE`
    pub device: String,
    /// `CPU_EXTENSION_PATH`
    pub extension: Option<String>,
    /// `RESHAPE_IO_LAYERS`
    pub reshapes_inputs: bool,
    /// `SKIP_OV_DYNAMIC_BATCHSIZE`: the library joins no requests itself.
    pub skips_auto_batching: bool,
    /// `COMPILATION_NUM_THREADS`
    pub compilation_threads: Option<u32>,
    performance: Option<&'static str>,
    threads: Option<u32>,
    streams: Option<String>,
    is_bf16: bool,
}

impl ModelSettings {
    pub fn parse(context: &ModelContext) -> Result<ModelSettings, Status> {
        // An empty value is none.
        let given = |key: &str| context.parameter(key).filter(|value| !value.is_empty());
        let is_yes = |key: &str| given(key).is_some_and(|value| value.eq_ignore_ascii_case("yes"));
        let device = given("TARGET_DEVICE").map_or_else(|| CPU.to_owned(), str::to_ascii_uppercase);
        let threads = given("INFERENCE_NUM_THREADS").map(|value| number("INFERENCE_NUM_THREADS", value)).transpose()?;
        if threads == Some(1) && device == CPU {
            tracing::warn!(
                "model '{}': INFERENCE_NUM_THREADS is raised from 1 to {THREADS_MIN}, because OpenVINO does not report \
                 the errors of runs with one thread",
                context.name
            );
        }
        Ok(ModelSettings {
            device,
            extension: given("CPU_EXTENSION_PATH").map(str::to_owned),
            reshapes_inputs: is_yes("RESHAPE_IO_LAYERS"),
            skips_auto_batching: is_yes("SKIP_OV_DYNAMIC_BATCHSIZE"),
            compilation_threads: given("COMPILATION_NUM_THREADS")
                .map(|value| number("COMPILATION_NUM_THREADS", value))
                .transpose()?,
            performance: given("PERFORMANCE_HINT").map(performance).transpose()?,
            // 0 is the library's default, as no parameter is; the budget of the server then decides.
            threads: threads.filter(|threads| *threads > 0).or_else(|| budget(context.worker_cpu_count)),
            streams: given("NUM_STREAMS").map(streams).transpose()?,
            is_bf16: given("HINT_BF16").map(bf16).transpose()?.is_some(),
        })
    }

    /// Whether models run on the CPU's plug-in alone.
    pub fn is_for_cpu(&self) -> bool {
        self.device == CPU
    }

    /// Properties of the CPU's plug-in. Devices that combine others (AUTO, MULTI, HETERO) use it as well.
    pub fn of_cpu(&self) -> Vec<(&'static str, String)> {
        // Without this, hosts with AMX compute in bfloat16 (contract/frameworks.md section 11, trap 4).
        let precision = if self.is_bf16 { "bf16" } else { "f32" };
        let mut properties = vec![("INFERENCE_PRECISION_HINT", precision.to_owned())];
        if let Some(threads) = self.threads {
            properties.push(("INFERENCE_NUM_THREADS", threads.clamp(THREADS_MIN, THREADS_MAX).to_string()));
        }
        properties.extend(self.streams.clone().map(|streams| ("NUM_STREAMS", streams)));
        if self.is_for_cpu() {
            properties.extend(self.performance.map(|hint| ("PERFORMANCE_HINT", hint.to_owned())));
        }
        properties
    }

    /// Properties of a compilation for another device.
    pub fn of_other_device(&self, batches: bool) -> Vec<(&'static str, String)> {
        let joins = if batches && !self.skips_auto_batching { "YES" } else { "NO" };
        let mut properties = vec![("ALLOW_AUTO_BATCHING", joins.to_owned())];
        properties.extend(self.performance.map(|hint| ("PERFORMANCE_HINT", hint.to_owned())));
        properties
    }

    /// Whether the CPU's plug-in takes part.
    pub fn uses_cpu(&self) -> bool {
        let combining = ["AUTO", "MULTI", "HETERO", "BATCH"];
        self.device.contains(CPU) || combining.iter().any(|name| self.device.starts_with(name))
    }
}

/// Threads for the CPUs that workers may use (0: unknown, left to the library).
fn budget(worker_cpus: usize) -> Option<u32> {
    (worker_cpus > 0).then(|| u32::try_from(worker_cpus).unwrap_or(THREADS_MAX))
}

fn number(key: &str, value: &str) -> Result<u32, Status> {
    let value = value.to_ascii_lowercase();
    let parsed = Some(&value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
    parsed.and_then(|value| value.parse().ok()).ok_or_else(|| {
        Status::invalid(format!("expected the parameter '{key}' to be a non-negative number, got {value}"))
    })
}

fn performance(value: &str) -> Result<&'static str, Status> {
    let value = value.to_ascii_lowercase();
    match value.as_str() {
        "latency" => Ok("LATENCY"),
        "throughput" => Ok("THROUGHPUT"),
        "cumulative_throughput" => Ok("CUMULATIVE_THROUGHPUT"),
        _ => Err(Status::invalid(format!(
            "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got {value}"
        ))),
    }
}

fn streams(value: &str) -> Result<String, Status> {
    let value = value.to_ascii_lowercase();
    match value.as_str() {
        "auto" => Ok("AUTO".to_owned()),
        "numa" => Ok("NUMA".to_owned()),
        number if number.bytes().all(|byte| byte.is_ascii_digit()) && number.parse::<i32>().is_ok() => Ok(value),
        _ => Err(Status::invalid(format!(
            "expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got {value}"
        ))),
    }
}

fn bf16(value: &str) -> Result<(), Status> {
    let value = value.to_ascii_lowercase();
    match value.as_str() {
        "yes" => Ok(()),
        _ => Err(Status::invalid(format!("expected the parameter 'HINT_BF16' to be YES, got {value}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::fixtures::with_parameters;
    use nereid_request::Code;

    fn parsed(parameters: &[(&str, &str)], worker_cpus: usize) -> Result<ModelSettings, Status> {
        let mut context = with_parameters("m".into(), parameters);
        context.worker_cpu_count = worker_cpus;
        ModelSettings::parse(&context)
    }

    fn of_cpu(parameters: &[(&str, &str)], worker_cpus: usize) -> Vec<String> {
        let properties = parsed(parameters, worker_cpus).unwrap().of_cpu();
        properties.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn parameters_become_properties_of_the_library() {
        assert_eq!(of_cpu(&[], 0), ["INFERENCE_PRECISION_HINT=f32"]);
        assert_eq!(of_cpu(&[("HINT_BF16", "Yes")], 0), ["INFERENCE_PRECISION_HINT=bf16"]);
        let all =
            [("PERFORMANCE_HINT", "Throughput"), ("INFERENCE_NUM_THREADS", "3"), ("NUM_STREAMS", "auto"), ("x", "y")];
        let expected = [
            "INFERENCE_PRECISION_HINT=f32",
            "INFERENCE_NUM_THREADS=3",
            "NUM_STREAMS=AUTO",
            "PERFORMANCE_HINT=THROUGHPUT",
        ];
        assert_eq!(of_cpu(&all, 8), expected);
        assert_eq!(of_cpu(&[("NUM_STREAMS", "NUMA")], 0)[1], "NUM_STREAMS=NUMA");
        assert_eq!(of_cpu(&[("NUM_STREAMS", "12")], 0)[1], "NUM_STREAMS=12");
        assert_eq!(of_cpu(&[("NUM_STREAMS", ""), ("HINT_BF16", "")], 0).len(), 1, "an empty value is none");
        let settings = parsed(&[("COMPILATION_NUM_THREADS", "2"), ("CPU_EXTENSION_PATH", "/e.so")], 0).unwrap();
        assert_eq!((settings.compilation_threads, settings.extension.as_deref()), (Some(2), Some("/e.so")));
    }

    #[test]
    fn threads_are_those_of_the_workers_and_never_one() {
        let threads = |parameters: &[(&str, &str)], cpus| {
            let properties = of_cpu(parameters, cpus);
            properties.iter().find_map(|one| one.strip_prefix("INFERENCE_NUM_THREADS=")).map(str::to_owned)
        };
        let given = |count| [("INFERENCE_NUM_THREADS", count)];
        assert_eq!(threads(&[], 12).as_deref(), Some("12"));
        assert_eq!(threads(&[], 1).as_deref(), Some("2"));
        assert_eq!(threads(&given("1"), 12).as_deref(), Some("2"));
        assert_eq!(threads(&given("0"), 12).as_deref(), Some("12"));
        assert_eq!(threads(&given("0"), 0), None);
        assert_eq!(threads(&given("4294967295"), 12).as_deref(), Some("4096"));
    }

    #[test]
    fn switches_are_on_with_yes_and_off_with_everything_else() {
        for (value, is_on) in [("yes", true), ("YES", true), ("true", false), ("1", false), ("", false)] {
            let settings = parsed(&[("RESHAPE_IO_LAYERS", value), ("SKIP_OV_DYNAMIC_BATCHSIZE", value)], 0).unwrap();
            assert_eq!((settings.reshapes_inputs, settings.skips_auto_batching), (is_on, is_on), "{value}");
        }
    }

    #[test]
    fn devices_are_passed_in_upper_case() {
        assert!(parsed(&[], 0).unwrap().is_for_cpu());
        let device = |name: &str| parsed(&[("TARGET_DEVICE", name), ("PERFORMANCE_HINT", "latency")], 0).unwrap();
        assert_eq!(device("multi:cpu").device, "MULTI:CPU");
        assert!(device("multi:cpu").uses_cpu() && device("auto").uses_cpu() && !device("gpu.0").uses_cpu());
        let yes = ("ALLOW_AUTO_BATCHING", "YES".to_owned());
        assert_eq!(device("gpu").of_other_device(true), [yes, ("PERFORMANCE_HINT", "LATENCY".to_owned())]);
        assert_eq!(device("gpu").of_other_device(false)[0].1, "NO");
        let skipping = parsed(&[("TARGET_DEVICE", "GPU"), ("SKIP_OV_DYNAMIC_BATCHSIZE", "yes")], 0).unwrap();
        assert_eq!(skipping.of_other_device(true)[0].1, "NO");
        assert_eq!(device("auto").of_cpu().len(), 1, "the hint is for the device that was asked for");
    }

    #[test]
    fn wrong_values_are_refused_by_their_texts() {
        let number =
            |key: &str, got: &str| format!("expected the parameter '{key}' to be a non-negative number, got {got}");
        let streams =
            |got: &str| format!("expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got {got}");
        for (key, value, text) in [
            (
                "PERFORMANCE_HINT",
                "FAST",
                "expected the parameter 'PERFORMANCE_HINT' to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"
                    .to_owned(),
            ),
            ("INFERENCE_NUM_THREADS", "-1", number("INFERENCE_NUM_THREADS", "-1")),
            ("INFERENCE_NUM_THREADS", "4294967296", number("INFERENCE_NUM_THREADS", "4294967296")),
            ("COMPILATION_NUM_THREADS", "Two", number("COMPILATION_NUM_THREADS", "two")),
            ("NUM_STREAMS", "-1", streams("-1")),
            ("NUM_STREAMS", "3000000000", streams("3000000000")),
            ("HINT_BF16", "NO", "expected the parameter 'HINT_BF16' to be YES, got no".to_owned()),
        ] {
            let error = parsed(&[(key, value)], 4).unwrap_err();
            assert_eq!((error.code, &*error.message), (Code::InvalidArg, text.as_str()));
        }
    }

    #[test]
    fn the_default_batch_size_is_at_least_one() {
        let with = |value: &str| {
            let mut context = with_parameters("m".into(), &[]);
            context.settings = vec![("default-max-batch-size".to_owned(), value.to_owned())];
            default_max_batch_size(&context)
        };
        assert_eq!(default_max_batch_size(&with_parameters("m".into(), &[])), Ok(4));
        assert_eq!((with("16"), with("0"), with("-3")), (Ok(16), Ok(1), Ok(1)));
        assert_eq!(
            with("many").unwrap_err().message,
            "--backend-config=openvino,default-max-batch-size expects a number, got 'many'"
        );
    }
}
