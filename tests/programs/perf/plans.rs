//! Plans for the models that these tests load.

use std::net::SocketAddr;
use std::time::Duration;

use nereid_memory::Slice;
use nereid_perf::{
    Client, Compression, Endpoint, Expected, Form, Input, Load, Measurement, Plan, Protocol, Rules, Service,
    SharedMemory, Spacing, Sweep, Target, Template, Window, Work,
};

use nereid_test_support::server::Server;

pub const PROTOCOLS: [Protocol; 3] = [Protocol::Http, Protocol::GrpcUnary, Protocol::GrpcStream];

pub fn at(address: SocketAddr) -> Endpoint {
    Endpoint::Tcp { host: address.ip().to_string(), port: address.port() }
}

/// Requests that an identity model gives back, `count` of them, each with its own numbers.
pub fn echoes(count: usize, elements: usize) -> Vec<Template> {
    let template = |number: usize| {
        let values = (0..elements).map(|at| (number * 1000 + at) as f32);
        let data = Slice::copy_of(&values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
        Template {
            inputs: vec![Input {
                name: "INPUT0".to_owned(),
                datatype: "FP32".to_owned(),
                shape: vec![elements as i64],
                data: data.clone(),
            }],
            expected: Some(vec![Expected { name: "OUTPUT0".to_owned(), data }]),
            ..Template::default()
        }
    };
    (0..count).map(template).collect()
}

pub fn concurrency(most: usize) -> Load {
    Load::Concurrency(Sweep { start: most, end: Some(most), step: 1 })
}

pub fn rate(a_second: f64) -> Load {
    let sweep = Sweep { start: a_second, end: Some(a_second), step: 1.0 };
    Load::Rate { sweep, spacing: Spacing::Constant }
}

/// `count` requests to `model`, no matter how long they take.
pub fn plan(server: &Server, protocol: Protocol, model: &str, templates: Vec<Template>, count: u64) -> Plan {
    let address = if protocol == Protocol::Http { server.http } else { server.grpc };
    Plan {
        target: Target { endpoint: at(address), tls: None, protocol },
        service: Service::Triton,
        model: model.to_owned(),
        version: String::new(),
        work: Work {
            streams: vec![templates],
            headers: Vec::new(),
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
        load: concurrency(3),
        rules: Rules {
            window: Window::Time(Duration::from_millis(100)),
            request_count: Some(count),
            ..Rules::default()
        },
        client: Client::default(),
        server_statistics: true,
        composing_models: Vec::new(),
        metrics: None,
        records_max: 0,
    }
}

/// Runs a plan of one load point.
pub fn measure(plan: &Plan) -> Measurement {
    let mut measured = nereid_perf::run(plan, &mut ()).expect("a run");
    assert_eq!(measured.len(), 1, "one load point");
    measured.remove(0)
}

/// All requests had good answers, and the server counted as many.
pub fn demand_all_good(measured: &Measurement, count: u64) {
    assert_eq!(measured.errors.counts, Default::default());
    assert_eq!((measured.counts.completed, measured.counts.failed), (count, 0));
    assert_eq!((measured.histograms.latency_ns.len(), measured.histograms.service_ns.len()), (count, count));
    let server = measured.server.as_ref().expect("statistics");
    assert_eq!((server.success.count, server.fail.count), (count, 0));
    assert_eq!(measured.timeline.completed.iter().sum::<u64>(), count);
}
