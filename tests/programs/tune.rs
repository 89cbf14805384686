//! `nereid tune` as a user starts it. The models sleep as long for a batch as for one request, so that batches and
//! instances give many times the throughput, whatever else the host does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use nereid_test_support::bound::bound_this_test;
use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, run_to_end, signal};
use nereid_test_support::skip::skip_for_want_of;
use nereid_test_support::variant::usual;

/// Sleeps 5 ms for each execution.
const SLEEPS: &str = r#"parameters { key: "execute_delay_ms" value { string_value: "5" } }"#;
/// A small space: with and without the batcher, with one instance and with four.
const SMALL: [&str; 4] = [
    "--set=max_queue_delay_microseconds=0",
    "--set=max_batch_size=8",
    "--set=instances=1,4",
    "--set=preferred_batch_size=default",
];

fn sleeping() -> Repository {
    let repository = Repository::new();
    repository.identity_of("identity", "m", 8, &[Pair::new("FP32", "4")], SLEEPS);
    repository
}

/// Names, contents and times of all files and directories.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, Option<SystemTime>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).expect("a directory").flatten() {
            let path = entry.path();
            let modified = entry.metadata().expect("a file").modified().ok();
            match path.is_dir() {
                true => {
                    found.insert(path.clone(), (Vec::new(), modified));
                    left.push(path);
                }
                false => {
                    found.insert(path.clone(), (fs::read(&path).expect("a file that can be read"), modified));
                }
            }
        }
    }
    found
}

/// A directory or file beside a repository, which goes with the test.
struct Beside(PathBuf);

impl Beside {
    fn new(repository: &Repository, extension: &str) -> Beside {
        let beside = Beside(repository.path().with_extension(extension));
        beside.remove();
        beside
    }

    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = fs::remove_file(&self.0);
    }

    fn flag(&self, name: &str) -> String {
        format!("--{name}={}", self.0.display())
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.0.join(name)).unwrap_or_default()).unwrap_or_default()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A tuner that a signal ends, with a directory for its temporary files. It ends with the test.
struct Tuner(Child);

impl Tuner {
    fn start(words: &[String], temporary: &Beside) -> Tuner {
        bound_this_test();
        fs::create_dir_all(&temporary.0).expect("a directory for temporary files");
        let mut command = Command::new(env!("CARGO_BIN_EXE_nereid"));
        command.args(words).env("TMPDIR", &temporary.0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Tuner(command.spawn().expect("nereid tune starts"))
    }

    /// Waits until it has come so far.
    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            assert!(self.0.try_wait().expect("its state").is_none(), "{what}: it has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("its state") {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Tuner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn words(repository: &Path, models: &str, more: &[&str], flags: &[&str]) -> Vec<String> {
    let variant = usual();
    let mut words = vec!["tune".to_owned(), models.to_owned()];
    words.push(format!("--model-repository={}", repository.display()));
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words.push("--".to_owned());
    words.push(format!("--io-engine={}", variant.io_engine));
    words.push(format!("--io-cores={}", variant.io_cores));
    words.extend(flags.iter().map(|word| (*word).to_owned()));
    words
}

/// The exit code, the result, and what was said on stderr.
fn tune(repository: &Repository, models: &str, more: &[&str], flags: &[&str]) -> (Option<i32>, Value, String) {
    let more = [&["--json"][..], more].concat();
    let (code, out, errors) = tune_for_people(repository, models, &more, flags);
    (code, serde_json::from_str(&out).unwrap_or_default(), errors)
}

/// The same with the summary.
fn tune_for_people(
    repository: &Repository,
    models: &str,
    more: &[&str],
    flags: &[&str],
) -> (Option<i32>, String, String) {
    let words = words(repository.path(), models, more, flags);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (status, out, errors) = run_to_end(&words);
    (status.code(), out, errors)
}

/// Scratch servers of this repository that are still there.
fn servers(repository: &Path) -> Vec<String> {
    // A name may begin with another one.
    let place = format!("--model-repository={}\0", repository.display());
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let lines = entries.filter_map(|entry| {
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&words).into_owned())
    });
    lines.filter(|line| line.contains("serve-for-tune\0") && line.contains(&place)).collect()
}

/// The host was too busy to measure the present configuration. The test is then skipped.
fn is_void(code: Option<i32>, errors: &str) -> bool {
    let reasons = ["the budget is over before anything was measured", "the load generator was the limit"];
    let is_void = code == Some(2) && reasons.iter().any(|reason| errors.contains(reason));
    if is_void {
        skip_for_want_of("time for what this test compares");
    }
    is_void
}

/// Whether something better was found. On a host that is so busy that the budget ended before the last comparison, or
/// that changes meanwhile, there is nothing to find, and the test is skipped.
fn is_found(code: Option<i32>, result: &Value, errors: &str) -> bool {
    if is_void(code, errors) {
        return false;
    }
    // A gain of all that there is to find, but not beyond noise.
    let is_noisy = result["gain"]["high"].as_f64().is_some_and(|high| high > 2.0);
    let is_cut = code == Some(3) && (result["ended_early"].is_string() || result["unstable"] == true || is_noisy);
    assert!(code == Some(0) || is_cut, "{code:?}: {result:#} {errors}");
    if is_cut {
        skip_for_want_of("time for what this test compares");
    }
    !is_cut
}

fn points(result: &Value) -> &[Value] {
    result["points"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Those that have figures: on a busy host, others fail.
fn measured(result: &Value) -> Vec<&Value> {
    points(result).iter().filter(|point| point["failure"].is_null()).collect()
}

#[test]
fn a_slow_model_gets_batches_and_instances() {
    let repository = sleeping();
    let report = Beside::new(&repository, "report");
    let before = snapshot(repository.path());
    let directory = report.flag("report");
    let more = [&SMALL[..], &["--budget=12", &directory]].concat();
    let (code, result, errors) = tune(&repository, "m", &more, &[]);
    if !is_found(code, &result, &errors) {
        return;
    }
    assert_eq!(
        (&result["format"], &result["version"], &result["verdict"]),
        (&"nereid-tune".into(), &1.into(), &"better".into())
    );
    assert!(result["gain"]["low"].as_f64().is_some_and(|low| low > 1.01), "{result:#}");
    let diff = result["recommendations"][0]["diff"].as_str().expect("a diff");
    assert!(diff.contains("+dynamic_batching {") || diff.contains("+  count: 4"), "{diff}");
    assert!(!result.to_string().contains("KIND_GPU"));
    let all = points(&result);
    assert!(all.len() >= 2, "{result:#}");
    assert!(all[0]["changes"].as_object().is_some_and(serde_json::Map::is_empty), "the present one comes first");
    for point in measured(&result) {
        let figures = &point["figures"];
        for name in ["throughput", "p50_ms", "p99_ms", "p99_9_ms", "memory_bytes"] {
            assert!(figures[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {point:#}");
        }
        assert!(figures["cpu_seconds_per_request"].is_number() && figures["failed"] == 0, "{point:#}");
        let spans = &point["models"][0]["spans"][0];
        assert!(spans["compute_infer_us"].as_f64().is_some_and(|us| us >= 4000.0), "{point:#}");
    }
    assert_eq!(report.json("tune.json")["points"], result["points"]);
    let page = fs::read_to_string(report.0.join("report.html")).expect("report.html");
    assert!(page.contains("<svg ") && page.contains("prefers-color-scheme") && page.contains("Pareto front"));
    let without_names = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for foreign in ["http://", "https://", "<script", "<link", "@import", "url("] {
        assert!(!without_names.contains(foreign), "{foreign}");
    }
    let csv = fs::read_to_string(report.0.join("points.csv")).expect("points.csv");
    assert!(csv.starts_with("model_name,batch_size,concurrency,model_config_path,instance_group,max_batch_size,"));
    assert_eq!(csv.lines().count(), 1 + all.len());
    let fragment = fs::read_to_string(report.0.join("m/config.pbtxt")).expect("a fragment");
    assert!(fragment.contains("dynamic_batching {") || fragment.contains("instance_group {"), "{fragment}");
    assert_eq!(snapshot(repository.path()), before, "the repository is only read");
    assert!(servers(repository.path()).is_empty());
    a_run_that_is_over_measures_nothing_again(&repository, &report, &more, &result);
}

/// With its own file, which the run writes anew. This time for people.
fn a_run_that_is_over_measures_nothing_again(repository: &Repository, report: &Beside, more: &[&str], first: &Value) {
    let resume = format!("--resume={}", report.0.join("tune.json").display());
    let more = [more, &[&resume]].concat();
    let (code, out, errors) = tune_for_people(repository, "m", &more, &[]);
    // A start that takes more time than the first one may leave none for the last comparison.
    assert!(matches!(code, Some(0 | 3)), "{code:?} {out} {errors}");
    let always = ["requests/s", "p99 ms"];
    let of_success = ["+++ m/config.pbtxt", "limit is now", "Expected gain in throughput: +"];
    for part in always.iter().chain(of_success.iter().filter(|_| code == Some(0))) {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(errors.contains("#1 present configuration"), "{errors}");
    let second = report.json("tune.json");
    let taken = taken_bursts(first, &second);
    let bursts = |point: &Value| point["burst_seconds"].as_array().map_or(0, Vec::len);
    let all: usize = points(&second).iter().map(bursts).sum();
    assert_eq!(second["bursts_measured"].as_u64(), Some((all - taken) as u64), "{taken} of {all} were there");
    for point in measured(first).into_iter().filter(|point| point["figures"]["valid"] == true) {
        let same = |other: &&Value| other["changes"] == point["changes"] && other["load"] == point["load"];
        let left = second["points_left"].as_array().expect("points that are left");
        assert!(points(&second).iter().chain(left).any(|other| same(&other)), "a point is lost: {point:#}");
    }
    repository.file("m/config.pbtxt", fs::read(repository.path().join("m/config.pbtxt")).expect("a file"));
    let (code, _, errors) = tune(repository, "m", &more, &[]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("model files of 'm'"), "{errors}");
}

/// Bursts that are the first ones of the same point in both results. There are some.
fn taken_bursts(before: &Value, after: &Value) -> usize {
    let mut taken = 0;
    for point in points(after) {
        let same = |other: &&Value| other["changes"] == point["changes"] && other["load"] == point["load"];
        let Some(earlier) = points(before).iter().find(same) else { continue };
        let (one, other) = (earlier["burst_seconds"].as_array(), point["burst_seconds"].as_array());
        let (one, other) = (one.expect("bursts"), other.expect("bursts"));
        // Numbers may lose a last digit on their way through the file.
        let is_same = |(one, other): &(&Value, &Value)| {
            one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| (one - other).abs() < 1e-9)
        };
        taken += one.iter().zip(other).take_while(is_same).count();
    }
    assert!(taken > 0, "nothing was taken from the file");
    taken
}

#[test]
fn a_goal_that_nothing_meets_has_its_own_exit_code() {
    let repository = sleeping();
    let report = Beside::new(&repository, "report");
    let directory = report.flag("report");
    let slo = [&SMALL[..], &["--slo=p99=0.01", "--budget=8", &directory]].concat();
    let (code, result, errors) = tune(&repository, "m", &slo, &[]);
    if is_void(code, &errors) {
        return;
    }
    assert_eq!((code, &result["verdict"]), (Some(4), &"limits not met".into()), "{result:#} {errors}");
    let resume = format!("--resume={}", report.0.join("tune.json").display());
    let (code, out, errors) = tune_for_people(&repository, "m", &[&slo[..], &[&resume]].concat(), &[]);
    if is_void(code, &errors) {
        return;
    }
    assert_eq!(code, Some(4), "{errors}");
    assert!(out.contains("No configuration ") && out.contains("Capacity within the limits: "), "{out}");
    // Nearly four times what two instances without batches can do; the capacity is told.
    let rate = ["--rate=1500", "--slo=p99=200", "--budget=8", "--set=max_queue_delay_microseconds=off"];
    let fixed = ["--set=instances=1,2", "--set=preferred_batch_size=default", "--set=max_batch_size=8"];
    let (code, result, errors) = tune(&repository, "m", &[&rate[..], &fixed].concat(), &[]);
    // The host may be too busy to send requests when they are due, or to answer one in time.
    if is_void(code, &errors) || (code == Some(2) && errors.contains("answered no request in time")) {
        return;
    }
    assert_eq!(code, Some(4), "{result:#} {errors}");
    assert!(points(&result).iter().any(|point| point["rate"].as_f64() == Some(1500.0)), "{result:#}");
}

/// An ensemble in an ensemble, and a model beside it.
#[test]
fn an_ensemble_and_a_model_are_tuned_together() {
    let repository = sleeping();
    for part in ["a", "b"] {
        repository.identity_of("identity", part, 8, &[Pair::new("FP32", "4")], SLEEPS);
    }
    let step = |model: &str, reads: &str, writes: &str| {
        format!(
            "step {{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{reads}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{writes}\" }} }} "
        )
    };
    let outer = |name: &str, steps: &str| {
        format!(
            "name: \"{name}\" platform: \"ensemble\" max_batch_size: 4 \
             input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ 4 ] }} \
             output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ 4 ] }} ensemble_scheduling {{ {steps} }}"
        )
    };
    repository.model("inner", &outer("inner", &step("b", "INPUT0", "OUTPUT0")));
    repository.model("e", &outer("e", &(step("a", "INPUT0", "X") + &step("inner", "X", "OUTPUT0"))));
    let more = [&SMALL[..], &["--budget=12", "--weights=2,1"]].concat();
    let (code, result, errors) = tune(&repository, "e,m", &more, &[]);
    assert!(servers(repository.path()).is_empty());
    if !is_found(code, &result, &errors) {
        return;
    }
    assert_eq!(result["tuned"], serde_json::json!(["a", "b", "m"]));
    let names: Vec<&str> =
        result["space"].as_array().expect("fields").iter().filter_map(|field| field["name"].as_str()).collect();
    for name in ["a/instances", "b/instances", "m/instances"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(result["recommendations"].as_array().is_some_and(|all| !all.is_empty()), "{result:#}");
    for point in measured(&result) {
        assert_eq!(point["models"].as_array().map(Vec::len), Some(2), "{point:#}");
    }
}

#[test]
fn instances_of_python_models_are_processes() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    let config = r#"
        backend: "python"
        max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }
        instance_group [ { count: 1 kind: KIND_CPU } ]
    "#;
    let model = r#"
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in inputs]
"#;
    repository.model("sleepy", config);
    repository.file("sleepy/1/model.py", model);
    let before = snapshot(repository.path());
    let interpreter = format!("--backend-config=python,interpreter={}", python.interpreter().display());
    // One worker more takes a second; without the batcher, three have three times the throughput of one.
    let more = ["--set=max_queue_delay_microseconds=off", "--set=max_batch_size=8", "--set=instances=1,3"];
    let more = [&more[..], &["--set=preferred_batch_size=default", "--budget=16"]].concat();
    let (code, result, errors) = tune(&repository, "sleepy", &more, &[&interpreter]);
    assert_eq!(snapshot(repository.path()), before, "nothing is written, compiled modules neither");
    assert!(servers(repository.path()).is_empty());
    if !is_found(code, &result, &errors) {
        return;
    }
    // The least of each: workers of before may still be on their way out.
    let least = |instances: Option<&str>| {
        let is_it = |point: &&&Value| point["changes"]["sleepy/instances"].as_str() == instances;
        let all = measured(&result);
        let bytes = all.iter().filter(is_it).flat_map(|point| point["rss_bytes"].as_array()).flatten();
        bytes.filter_map(Value::as_u64).min().expect("memory of bursts")
    };
    assert!(least(Some("3")) > least(None), "{result:#}");
}

#[test]
fn what_fails_is_a_point_and_the_run_goes_on() {
    let repository = sleeping();
    // The backend refuses a delay that is no number.
    let more = ["--set=parameters.execute_delay_ms=1,none", "--set=instances=1", "--set=max_batch_size=8"];
    let fixed = ["--set=max_queue_delay_microseconds=off", "--set=preferred_batch_size=default", "--budget=8"];
    let (code, result, errors) = tune(&repository, "m", &[&more[..], &fixed, &["--search=exhaustive"]].concat(), &[]);
    if is_found(code, &result, &errors) && result["ended_early"].is_null() {
        let mut failures = points(&result).iter().filter_map(|point| point["failure"].as_str());
        assert!(failures.any(|failure| failure.contains("does not load")), "{result:#}");
        let diff = result["recommendations"][0]["diff"].as_str();
        assert!(diff.is_some_and(|diff| diff.contains("execute_delay_ms")), "{result:#}");
    }
    // The present configuration must be measured, or there is nothing to compare with.
    let limits = ["--max-memory=1M", "--budget=8"];
    let (code, _, errors) = tune(&repository, "m", &[&SMALL[..], &limits].concat(), &[]);
    assert_eq!(code, Some(2), "{errors}");
    if !is_void(code, &errors) {
        assert!(errors.contains("does not fit: it has ") && errors.contains("1 MiB are allowed"), "{errors}");
    }
}

#[test]
fn a_run_that_is_interrupted_can_go_on() {
    let repository = sleeping();
    let (report, temporary) = (Beside::new(&repository, "report"), Beside::new(&repository, "temporary"));
    let directory = report.flag("report");
    let more = [&SMALL[..], &["--budget=240", "--search=exhaustive", &directory]].concat();
    let mut tuner = Tuner::start(&words(repository.path(), "m", &more, &[]), &temporary);
    tuner.wait_until("no points come", || points(&report.json("tune.json")).len() >= 2);
    signal(tuner.0.id(), "INT");
    assert_eq!(tuner.end().code(), Some(130));
    assert!(servers(repository.path()).is_empty());
    let kept = report.json("tune.json");
    assert_eq!(kept["verdict"], "interrupted");
    assert!(points(&kept).len() >= 2);
    // The same with an end in sight: what is there is taken from the file.
    let resume = format!("--resume={}", report.0.join("tune.json").display());
    let more = [&SMALL[..], &[&resume, "--budget=6", "--search=quick"]].concat();
    let (code, result, errors) = tune(&repository, "m", &more, &[]);
    if is_void(code, &errors) {
        return;
    }
    assert!(matches!(code, Some(0 | 3)), "{code:?} {result:#} {errors}");
    taken_bursts(&kept, &result);
    let (code, _, errors) = tune(&repository, "m", &[&resume, "--seed=2"], &[]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("measured of something else: seed: 1 then, 2 now; run without --resume"), "{errors}");
}

#[test]
fn recorded_requests_are_the_load() {
    let repository = Repository::new();
    repository.identity_of("identity", "m", 8, &[Pair::new("FP32", "-1")], SLEEPS);
    let file = Beside::new(&repository, "recording");
    let record = file.flag("record");
    let server = Server::start(usual(), repository.path(), &[&record, "--record-data=true"]);
    let mut peer = Peer::connect(server.http);
    for size in [1, 3] {
        let data = vec!["0.5"; size].join(",");
        let body =
            format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,{size}],"data":[{data}]}}]}}"#);
        assert_eq!(peer.post("/v2/models/m/infer", &[], body.as_bytes()).status, 200);
    }
    let sample = "nereid_recorded_requests_total{outcome=\"written\"} 2\n";
    server.wait_until(sample, || Peer::connect(server.metrics).get("/metrics").text().contains(sample));
    server.stop();
    // Without it, the open dimension has no size.
    let (code, _, errors) = tune(&repository, "m", &SMALL, &[]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("dimension 0 of input 'INPUT0' ([-1])"), "{errors}");
    assert!(errors.contains("--shape INPUT0:<size>"), "{errors}");
    let recording = file.flag("recording");
    let more = [&SMALL[..], &[&recording, "--budget=8"]].concat();
    let (code, result, errors) = tune(&repository, "m", &more, &[]);
    if is_found(code, &result, &errors) {
        assert!(measured(&result).iter().all(|point| point["figures"]["failed"] == 0), "{result:#}");
    }
}

#[test]
fn mistakes_have_exit_code_2_and_a_next_step() {
    let repository = sleeping();
    for (models, more, part) in [
        ("m", "--budgt=3", "did you mean '--budget'?"),
        ("absent", "--budget=60", "model 'absent' does not load as it is"),
        ("m", "--set=instancs=3", "there is no field 'instancs'"),
        ("m", "--shape=X:1", "no model has this input; the inputs are INPUT0"),
        ("m", "--resume=/nowhere", "run without --resume"),
        ("m", "--recording=/nowhere", "/nowhere"),
    ] {
        let (code, _, errors) = tune(&repository, models, &[more], &[]);
        assert_eq!(code, Some(2), "{more}: {errors}");
        assert!(errors.contains(part), "{more}: {errors}");
    }
    let (code, _, errors) = tune(&repository, "m", &["--budget=60"], &["--no-such-flag=1"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("the scratch server ended before it was ready"), "{errors}");
    assert!(servers(repository.path()).is_empty());
}

/// A tuner that is killed takes its server with it.
#[test]
fn the_server_ends_with_the_tuner() {
    let repository = sleeping();
    let temporary = Beside::new(&repository, "temporary");
    let mut tuner = Tuner::start(&words(repository.path(), "m", &["--budget=600"], &[]), &temporary);
    tuner.wait_until("no server comes", || !servers(repository.path()).is_empty());
    tuner.0.kill().expect("kill it");
    tuner.end();
    let began = Instant::now();
    while !servers(repository.path()).is_empty() {
        assert!(began.elapsed() < PATIENCE, "the server stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}
