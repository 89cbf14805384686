//! The files of `examples/monitoring`: Prometheus scrapes servers with them, every metric that they name is there, and
//! every query finds what it looks for (docs/monitoring-stack.md).

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use regex::Regex;
use serde_json::{Value, json};

use crate::openai::frontend::{CHAT, Frontend, Tokenizer, add, has_run};
use nereid_test_support::http::Peer;
use nereid_test_support::paths;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

const DASHBOARDS: [&str; 4] = ["overview", "model", "openai", "host"];
const MOCK: &str = "openai_mock";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Queries of dashboards that NVIDIA publishes for Triton, and families that others use.
const TRITON: [&str; 17] = [
    "count(count(nv_inference_count) by (instance))",
    "sum by (pod) (rate(nv_inference_count[1m])) / ignoring(pod) group_left sum (rate(nv_inference_count[1m]))",
    "sum(nv_inference_request_success) by (pod)",
    "sum(nv_inference_request_failure) by (pod)",
    "sum(rate(nv_inference_compute_infer_duration_us[1m])) by (model) / 1000",
    "avg(rate(nv_inference_queue_duration_us[1m])/(1+rate(nv_inference_request_success[1m]))) by (pod)",
    "rate(nv_inference_request_duration_us[1m]) / rate(nv_inference_exec_count[1m])",
    "sum(nv_inference_compute_input_duration_us) + sum(nv_inference_compute_output_duration_us)",
    "nv_inference_pending_request_count",
    "nv_cache_num_hits_per_model",
    "avg(nv_gpu_utilization) by (gpu_uuid)",
    "nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes",
    "nv_gpu_power_usage",
    "nv_gpu_power_limit",
    "nv_energy_consumption",
    "nv_cpu_utilization",
    "nv_cpu_memory_used_bytes / nv_cpu_memory_total_bytes",
];

fn folder() -> PathBuf {
    paths::root().join("examples/monitoring")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn dashboard(name: &str) -> Value {
    serde_json::from_str(&read(&folder().join(format!("dashboards/{name}.json")))).expect("a dashboard is JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The queries of the panels of all dashboards, with values for their variables.
fn queries() -> Vec<String> {
    let mut queries = Vec::new();
    for dashboard in DASHBOARDS.map(dashboard) {
        for target in list(&dashboard["panels"]).iter().flat_map(|panel| list(&panel["targets"])) {
            let query = target["expr"].as_str().expect("a target has a query");
            let query = query.replace("$__rate_interval", "5m").replace("$job", "nereid");
            queries.push(query.replace("$instance", ".*").replace("$model", ".*"));
        }
    }
    assert!(queries.len() > 60, "{queries:?}");
    queries
}

/// Names of metrics of servers in queries or rules.
fn names(text: &str) -> BTreeSet<String> {
    let word = Regex::new("[a-zA-Z_:][a-zA-Z0-9_:]*").expect("a pattern");
    let is_ours = |name: &&str| ["nv_", "nereid_", "process_"].iter().any(|start| name.starts_with(start));
    // The groups of rules have such names, too.
    let is_group = |name: &&str| ["nereid_models", "nereid_servers"].contains(name);
    word.find_iter(text)
        .map(|found| found.as_str())
        .filter(is_ours)
        .filter(|name| !is_group(name))
        .map(str::to_owned)
        .collect()
}

fn rules() -> String {
    ["recording", "alerts"].map(|name| read(&folder().join(format!("rules/{name}.yml")))).concat()
}

/// The names of the samples of a page.
fn samples(address: SocketAddr) -> BTreeSet<String> {
    let page = Peer::connect(address).get("/metrics").text();
    let names = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}

/// A Prometheus server with the files of the example, in a folder of its own.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: Repository,
}

impl Prometheus {
    /// None, after a visible skip, where there is no such program.
    fn start(targets: &[SocketAddr]) -> Option<Prometheus> {
        if Command::new("prometheus").arg("--version").output().is_err() {
            skip("no prometheus");
            return None;
        }
        let own = Repository::new();
        let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let config = read(&folder().join("prometheus.yml"));
        let config = config.replace("\"localhost:8002\"", &targets.join(", ")).replace(" 15s", " 2s");
        own.file("prometheus.yml", config.replace("rules/", &format!("{}/rules/", folder().display())));
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", own.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", own.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--enable-feature=exemplar-storage", "--log.level=error"])
            .stdin(Stdio::null())
            .spawn()
            .expect("prometheus starts");
        Some(Prometheus { child, address, _folder: own })
    }

    /// The data of an answer of its interface; none before it takes connections.
    fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Value> {
        let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let parameters: Vec<_> = parameters.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let answer = Peer::try_connect(self.address).ok()?.get(&format!("/api/v1/{path}?{}", parameters.join("&")));
        if answer.status == 503 {
            return None;
        }
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        Some(answer.json()["data"].clone())
    }

    /// How many series a query finds.
    fn found(&self, query: &str) -> usize {
        self.get("query", &[("query", query)]).map_or(0, |data| list(&data["result"]).len())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn dashboards_are_whole() {
    if has_run() {
        return;
    }
    let mut ids = BTreeSet::new();
    let used = Regex::new(r"\$([a-z]+)").expect("a pattern");
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        assert!(ids.insert(dashboard["uid"].to_string()), "{name}");
        assert!(dashboard["schemaVersion"].as_u64() >= Some(38), "{name} is one of Grafana 10 or newer");
        let variables: Vec<_> =
            list(&dashboard["templating"]["list"]).iter().map(|it| it["name"].to_string()).collect();
        let panels = list(&dashboard["panels"]);
        let numbers: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(numbers.len(), panels.len(), "{name}");
        let mut taken = BTreeSet::new();
        for panel in panels {
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a place"));
            let cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
            assert!(x + w <= 24 && cells.into_iter().all(|cell| taken.insert(cell)), "{name}: {}", panel["title"]);
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{name}");
        }
        for found in used.captures_iter(&dashboard["panels"].to_string()) {
            assert!(variables.contains(&format!("\"{}\"", &found[1])), "{name} has no variable {}", &found[1]);
        }
    }
    let files = fs::read_dir(folder().join("dashboards")).expect("the dashboards");
    assert_eq!(files.count(), DASHBOARDS.len(), "each is tested");
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() {
    if has_run() {
        return;
    }
    for arguments in [
        &["check", "config", "prometheus.yml"][..],
        &["test", "rules", "rules/tests.yml"],
        &["check", "rules", "rules/alerts.yml"],
    ] {
        let Ok(output) = Command::new("promtool").args(arguments).current_dir(folder()).output() else {
            return skip("no promtool");
        };
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
    }
}

/// A model for everything that the dashboards show, on a server with OpenAI's port, and one with GPUs.
fn servers(repository: &Repository, tokenizer: &Tokenizer) -> Option<(Frontend, Server)> {
    let one = [Pair::new("INT32", "-1")];
    add(repository, MOCK, MOCK);
    repository.identity("plain", 0, &one);
    repository.identity_of("identity", "cached", 0, &one, "response_cache { enable: true }");
    let flags = [
        &tokenizer.flag(),
        "--cache-config=local,size=1048576",
        "--metrics-config=histogram_phases=true",
        "--metrics-config=histogram_latencies=true",
        "--trace-config=mode=opentelemetry",
        "--trace-config=opentelemetry,url=127.0.0.1:9/v1/traces",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1000000",
        "--metrics-interval-ms=100",
    ];
    let frontend = Frontend::start(repository, &flags)?;
    let gpus = [("NEREID_SIMULATED_GPUS", "1")];
    let flags = ["--metrics-interval-ms=100", "--model-control-mode=explicit", "--load-model=plain"];
    let with_gpu = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &gpus);
    Some((frontend, with_gpu))
}

/// What a model writes while it executes one request has the request's id, in JSON only (docs/logging.md).
#[test]
fn lines_of_a_model_have_the_id_of_their_request() {
    if has_run() {
        return;
    }
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.identity_of("python", "talks", 0, &[Pair::new("INT32", "-1")], "");
    let model = "import triton_python_backend_utils as pb\n\
        class TritonPythonModel:\n\
        \x20   def execute(self, requests):\n\
        \x20       pb.Logger.log_warn('it executes')\n\
        \x20       inputs = [pb.get_input_tensor_by_name(request, 'INPUT0').as_numpy() for request in requests]\n\
        \x20       return [pb.InferenceResponse([pb.Tensor('OUTPUT0', numbers)]) for numbers in inputs]\n\
        \x20   def finalize(self):\n\
        \x20       pb.Logger.log_warn('it ends')\n";
    repository.file("talks/1/model.py", model);
    let interpreter = format!("--backend-config=python,interpreter={}", python.interpreter().display());
    let server = Server::start(usual(), repository.path(), &[&interpreter, "--log-format=json"]);
    for id in ["a \"b\"] c", ""] {
        let input = json!({"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]});
        let body = json!({"id": id, "inputs": [input]}).to_string();
        let answer = Peer::connect(server.http).post("/v2/models/talks/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let log = server.stop();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let said = lines.filter(|line| line["file"] == "model.py");
    let said: Vec<_> = said.map(|line| json!([line["message"], line.get("request_id")])).collect();
    let expected = [json!(["it executes", "a \"b\"] c"]), json!(["it executes", null]), json!(["it ends", null])];
    assert_eq!(said, expected, "{log}");
}

#[test]
fn prometheus_finds_what_dashboards_and_rules_ask_for() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (Repository::new(), Tokenizer::new());
    let Some((frontend, with_gpu)) = servers(&repository, &tokenizer) else { return };
    let server = &frontend.server;
    let traffic = || {
        let body = json!({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}).to_string();
        let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
        for model in ["plain", "cached"] {
            let path = format!("/v2/models/{model}/infer");
            let answer = Peer::connect(server.http).post(&path, &[("traceparent", &parent)], body.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let chat = json!({"model": MOCK, "messages": [{"role": "user", "content": "<<pieces [\"a\",\"b\"]>>"}]});
        frontend.streamed(CHAT, &chat);
    };
    traffic();
    let shown = || -> BTreeSet<String> { [server.metrics, with_gpu.metrics].into_iter().flat_map(samples).collect() };
    let asked = names(&(queries().join("\n") + &rules()));
    assert!(asked.len() > 40, "{asked:?}");
    server.wait_until(&format!("all of {asked:?} are there"), || asked.is_subset(&shown()));

    let Some(prometheus) = Prometheus::start(&[server.metrics, with_gpu.metrics]) else { return };
    server.wait_until("both servers are scraped", || prometheus.found("up{job=\"nereid\"} == 1") == 2);
    // A query for what has not happened finds nothing, but must be one.
    let finds_something = |query: &String| !query.contains("> 0") && !query.contains("== 0");
    let mut missing: Vec<String> = queries().into_iter().chain(TRITON.map(str::to_owned)).collect();
    for query in missing.iter().filter(|query| !finds_something(query)) {
        let answered = prometheus.get("query", &[("query", query)]);
        assert_eq!(answered.expect("an answer")["resultType"], "vector", "{query}");
    }
    missing.retain(finds_something);
    // Rates need requests between two scrapes.
    let rates = ["nv_inference_request_success{model=\"plain\"}", "nv_openai_request_success_total"];
    server.wait_until("there are rates", || {
        traffic();
        rates.iter().all(|family| prometheus.found(&format!("rate({family}[5m]) > 0")) > 0)
    });
    server.wait_until("every query finds something", || {
        traffic();
        missing.retain(|query| prometheus.found(query) == 0);
        if let Some(query) = missing.first() {
            println!("{} queries find nothing yet, such as {query}", missing.len());
        }
        missing.is_empty()
    });

    // It accepts OpenMetrics, where counters without a suffix have no type; the other format has one.
    let family = "nv_inference_request_success";
    let metadata = prometheus.get("metadata", &[("metric", family)]).expect("an answer");
    assert_eq!(metadata[family][0]["type"], "unknown", "{metadata}");
    let histogram = "nereid_request_duration_us_bucket{model=\"plain\"}";
    server.wait_until("a bucket leads to the trace", || {
        traffic();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() + 60;
        let range = [("query", histogram), ("start", "0"), ("end", &now.to_string())];
        let found = prometheus.get("query_exemplars", &range).expect("an answer");
        found[0]["exemplars"][0]["labels"]["trace_id"] == TRACE
    });
    let mut seen = Value::Null;
    server.wait_until("every rule was evaluated", || {
        seen = prometheus.get("rules", &[]).expect("an answer");
        let rules = list(&seen["groups"]).iter().flat_map(|group| list(&group["rules"])).collect::<Vec<_>>();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{seen}");
        rules.len() > 15 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    // Healthy servers cause no alert that waits for nothing. Their traces have no collector, which one may tell by now.
    let firing = "ALERTS{alertstate=\"firing\",alertname!=\"NereidLosesRecords\"}";
    assert_eq!(prometheus.found(firing), 0, "{seen}");
    drop(prometheus);
    with_gpu.stop();
    frontend.stop();
}
