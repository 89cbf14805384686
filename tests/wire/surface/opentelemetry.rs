//! Traces as spans at a collector (contract/metrics.md section 4, "OpenTelemetry mode"): an emulated collector receives
//! OTLP over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nereid_wire::otlp::any_value::Value as Any;
use nereid_wire::otlp::{ExportTraceServiceRequest, KeyValue, Span};
use prost::Message;

use super::trace::{infer_http, message};
use nereid_test_support::certificates::Certificates;
use nereid_test_support::grpc::{Grpc, SERVICE, code, frame};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, free_port};
use nereid_test_support::variant::{self, each, usual};

/// What came: the head of each request, and its body.
type Received = Vec<(String, ExportTraceServiceRequest)>;

/// Takes whatever is posted.
struct Collector {
    address: SocketAddr,
    got: Arc<Mutex<Received>>,
}

impl Collector {
    fn start() -> Collector {
        Collector::start_behind(serve)
    }

    /// The same behind TLS, as the server of those certificates.
    fn start_secured(certificates: &Certificates) -> Collector {
        let config = certificates.server_config();
        Collector::start_behind(move |stream, kept| {
            let session = rustls::ServerConnection::new(Arc::clone(&config)).ok()?;
            serve(rustls::StreamOwned::new(session, stream), kept)
        })
    }

    fn start_behind(serve: impl Fn(TcpStream, &Mutex<Received>) -> Option<()> + Send + Sync + 'static) -> Collector {
        let serve = Arc::new(serve);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let got: Arc<Mutex<Vec<_>>> = Arc::default();
        let kept = Arc::clone(&got);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, serve) = (Arc::clone(&kept), Arc::clone(&serve));
                std::thread::spawn(move || serve(stream, &kept));
            }
        });
        Collector { address, got }
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().expect("what came");
        let resources = got.iter().flat_map(|(_, request)| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    fn wait_for(&self, count: usize) -> Vec<Span> {
        let started = Instant::now();
        while self.spans().len() < count {
            assert!(started.elapsed() < PATIENCE, "only {:?}", self.spans());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.spans()
    }

    /// Flags for traces that go there; `url` as it is to be written.
    fn flags(&self, url: &str, more: &[&str]) -> Vec<String> {
        let flags = ["mode=opentelemetry", "level=TIMESTAMPS", &format!("opentelemetry,url={url}")];
        flags.iter().chain(more).map(|setting| format!("--trace-config={setting}")).collect()
    }

    fn url(&self) -> String {
        format!("http://{}/v1/traces", self.address)
    }
}

fn serve(stream: impl Read + Write, kept: &Mutex<Received>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
            head.push_str(&line);
            head.push('\n');
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let request = ExportTraceServiceRequest::decode(&*body).expect("an export request");
        kept.lock().expect("what came").push((head, request));
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

fn start(variant: variant::Variant, repository: &Repository, flags: &[String]) -> Server {
    Server::start(variant, repository.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no span {name} in {spans:?}"))
}

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| &*event.name).collect()
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<Any> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.clone()?.value
}

fn text(value: &str) -> Option<Any> {
    Some(Any::StringValue(value.to_owned()))
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn requests_become_trees_of_spans() {
    each(&variant::ALL, |variant| {
        let (repository, collector) = (repository(), Collector::start());
        let flags = collector.flags(&collector.url(), &["rate=1", "opentelemetry,bsp_schedule_delay=20"]);
        let server = start(variant, &repository, &flags);
        infer_http(&server, "plain", "by http");
        let spans = collector.wait_for(3);
        check(&spans, "by http", ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]);
        assert!(named(&spans, "InferRequest").parent_span_id.is_empty(), "it came with no context");
        collector.got.lock().unwrap().clear();
        let headers = [("traceparent", PARENT), ("tracestate", "vendor=1")];
        let reply = Grpc::connect(server.grpc).exchange(
            &format!("{SERVICE}ModelInfer"),
            &headers,
            &[frame(&message("plain", "by grpc"))],
        );
        assert_eq!(reply.status.code, code::OK);
        let spans = collector.wait_for(3);
        check(&spans, "by grpc", ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"]);
        let root = named(&spans, "InferRequest");
        assert_eq!(root.trace_id[..4], [0x0a, 0xf7, 0x65, 0x19]);
        assert_eq!(root.parent_span_id[..], [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert_eq!(root.trace_state, "vendor=1");
        server.stop();
    });
}

/// The tree of one plain request.
fn check(spans: &[Span], request_id: &str, exchange: [&str; 4]) {
    assert_eq!(spans.len(), 3, "{spans:?}");
    let (root, model, compute) = (named(spans, "InferRequest"), named(spans, "plain"), named(spans, "compute"));
    assert_eq!((&model.parent_span_id, &compute.parent_span_id), (&root.span_id, &model.span_id));
    let [received, whole, send, sent] = exchange;
    assert_eq!(events(root), [received, whole, "INFER_RESPONSE_COMPLETE", send, sent]);
    let mut of_model = events(model);
    of_model.sort_unstable();
    assert_eq!(of_model, ["QUEUE_START", "REQUEST_END", "REQUEST_START"]);
    assert_eq!(events(compute), ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]);
    assert_eq!(attribute(&model.attributes, "triton.model_name"), text("plain"));
    assert_eq!(attribute(&model.attributes, "triton.model_version"), Some(Any::IntValue(1)));
    assert_eq!(attribute(&model.attributes, "triton.trace_parent_id"), Some(Any::IntValue(0)));
    assert!(matches!(attribute(&model.attributes, "triton.trace_id"), Some(Any::IntValue(1..))));
    let generation = attribute(&model.attributes, "nereid.generation");
    assert!(matches!(generation, Some(Any::StringValue(id)) if id.ends_with("-1")), "the model was loaded once");
    let now_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    for span in spans {
        assert_eq!((span.kind, &span.trace_id), (2, &root.trace_id), "{}", span.name);
        assert_eq!(attribute(&span.attributes, "triton.request_id"), text(request_id), "{}", span.name);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        assert!(root.start_time_unix_nano <= span.start_time_unix_nano);
        let age_ns = now_ns.abs_diff(span.start_time_unix_nano);
        assert!(age_ns < PATIENCE.as_nanos() as u64, "the clock of the world: {age_ns}");
    }
}

#[test]
fn only_contexts_are_traced_at_a_rate_of_zero() {
    let (repository, collector) = (repository(), Collector::start());
    // Without a scheme, and flushed at the end rather than after the delay.
    let url = format!("{}/v1/traces", collector.address);
    let more = ["rate=0", "opentelemetry,resource=service.name=mine", "opentelemetry,resource=host=h=1"];
    let server = start(usual(), &repository, &collector.flags(&url, &more));
    infer_http(&server, "plain", "no context");
    let body = super::trace::body("forced");
    for parent in ["", "00-zero", PARENT] {
        let headers = [("traceparent", parent)];
        let answer = Peer::connect(server.http).post("/v2/models/plain/infer", &headers, body.as_bytes());
        assert_eq!(answer.status, 200);
    }
    let shown = Peer::connect(server.http).get("/v2/trace/setting").text();
    let expected = format!(
        "{{\"trace_level\":[\"TIMESTAMPS\"],\"trace_rate\":\"0\",\"trace_count\":\"-1\",\"trace_mode\":\
         \"opentelemetry\",\"url\":\"{url}\",\"resource\":\"service.name=mine,host=h=1\",\
         \"bsp_max_queue_size\":\"2048\",\"bsp_schedule_delay\":\"5000\",\"bsp_max_export_batch_size\":\"512\"}}"
    );
    assert_eq!(shown, expected);
    server.stop();
    let spans = collector.spans();
    assert_eq!(spans.len(), 3, "one request: {spans:?}");
    let got = collector.got.lock().unwrap();
    let (head, request) = &got[0];
    assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    let resource = request.resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(attribute(&resource.attributes, "service.name"), text("mine"));
    assert_eq!(attribute(&resource.attributes, "host"), text("h=1"));
}

#[test]
fn the_environment_has_defaults_of_the_processor() {
    let (repository, collector) = (repository(), Collector::start());
    let flags = collector.flags(&collector.url(), &["rate=1", "opentelemetry,bsp_max_queue_size=100"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let variables = [("OTEL_BSP_SCHEDULE_DELAY", "10"), ("OTEL_BSP_MAX_QUEUE_SIZE", "7")];
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &variables);
    infer_http(&server, "plain", "");
    let spans = collector.wait_for(3);
    assert_eq!(attribute(&named(&spans, "plain").attributes, "triton.request_id"), None, "it has no id");
    let got = collector.got.lock().unwrap()[0].1.clone();
    let resource = got.resource_spans[0].resource.clone().expect("a resource");
    assert_eq!(attribute(&resource.attributes, "service.name"), text("triton-inference-server"));
    let shown = Peer::connect(server.http).get("/v2/trace/setting").json();
    assert_eq!((&shown["bsp_schedule_delay"], &shown["bsp_max_queue_size"]), (&"10".into(), &"100".into()));
    server.stop();
}

/// No span has a place for a tensor: the log names what is left out, and the spans come all the same.
#[test]
fn tensors_are_not_traced_and_the_log_says_so() {
    let (repository, collector) = (repository(), Collector::start());
    let more = ["rate=1", "level=TENSORS", "opentelemetry,bsp_schedule_delay=10"];
    let server = start(usual(), &repository, &collector.flags(&collector.url(), &more));
    infer_http(&server, "plain", "");
    assert!(!collector.wait_for(3).is_empty());
    let text = "Tensor level tracing is not supported by the mode: OPENTELEMETRY";
    for tensor in ["INPUT0", "OUTPUT0"] {
        server.wait_for_log(&format!("{text} (tensor '{tensor}')"));
    }
    server.stop();
}

#[test]
fn a_collector_that_is_not_there_disturbs_nobody() {
    let repository = repository();
    // A port that nobody listens at, nor gets meanwhile, and one that never answers.
    let gone = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [gone, silent.local_addr().unwrap()] {
        let settings = [
            "mode=opentelemetry",
            "level=TIMESTAMPS",
            "rate=1",
            "opentelemetry,bsp_max_queue_size=8",
            "opentelemetry,bsp_schedule_delay=10",
            &format!("opentelemetry,url={address}/v1/traces"),
        ];
        let flags: Vec<String> = settings.iter().map(|setting| format!("--trace-config={setting}")).collect();
        let server = start(usual(), &repository, &flags);
        for _ in 0..20 {
            infer_http(&server, "plain", "");
        }
        let started = Instant::now();
        loop {
            let page = Peer::connect(server.metrics).get("/metrics").text();
            let dropped = page.lines().find_map(|line| line.strip_prefix("nereid_traces_dropped "));
            if dropped.is_some_and(|number| number != "0") {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "nothing is dropped: {page}");
        }
        server.stop();
    }
}

#[test]
fn steps_and_activities_are_spans_below_their_model() {
    let (repository, collector) = (repository(), Collector::start());
    let telling = "parameters { key: \"enable_custom_tracing\" value { string_value: \"true\" } }";
    repository.identity_of("identity", "telling", 0, &[Pair::new("INT32", "-1")], telling);
    let tensor = |name: &str| format!("{{ name: \"{name}\" data_type: TYPE_INT32 dims: [ -1 ] }}");
    let config = format!(
        "platform: \"ensemble\" input {} output {} ensemble_scheduling {{ step {{ model_name: \"telling\" \
         model_version: -1 input_map {{ key: \"INPUT0\" value: \"INPUT0\" }} output_map {{ key: \"OUTPUT0\" value: \
         \"OUT\" }} }} }}",
        tensor("INPUT0"),
        tensor("OUT")
    );
    repository.model("around", &config);
    let server = start(usual(), &repository, &collector.flags(&collector.url(), &["rate=1"]));
    infer_http(&server, "around", "e");
    server.stop();
    let spans = collector.spans();
    assert_eq!(spans.len(), 5, "{spans:?}");
    let (root, around) = (named(&spans, "InferRequest"), named(&spans, "around"));
    let (telling, activity) = (named(&spans, "telling"), named(&spans, "CUSTOM_ACTIVITY"));
    for (child, parent) in [(around, root), (telling, around), (activity, telling), (named(&spans, "compute"), telling)]
    {
        assert_eq!(child.parent_span_id, parent.span_id, "{}", child.name);
    }
    assert_eq!(events(activity), ["CUSTOM_ACTIVITY_START", "CUSTOM_ACTIVITY_END"]);
    assert!(events(telling).contains(&"CUSTOM_SINGLE_ACTIVITY"));
    let id = |span: &Span, key: &str| match attribute(&span.attributes, key) {
        Some(Any::IntValue(id)) => id,
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(id(telling, "triton.trace_parent_id"), id(around, "triton.trace_id"));
}

/// A collector behind TLS is believed if the host knows its authority, and nobody else is told anything.
#[test]
fn spans_go_over_tls_to_a_collector_that_is_known() {
    let Some(certificates) = Certificates::make() else { return };
    let (repository, collector) = (repository(), Collector::start_secured(&certificates));
    let url = format!("https://localhost:{}/v1/traces", collector.address.port());
    let flags = collector.flags(&url, &["rate=1", "opentelemetry,bsp_schedule_delay=20"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for (authority, is_known) in [("other.pem", false), ("authority.pem", true)] {
        let environment = [("SSL_CERT_FILE", certificates.path(authority)), ("SSL_CERT_DIR", "/nowhere".to_owned())];
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
        infer_http(&server, "plain", "by http");
        match is_known {
            true => {
                let spans = collector.wait_for(3);
                let names = ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"];
                check(&spans, "by http", names);
            }
            false => {
                server.wait_for_log("spans could not be sent to 'https://localhost:");
                assert!(collector.spans().is_empty(), "a stranger was told {:?}", collector.spans());
            }
        }
        server.stop();
    }
}
