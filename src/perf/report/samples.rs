//! Measurements that tests of reports are made from.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Machine, Report};
use crate::{
    Client, ClientLimits, ClientSide, Compression, Endpoint, ErrorTexts, Form, Histograms, Load, LoadPoint,
    Measurement, MetricsSource, ModelInfo, Phase, Plan, Protocol, Recording, RequestCounts, Rules, ServerSide, Service,
    SharedMemory, Sweep, Target, ThreadUsage, Timeline, Times, WindowFigures, Work,
};
use nereid_recording::Contents;
use nereid_shard::EngineKind;

/// Owns what a report borrows.
pub struct Sample {
    pub plan: Plan,
    pub model_info: ModelInfo,
    pub batch: u32,
    pub machine: Machine,
    pub points: Vec<Measurement>,
    pub began: Vec<SystemTime>,
}

impl Sample {
    pub fn new(loads: &[LoadPoint]) -> Sample {
        let mut points = Vec::new();
        for (at, load) in loads.iter().enumerate() {
            points.push(point(*load, 100 * (at as u64 + 1)));
        }
        let began = vec![UNIX_EPOCH + Duration::from_secs(1_700_000_000); points.len()];
        let model_info = ModelInfo { model: "identity".into(), version: "1".into(), ..ModelInfo::default() };
        Sample { plan: plan(), model_info, batch: 1, machine: Machine::here(), points, began }
    }

    /// The requests and their times are those of a recording.
    pub fn record(&mut self) {
        let mut left_out = ErrorTexts::default();
        left_out.count_many("it is of another model", 2);
        let note = Some("the file ends".to_owned());
        let (file, contents) = ("monday.rec".into(), Contents::Random(7));
        let recording = Recording { file, used: 4, made: 3, contents, left_out, note };
        self.plan.work.recording = Some(recording);
        let offsets = [0, 1000, 2000].map(Duration::from_millis).to_vec();
        self.plan.load = Load::Recorded(Times { offsets, speed: 2.0 });
    }

    pub fn report(&self) -> Report<'_> {
        Report {
            plan: &self.plan,
            model_info: &self.model_info,
            batch: self.batch,
            machine: &self.machine,
            began: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            points: &self.points,
            point_began: &self.began,
        }
    }
}

pub fn plan() -> Plan {
    Plan {
        target: Target {
            endpoint: Endpoint::Tcp { host: "localhost".into(), port: 8000 },
            tls: None,
            protocol: Protocol::Http,
        },
        service: Service::Triton,
        model: "identity".into(),
        version: String::new(),
        work: Work {
            streams: Vec::new(),
            headers: vec![("authorization".into(), "secret".into())],
            sequences: None,
            input_form: Form::Binary,
            output_form: Form::Binary,
            compression: Compression::None,
            shared_memory: SharedMemory::None,
            decoupled: false,
            priority: 0,
            queue_timeout_us: None,
            recording: None,
        },
        load: Load::Concurrency(Sweep { start: 1, end: Some(2), step: 1 }),
        rules: Rules::default(),
        client: Client::default(),
        server_statistics: true,
        composing_models: Vec::new(),
        metrics: None,
        records_max: 0,
    }
}

pub fn metrics_source() -> MetricsSource {
    MetricsSource {
        endpoint: Endpoint::Tcp { host: "localhost".into(), port: 8002 },
        path: "/metrics".into(),
        interval: Duration::from_secs(1),
    }
}

/// Nothing came of it.
pub fn empty(load: LoadPoint) -> Measurement {
    Measurement {
        load,
        stable: true,
        within_threshold: true,
        limits: ClientLimits::default(),
        histograms: Histograms::default(),
        generation: None,
        counts: RequestCounts::default(),
        errors: ErrorTexts::default(),
        wall: Duration::ZERO,
        client: ClientSide { threads: Vec::new(), connections: 4, engine: EngineKind::Epoll },
        windows: Vec::new(),
        timeline: Timeline::default(),
        server: None,
        composing: Vec::new(),
        metrics: BTreeMap::new(),
        records: Vec::new(),
        records_dropped: 0,
    }
}

/// A thousand requests with latencies from `base_us` on.
pub fn point(load: LoadPoint, base_us: u64) -> Measurement {
    let mut point = empty(load);
    for request in 0..1000u64 {
        let tail = if request % 100 == 99 { 20 } else { 1 };
        let ns = (base_us + request % 50) * 1000 * tail;
        point.histograms.latency_ns.record(ns).expect("within bounds");
        point.histograms.service_ns.record(ns).expect("within bounds");
    }
    let phase = |us: u64| Phase { count: 1000, ns: us * 1000 * 1000 };
    point.counts.sent = 1000;
    point.counts.completed = 1000;
    point.counts.responses = 1000;
    point.counts.bytes_sent = 100_000;
    point.counts.bytes_received = 200_000;
    point.wall = Duration::from_secs(3);
    let usage = ThreadUsage { wall_ns: 3_000_000_000, cpu_ns: 4_000_000, run_queue_ns: Some(30_000_000), spun_ns: 0 };
    point.client.threads = vec![usage];
    let window = WindowFigures {
        wall: Duration::from_secs(1),
        completed: 333,
        failed: 0,
        mean_ns: 120_000.0,
        judged_ns: 120_000.0,
        counted: true,
    };
    point.windows = vec![window; 3];
    point.timeline = Timeline {
        slot: Duration::from_millis(100),
        completed: vec![33, 34, 0, 36, 33],
        covered: vec![Duration::from_millis(100); 5],
    };
    point.server = Some(ServerSide {
        model: "identity".into(),
        version: "1".into(),
        inferences: 1000,
        executions: 500,
        success: phase(30),
        fail: Phase::default(),
        queue: phase(5),
        compute_input: phase(1),
        compute_infer: phase(10),
        compute_output: phase(2),
        cache_hit: Phase::default(),
        cache_miss: Phase::default(),
    });
    point
}
