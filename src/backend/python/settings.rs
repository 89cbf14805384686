//! The settings of `--backend-config=python` and of a model's parameters, read and checked once per model
//! (contract/python_backend.md section 5).

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::ModelContext;
use nereid_request::Status;

/// The time limit of a batch in seconds; 0: none.
pub const EXECUTE_TIMEOUT: &str = "execute-timeout";
/// Whether a worker that died is started again.
pub const RESTART: &str = "restart";

const DEFAULT_SIZE: &str = "shm-default-byte-size";
const GROWTH_SIZE: &str = "shm-growth-byte-size";
const MAX_SIZE: &str = "shm-max-byte-size";
const STUB_TIMEOUT: &str = "stub-timeout-seconds";
const QUEUE_SIZE: &str = "shm_message_queue_size";
const REGION_PREFIX: &str = "shm-region-prefix-name";
const POOL_SIZE: &str = "thread-pool-size";
const INTERPRETER: &str = "interpreter";
const MEMORY_FENCES: &str = "memory-fences";

/// Settings of Triton's that are checked and have no effect here.
pub const WITHOUT_EFFECT: [&str; 3] = [QUEUE_SIZE, REGION_PREFIX, POOL_SIZE];

const KNOWN: [&str; 11] = [
    DEFAULT_SIZE,
    GROWTH_SIZE,
    MAX_SIZE,
    STUB_TIMEOUT,
    QUEUE_SIZE,
    REGION_PREFIX,
    POOL_SIZE,
    INTERPRETER,
    MEMORY_FENCES,
    EXECUTE_TIMEOUT,
    RESTART,
];

/// Settings of all backends that have no effect on this one.
const OF_ALL: [&str; 4] =
    ["auto-complete-config", "backend-directory", "default-max-batch-size", "min-compute-capability"];

/// The smallest first segment.
const DEFAULT_SIZE_MIN: i64 = 1 << 20;
/// The default limit of a worker's memory in each direction.
const MAX_SIZE_DEFAULT: u64 = 1 << 30;
/// Some thirty years.
const END_TIMEOUT_SECS_MAX: u64 = 1_000_000_000;
/// A larger timeout is a mistake.
pub const EXECUTE_TIMEOUT_SECS_MAX: f64 = 1e9;

/// What names must not contain: Triton passes them to a shell (section 6, row "names").
const FORBIDDEN: &str = ";|&$<>()[]{}\\\"'*?~#!`";

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Bytes of the first segment of each direction.
    pub shm_default_byte_size: u64,
    /// The fewest bytes of an added segment.
    pub shm_growth_byte_size: u64,
    /// The most bytes of all segments of one worker, in each direction.
    pub shm_max_byte_size: u64,
    /// The time limit for finalize and the end of a process together.
    pub stub_timeout_secs: i64,
    /// The most messages that wait in a queue.
    pub message_queue_size: u64,
    /// The prefix of the names of segments.
    pub region_prefix: String,
    /// The number of calls that Triton serves at a time for one instance. Here calls occupy no thread.
    pub thread_pool_size: u64,
    /// A path, or a name on the PATH.
    pub interpreter: Option<PathBuf>,
    pub execute_timeout: Option<Duration>,
    pub restart: bool,
    /// Workers call memory fences at every position, even on a CPU that needs none there.
    pub memory_fences: bool,
    /// FORCE_CPU_ONLY_INPUT_TENSORS.
    pub force_cpu_only_inputs: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shm_default_byte_size: 1 << 20,
            shm_growth_byte_size: 1 << 20,
            shm_max_byte_size: MAX_SIZE_DEFAULT,
            stub_timeout_secs: 30,
            message_queue_size: 1000,
            region_prefix: "triton_python_backend_shm_region_".to_owned(),
            thread_pool_size: 32,
            interpreter: None,
            execute_timeout: None,
            restart: true,
            memory_fences: false,
            force_cpu_only_inputs: true,
        }
    }
}

impl Settings {
    /// Reads all settings for one model. Unknown keys are logged, each once.
    pub fn read(context: &ModelContext) -> Result<Settings, Status> {
        check_stub_name(&context.name)?;
        let mut settings = Settings::default();
        for (key, value) in &context.settings {
            settings.take(key, value)?;
        }
        settings.complete(context)?;
        Ok(settings)
    }

    /// The sizes in the format of Triton's log.
    pub fn shared_memory(&self) -> impl fmt::Display {
        format!(
            "{DEFAULT_SIZE}={},{GROWTH_SIZE}={},{STUB_TIMEOUT}={}",
            self.shm_default_byte_size, self.shm_growth_byte_size, self.stub_timeout_secs
        )
    }

    /// How long to wait for a worker's end before it is killed.
    pub fn end_timeout(&self) -> Duration {
        // Capped, so that the deadline does not overflow the clock.
        Duration::from_secs(self.stub_timeout_secs.unsigned_abs().min(END_TIMEOUT_SECS_MAX))
    }

    fn take(&mut self, key: &str, value: &str) -> Result<(), Status> {
        match key {
            DEFAULT_SIZE => {
                let bytes = integer(key, value)?;
                if bytes < DEFAULT_SIZE_MIN {
                    // The number in Triton's text is stale (section 5).
                    return Err(Status::invalid(format!("{DEFAULT_SIZE} can't be smaller than 4 MiBs")));
                }
                self.shm_default_byte_size = bytes.unsigned_abs();
            }
            GROWTH_SIZE => self.shm_growth_byte_size = above_zero(key, value)?.unsigned_abs(),
            MAX_SIZE => self.shm_max_byte_size = above_zero(key, value)?.unsigned_abs(),
            STUB_TIMEOUT => self.stub_timeout_secs = above_zero(key, value)?,
            QUEUE_SIZE => self.message_queue_size = above_zero(key, value)?.unsigned_abs(),
            REGION_PREFIX => self.region_prefix = region_prefix(value)?,
            POOL_SIZE => {
                let count = integer(key, value)?;
                if count < 1 {
                    return Err(Status::invalid(format!("{POOL_SIZE} can't be less than 1.")));
                }
                self.thread_pool_size = count.unsigned_abs();
            }
            INTERPRETER => self.interpreter = Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty()),
            EXECUTE_TIMEOUT => self.execute_timeout = execute_timeout(value)?,
            RESTART => self.restart = boolean(key, value)?,
            MEMORY_FENCES => self.memory_fences = boolean(key, value)?,
            _ => warn_unknown(key),
        }
        Ok(())
    }

    /// Checks that depend on several values, and the model's own parameters.
    fn complete(&mut self, context: &ModelContext) -> Result<(), Status> {
        if self.shm_max_byte_size < self.shm_default_byte_size {
            if context.setting(MAX_SIZE).is_some() {
                return Err(Status::invalid(format!("{MAX_SIZE} can't be smaller than {DEFAULT_SIZE}.")));
            }
            self.shm_max_byte_size = self.shm_default_byte_size;
        }
        self.force_cpu_only_inputs = match context.parameter("FORCE_CPU_ONLY_INPUT_TENSORS") {
            None | Some("yes") => true,
            Some("no") => false,
            Some(other) => {
                // With the unpaired quote of Triton's text.
                let text = format!("Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {other}'");
                return Err(Status::unsupported(text));
            }
        };
        Ok(())
    }
}

/// One line for the log.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{DEFAULT_SIZE}={}, {GROWTH_SIZE}={}, {MAX_SIZE}={}, {STUB_TIMEOUT}={}, {QUEUE_SIZE}={}, \
             {REGION_PREFIX}={}, {POOL_SIZE}={}, {EXECUTE_TIMEOUT}={}, {RESTART}={}, {MEMORY_FENCES}={}",
            self.shm_default_byte_size,
            self.shm_growth_byte_size,
            self.shm_max_byte_size,
            self.stub_timeout_secs,
            self.message_queue_size,
            self.region_prefix,
            self.thread_pool_size,
            self.execute_timeout.map_or(0.0, |time| time.as_secs_f64()),
            self.restart,
            self.memory_fences,
        )?;
        if let Some(interpreter) = &self.interpreter {
            write!(f, ", {INTERPRETER}={}", interpreter.display())?;
        }
        Ok(())
    }
}

/// The name of a model or an instance, which becomes that of a process.
pub fn check_stub_name(name: &str) -> Result<(), Status> {
    if has_forbidden(name) {
        return Err(Status::invalid("Invalid stub name: contains invalid characters"));
    }
    Ok(())
}

fn has_forbidden(name: &str) -> bool {
    name.contains(|c| FORBIDDEN.contains(c))
}

fn region_prefix(value: &str) -> Result<String, Status> {
    if value.is_empty() {
        return Err(Status::invalid(format!("{REGION_PREFIX} must at least contain one character.")));
    }
    if has_forbidden(value) {
        return Err(Status::invalid("Invalid shared memory region name: contains invalid characters"));
    }
    Ok(value.to_owned())
}

fn above_zero(key: &str, value: &str) -> Result<i64, Status> {
    let number = integer(key, value)?;
    if number <= 0 {
        return Err(Status::invalid(format!("{key} can't be smaller than or equal to zero.")));
    }
    Ok(number)
}

/// A leading decimal number; the rest is ignored, as by `stol`.
fn integer(key: &str, value: &str) -> Result<i64, Status> {
    let text = value.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
    let sign = usize::from(text.starts_with(['+', '-']));
    let digits = text.bytes().skip(sign).take_while(u8::is_ascii_digit).count();
    let number = text.get(..sign + digits).and_then(|number| number.parse().ok());
    number.ok_or_else(|| Status::invalid(format!("{key} must be a number, got '{value}'")))
}

fn execute_timeout(value: &str) -> Result<Option<Duration>, Status> {
    let secs: Option<f64> = value.trim().parse().ok();
    match secs {
        Some(secs) if (0.0..=EXECUTE_TIMEOUT_SECS_MAX).contains(&secs) => {
            Ok(Duration::try_from_secs_f64(secs).ok().filter(|time| !time.is_zero()))
        }
        _ => Err(Status::invalid(format!(
            "{EXECUTE_TIMEOUT} must be a number of seconds from 0 (none) to {EXECUTE_TIMEOUT_SECS_MAX}, got '{value}'"
        ))),
    }
}

/// true/on/1 and false/off/0 in any case, as for flags.
fn boolean(key: &str, value: &str) -> Result<bool, Status> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(Status::invalid(format!("{key} must be true or false, got '{value}'"))),
    }
}

/// Once per key: every model gets the settings of the command line.
fn warn_unknown(key: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if OF_ALL.contains(&key) {
        return;
    }
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned()) {
        warn!("--backend-config: the Python backend knows no setting '{key}'; it knows {}", KNOWN.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::fixtures::TestDirectory;
    use nereid_request::Code;

    fn read(settings: &[(&str, &str)]) -> Result<Settings, Status> {
        let place = TestDirectory::new();
        let mut context = place.context("m");
        context.settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Settings::read(&context)
    }

    #[test]
    fn nothing_said_gives_the_defaults_of_the_table() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(
            settings.to_string(),
            "shm-default-byte-size=1048576, shm-growth-byte-size=1048576, shm-max-byte-size=1073741824, \
             stub-timeout-seconds=30, shm_message_queue_size=1000, \
             shm-region-prefix-name=triton_python_backend_shm_region_, thread-pool-size=32, execute-timeout=0, \
             restart=true, memory-fences=false"
        );
        // A setting of all backends, and an unknown one.
        assert_eq!(read(&[("default-max-batch-size", "8"), ("colour", "red")]), Ok(settings));
    }

    #[test]
    fn each_key_sets_its_value_and_the_last_one_counts() {
        let settings = read(&[
            ("shm-default-byte-size", "4194304"),
            ("shm-growth-byte-size", "1"),
            ("shm-max-byte-size", "8388608"),
            ("stub-timeout-seconds", "7"),
            ("shm_message_queue_size", "5"),
            ("shm-region-prefix-name", "first_"),
            ("shm-region-prefix-name", "second_"),
            ("thread-pool-size", "3 or so"),
            ("interpreter", "/opt/python"),
            ("execute-timeout", "2.5"),
            ("restart", "Off"),
            ("memory-fences", "true"),
        ])
        .unwrap();
        let expected = Settings {
            shm_default_byte_size: 4 << 20,
            shm_growth_byte_size: 1,
            shm_max_byte_size: 8 << 20,
            stub_timeout_secs: 7,
            message_queue_size: 5,
            region_prefix: "second_".into(),
            thread_pool_size: 3,
            interpreter: Some("/opt/python".into()),
            execute_timeout: Some(Duration::from_millis(2500)),
            restart: false,
            memory_fences: true,
            force_cpu_only_inputs: true,
        };
        assert_eq!(settings, expected);
        assert!(settings.to_string().ends_with("restart=false, memory-fences=true, interpreter=/opt/python"));
        // The limit grows with the first segment's size, unless it is set.
        let large = read(&[("shm-default-byte-size", "4294967296")]).unwrap();
        assert_eq!(large.shm_max_byte_size, 4 << 30);
        assert_eq!(read(&[("execute-timeout", "0")]).unwrap().execute_timeout, None);
    }

    #[test]
    fn wrong_values_are_refused_by_their_texts() {
        let not_a_number = |key: &str, value: &str| format!("{key} must be a number, got '{value}'");
        let zero = |key: &str| format!("{key} can't be smaller than or equal to zero.");
        let timeout = |value: &str| {
            format!("execute-timeout must be a number of seconds from 0 (none) to 1000000000, got '{value}'")
        };
        for (key, value, text) in [
            ("shm-default-byte-size", "1048575", "shm-default-byte-size can't be smaller than 4 MiBs".to_owned()),
            ("shm-default-byte-size", "-5", "shm-default-byte-size can't be smaller than 4 MiBs".to_owned()),
            ("shm-default-byte-size", "big", not_a_number("shm-default-byte-size", "big")),
            ("shm-default-byte-size", "9223372036854775808", not_a_number(DEFAULT_SIZE, "9223372036854775808")),
            ("shm-growth-byte-size", "0", zero("shm-growth-byte-size")),
            ("shm-max-byte-size", "-1", zero("shm-max-byte-size")),
            (
                "shm-max-byte-size",
                "1048575",
                "shm-max-byte-size can't be smaller than shm-default-byte-size.".to_owned(),
            ),
            ("stub-timeout-seconds", "0", zero("stub-timeout-seconds")),
            ("shm_message_queue_size", "0", zero("shm_message_queue_size")),
            ("shm-region-prefix-name", "", "shm-region-prefix-name must at least contain one character.".to_owned()),
            (
                "shm-region-prefix-name",
                "a;b",
                "Invalid shared memory region name: contains invalid characters".to_owned(),
            ),
            ("thread-pool-size", "0", "thread-pool-size can't be less than 1.".to_owned()),
            ("execute-timeout", "-1", timeout("-1")),
            ("execute-timeout", "nan", timeout("nan")),
            ("execute-timeout", "inf", timeout("inf")),
            ("execute-timeout", "soon", timeout("soon")),
            ("restart", "maybe", "restart must be true or false, got 'maybe'".to_owned()),
        ] {
            let error = read(&[(key, value)]).unwrap_err();
            assert_eq!((error.code, &*error.message), (Code::InvalidArg, &*text), "{key}={value}");
        }
    }

    #[test]
    fn names_must_be_free_of_what_a_shell_would_read() {
        let place = TestDirectory::new();
        for forbidden in FORBIDDEN.chars() {
            let error = Settings::read(&place.context(&format!("a{forbidden}b"))).unwrap_err();
            let expected = Status::invalid("Invalid stub name: contains invalid characters");
            assert_eq!(error, expected, "{forbidden}");
        }
        assert_eq!(FORBIDDEN.chars().count(), 21);
        for name in ["m", "a b", "a-b_c.d:e,f/g%h@i+j=k^l", "größe"] {
            assert_eq!(check_stub_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn where_inputs_may_lie_is_a_parameter_of_the_model() {
        let place = TestDirectory::new();
        let with = |value: &str| {
            Settings::read(&place.context_with("m", &[("FORCE_CPU_ONLY_INPUT_TENSORS", value)]))
                .map(|settings| settings.force_cpu_only_inputs)
        };
        assert_eq!((with("yes"), with("no")), (Ok(true), Ok(false)));
        for wrong in ["", "YES", "true"] {
            let text = format!("Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {wrong}'");
            assert_eq!(with(wrong), Err(Status::unsupported(text)));
        }
    }
}
