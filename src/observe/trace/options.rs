//! The options of traces on the command line (contract/cli.md section 2, `--trace-config`).

/// Kinds of entries, as `TRITONSERVER_InferenceTraceLevel`: bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    pub const OFF: Levels = Levels(0);
    pub const TIMESTAMPS: Levels = Levels(4);
    pub const TENSORS: Levels = Levels(8);

    pub fn and(self, other: Levels) -> Levels {
        Levels(self.0 | other.0)
    }

    pub fn is_off(self) -> bool {
        self.0 == 0
    }

    pub fn has(self, other: Levels) -> bool {
        self.0 & other.0 != 0
    }

    /// The names in the read-back of the settings.
    pub fn names(self) -> Vec<&'static str> {
        if self.is_off() {
            return vec!["OFF"];
        }
        let all = [(Levels::TIMESTAMPS, "TIMESTAMPS"), (Levels::TENSORS, "TENSORS")];
        all.into_iter().filter(|(level, _)| self.has(*level)).map(|(_, name)| name).collect()
    }
}

/// The destination of traces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Files of JSON.
    #[default]
    Triton,
    /// A collector, by OTLP over HTTP.
    OpenTelemetry,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Triton => "triton",
            Mode::OpenTelemetry => "opentelemetry",
        }
    }
}

/// How spans are collected before they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanProcessor {
    pub queue_max: usize,
    pub delay_ms: u64,
    pub batch_max: usize,
}

impl Default for SpanProcessor {
    fn default() -> SpanProcessor {
        SpanProcessor { queue_max: 2048, delay_ms: 5000, batch_max: 512 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceOptions {
    pub levels: Levels,
    pub rate: u32,
    /// Remaining traces; -1: any number.
    pub count: i32,
    pub log_frequency: u32,
    /// Empty: none was given.
    pub file: String,
    pub mode: Mode,
    /// The collector, perhaps without a scheme.
    pub url: String,
    /// Attributes of the resource, in the order given.
    pub resources: Vec<(String, String)>,
    pub processor: SpanProcessor,
    /// Settings of the mode that the read-back shows beside its own members.
    pub echoed: Vec<(String, String)>,
}

/// The default address of a collector.
pub const DEFAULT_URL: &str = "http://localhost:4318/v1/traces";

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions {
            levels: Levels::OFF,
            rate: 1000,
            count: -1,
            log_frequency: 0,
            file: String::new(),
            mode: Mode::Triton,
            url: DEFAULT_URL.to_owned(),
            resources: Vec::new(),
            processor: SpanProcessor::default(),
            echoed: Vec::new(),
        }
    }
}
