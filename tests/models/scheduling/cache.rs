//! The response cache, local and in Redis (contract/schedulers.md section 8).

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use super::ensemble::ensemble;
use nereid_test_support::grpc::{Grpc, SERVICE, code};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, free_port, run_to_end, signal};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, each, usual};

const LOCAL: &str = "--cache-config=local,size=1048576";

/// A model that uses the cache, and one that does not.
fn repository() -> Repository {
    let repository = Repository::new();
    let pair = [Pair::new("INT32", "-1")];
    repository.identity_of("identity", "cached", 0, &pair, "response_cache { enable: true }");
    repository.identity("plain", 0, &pair);
    repository
}

fn body(first: usize, count: usize) -> String {
    let data: Vec<String> = (first..first + count).map(|number| number.to_string()).collect();
    format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[{count}],"data":[{}]}}]}}"#, data.join(","))
}

/// Asks `model` for the numbers from `first` on, and checks the answer.
fn ask(server: &Server, model: &str, first: usize, count: usize) {
    let answer =
        Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body(first, count).as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let data: Vec<usize> = json["outputs"][0]["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|v| Some(v.as_u64()? as usize))
        .collect();
    assert_eq!(data, (first..first + count).collect::<Vec<_>>(), "{json}");
    assert_eq!(json["outputs"][0]["name"], "OUTPUT0");
}

fn stats(server: &Server, model: &str) -> Value {
    Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
}

/// Hits, misses, successes, executions.
fn counts(server: &Server, model: &str) -> [u64; 4] {
    let stats = stats(server, model);
    let of = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number in {stats}"));
    let inference = &stats["inference_stats"];
    assert_eq!(
        of(&inference["compute_infer"]["count"]),
        of(&inference["success"]["count"]) - of(&inference["cache_hit"]["count"])
    );
    assert_eq!(stats["inference_count"], stats["execution_count"]);
    let tally = |name: &str| of(&inference[name]["count"]);
    [tally("cache_hit"), tally("cache_miss"), tally("success"), of(&stats["execution_count"])]
}

fn metrics(server: &Server) -> Vec<String> {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    page.lines().filter(|line| line.starts_with("nv_cache_")).map(str::to_owned).collect()
}

#[test]
fn equal_requests_are_answered_once_by_the_model() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[LOCAL]);
        for _ in 0..3 {
            ask(&server, "cached", 1, 3);
            ask(&server, "plain", 1, 3);
        }
        ask(&server, "cached", 2, 3);
        assert_eq!(counts(&server, "cached"), [2, 2, 4, 2]);
        assert_eq!(counts(&server, "plain"), [0, 0, 3, 3]);
        let samples = metrics(&server);
        assert_eq!(samples.len(), 4, "{samples:?}");
        assert_eq!(samples[0], r#"nv_cache_num_hits_per_model{model="cached",version="1"} 2"#);
        assert_eq!(samples[1], r#"nv_cache_num_misses_per_model{model="cached",version="1"} 2"#);
        // Large inputs and answers take another way to the same end.
        for _ in 0..2 {
            ask(&server, "cached", 0, 40_000);
        }
        assert_eq!(counts(&server, "cached"), [3, 3, 6, 3]);
        let log = server.stop();
        let row = log.lines().find(|line| line.contains("cache_enabled")).map(|line| line.replace(' ', ""));
        assert_eq!(row.as_deref(), Some("|cache_enabled|1|"), "{log}");
    });
}

/// The shapes in the answer to a request whose two inputs have this one, and whether it came from the cache.
fn asked(server: &Server, shape: &[i64], more: &Value) -> (Value, bool) {
    let data: Vec<i64> = (0..shape.iter().product()).collect();
    let inputs = ["INPUT0", "INPUT1"];
    let inputs = inputs.map(|name| json!({ "name": name, "datatype": "INT32", "shape": shape, "data": data }));
    let mut body = json!({ "inputs": inputs });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let before = counts(server, "cached")[0];
    let answer = Peer::connect(server.http).post("/v2/models/cached/infer", &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let outputs = &answer.json()["outputs"];
    let shape = outputs.as_array().into_iter().flatten().map(|output| output["shape"].clone()).collect();
    (shape, counts(server, "cached")[0] > before)
}

/// What the model sees is what the answer depends on.
#[test]
fn requests_that_the_model_sees_otherwise_have_their_own_answers() {
    let repository = Repository::new();
    let pairs = [Pair::new("INT32", "-1, -1"), Pair::new("INT32", "-1, -1")];
    repository.identity_of("identity", "cached", 0, &pairs, "response_cache { enable: true }");
    let server = Server::start(usual(), repository.path(), &[LOCAL]);
    let temperature = |value: f64| json!({ "parameters": { "temperature": value } });
    let requests = [
        ([1, 4], json!({}), 2),
        ([2, 2], json!({}), 2),
        ([2, 2], temperature(0.1), 2),
        ([2, 2], temperature(0.9), 2),
        ([2, 2], json!({ "parameters": { "sequence_id": 5 } }), 2),
        ([2, 2], json!({ "outputs": [{ "name": "OUTPUT0" }] }), 1),
    ];
    for is_second in [false, true] {
        for (shape, more, outputs) in &requests {
            let (found, is_hit) = asked(&server, shape, more);
            assert_eq!((found, is_hit), (json!(vec![shape; *outputs]), is_second), "{shape:?} {more}");
        }
    }
    let named = json!({ "id": "another", "parameters": { "priority": 3 } });
    assert!(asked(&server, &[2, 2], &named).1, "id and place in the queue are not the model's");
    server.stop();
    // As Triton does.
    let server = Server::start(usual(), repository.path(), &[LOCAL, "--cache-config=local,key=triton"]);
    assert_eq!(asked(&server, &[1, 4], &json!({})), (json!([[1, 4], [1, 4]]), false));
    assert_eq!(asked(&server, &[2, 2], &temperature(0.9)), (json!([[1, 4], [1, 4]]), true));
    server.stop();
}

/// An answer from the cache has its place in the order of the requests, and waits for those before it.
#[test]
fn a_hit_keeps_its_place_in_the_order() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let more = "response_cache { enable: true } dynamic_batching { preserve_ordering: true }
                    parameters { key: \"execute_delay_ms\" value { string_value: \"300\" } }";
        repository.identity_of("identity", "cached", 0, &[Pair::new("INT32", "-1")], more);
        let server = Server::start(variant, repository.path(), &[LOCAL]);
        let mut grpc = Grpc::connect(server.grpc);
        let request = |value: i32| {
            let input = InferInputTensor {
                name: "INPUT0".to_owned(),
                datatype: "INT32".to_owned(),
                shape: vec![1],
                ..Default::default()
            };
            ModelInferRequest {
                model_name: "cached".to_owned(),
                inputs: vec![input],
                raw_input_contents: vec![value.to_le_bytes().to_vec().into()],
                ..Default::default()
            }
        };
        let _: ModelInferResponse = grpc.call("ModelInfer", &request(1)).expect("an answer");
        let begin = |grpc: &mut Grpc, value: i32| {
            let mut call = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
            grpc.send(&mut call, &request(value));
            grpc.half_close(&mut call);
            call
        };
        // In this order on one connection.
        let (miss, hit) = (begin(&mut grpc, 2), begin(&mut grpc, 1));
        grpc.flush();
        assert_eq!(grpc.finish(hit).status.code, code::OK);
        // Each is counted before it is answered.
        assert_eq!(counts(&server, "cached"), [1, 2, 3, 2]);
        assert_eq!(grpc.finish(miss).status.code, code::OK);
        server.stop();
    });
}

#[test]
fn a_full_cache_forgets_what_was_used_longest_ago() {
    let repository = repository();
    // Room for about four answers of 4000 bytes.
    let server = Server::start(usual(), repository.path(), &["--cache-config=local,size=19000"]);
    let ask = |first: usize| {
        let before = counts(&server, "cached")[0];
        ask(&server, "cached", first, 1000);
        counts(&server, "cached")[0] > before
    };
    assert!((0..10).all(|first| !ask(first)));
    assert!(ask(9) && ask(8));
    assert!(!ask(0), "that was thrown out");
    assert!(ask(0) && ask(9));
    // More than there is room for is executed every time, and throws nothing out.
    for _ in 0..2 {
        self::ask(&server, "cached", 0, 10_000);
    }
    assert!(ask(9));
    let log = server.stop();
    let refused = log.lines().filter(|line| line.contains("Failed to insert key [")).collect::<Vec<_>>();
    assert_eq!(refused.len(), 2, "{log}");
    let is_error = |line: &&str| line.starts_with('E') && line.contains("] into response cache: ");
    assert!(refused.iter().all(is_error), "{refused:?}");
}

#[test]
fn without_a_cache_the_setting_of_a_model_means_nothing() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    for _ in 0..2 {
        ask(&server, "cached", 1, 3);
    }
    assert_eq!(counts(&server, "cached"), [0, 0, 2, 2]);
    assert_eq!(metrics(&server), Vec::<String>::new());
    server.stop();
}

/// A hit costs no step; and whether an ensemble is asked or its part makes two questions.
#[test]
fn an_ensemble_that_is_answered_from_the_cache_runs_no_step() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        for (name, part) in [("cached_ensemble", "plain"), ("around_cached", "cached")] {
            let more = if part == "plain" { "response_cache { enable: true }" } else { "" };
            let step = format!("{part} INPUT0=INPUT0 -> OUTPUT0=OUTPUT0");
            repository.model(name, &ensemble(name, "INPUT0", "OUTPUT0", &[&step], more));
        }
        let server = Server::start(variant, repository.path(), &[LOCAL]);
        for first in [0, 10, 0, 10, 0] {
            ask(&server, "cached_ensemble", first, 10);
            ask(&server, "around_cached", first, 10);
        }
        let tally = |model: &str, name: &str| stats(&server, model)["inference_stats"][name]["count"].clone();
        let all = |model: &str| ["success", "cache_hit", "cache_miss"].map(|name| tally(model, name).as_u64());
        assert_eq!(all("cached_ensemble"), [5, 3, 2].map(Some));
        assert_eq!(all("plain"), [2, 0, 0].map(Some));
        assert_eq!(all("around_cached"), [5, 0, 0].map(Some));
        assert_eq!(all("cached"), [5, 3, 2].map(Some));
        server.stop();
    });
}

#[test]
fn a_reload_begins_with_another_version_but_the_same_one_finds_its_answers() {
    let repository = repository();
    let flags = [LOCAL, "--model-control-mode=explicit", "--load-model=cached"];
    let server = Server::start(usual(), repository.path(), &flags);
    ask(&server, "cached", 1, 3);
    repository.version("cached", "2");
    let answer = Peer::connect(server.http).post("/v2/repository/models/cached/load", &[], b"{}");
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The version is part of the key.
    ask(&server, "cached", 1, 3);
    assert_eq!(counts(&server, "cached"), [0, 1, 1, 1]);
    ask(&server, "cached", 1, 3);
    assert_eq!(counts(&server, "cached"), [1, 1, 2, 1]);
    server.stop();
}

/// contract/cli.md section 2, rows of caches; the texts are the official server's.
#[test]
fn what_is_no_cache_ends_the_start() {
    let repository = repository();
    let location = format!("--model-repository={}", repository.path().display());
    let multiple = "found multiple cache configurations, but only a single cache is currently supported";
    let cases: [(&[&str], &str); 5] = [
        (
            &["--cache-config=nosuch,size=1", "--cache-directory=/nowhere"],
            "Invalid argument - unable to find 'libtritoncache_nosuch.so' for cache. Searched: /nowhere",
        ),
        (
            &["--cache-config=local,foo=1"],
            "Invalid argument - Failed to initialize LocalCache: config didn't contain a valid 'size' field.",
        ),
        (&["--cache-config=local,size=abc"], "Internal - Failed to initialize LocalCache: stoull"),
        (&["--cache-config=local,size=1000", "--cache-config=redis,host=h"], &format!("Invalid argument - {multiple}")),
        (
            &["--response-cache-byte-size=0"],
            "Internal - Failed to initialize LocalCache: Could not initialize buffer in basic_managed_external_buffer \
             constructor",
        ),
    ];
    for (flags, text) in cases {
        let (status, _, error) = run_to_end(&[&[location.as_str()], flags].concat());
        assert_eq!(status.code(), Some(1), "{flags:?}");
        assert!(error.contains(&format!("error: creating server: {text}\n")), "{flags:?}: {error}");
    }
}

/// A Redis of the test's own; None after a visible skip where there is none to start.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start() -> Option<Redis> {
        Redis::start_at(free_port())
    }

    /// The same at a port that must be free.
    fn start_at(port: u16) -> Option<Redis> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.current_dir(std::env::temp_dir()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                skip(&format!("redis-server does not start: {error}"));
                return None;
            }
        };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = child.try_wait().expect("ask for the state of redis-server");
            assert!(ended.is_none(), "redis-server at {port} ended: {ended:?}");
            assert!(started.elapsed() < PATIENCE, "redis-server does not listen at {port}");
            std::thread::sleep(Duration::from_millis(2));
        }
        Some(Redis { child, port })
    }

    fn flags(&self) -> [String; 2] {
        ["host=127.0.0.1".to_owned(), format!("port={}", self.port)]
            .map(|setting| format!("--cache-config=redis,{setting}"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn servers_share_a_redis() {
    let Some(redis) = Redis::start() else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let flags = redis.flags();
        // However slow the machine is, it is Redis that says what is there.
        let patience = ["wait_timeout", "socket_timeout"].map(|key| format!("--cache-config=redis,{key}=60000"));
        let flags = [&*flags[0], &*flags[1], "--cache-config=redis,pool_size=2", &*patience[0], &*patience[1]];
        let servers = [(); 2].map(|()| Server::start(variant, repository.path(), &flags));
        // Numbers of this round's own: Redis has those of the last one.
        let first = 1000 * usize::from(redis.port) + variant.io_engine.len();
        let first = first + 100 * variant.io_cores.to_string().len();
        let before = counts(&servers[0], "cached");
        assert_eq!(before, [0, 0, 0, 0]);
        ask(&servers[0], "cached", first, 3);
        let [hits, misses, ..] = counts(&servers[0], "cached");
        assert_eq!(hits + misses, 1);
        ask(&servers[0], "cached", first, 3);
        ask(&servers[1], "cached", first, 3);
        assert_eq!(counts(&servers[1], "cached"), [1, 0, 1, 0], "the first one's answer");
        assert_eq!(counts(&servers[0], "cached")[0], hits + 1);
        for server in servers {
            server.stop();
        }
    });
}

/// Requests are executed while Redis is away, silent or back; the log says it once.
#[test]
fn a_redis_that_goes_costs_no_request() {
    let Some(mut redis) = Redis::start() else { return };
    let repository = repository();
    let flags = redis.flags();
    // What takes longer was stopped, and is not slow: no request goes by a Redis that answers.
    let patience = ["--cache-config=redis,wait_timeout=60000", "--cache-config=redis,socket_timeout=10000"];
    let flags = [&*flags[0], &*flags[1], patience[0], patience[1]];
    let server = Server::start(usual(), repository.path(), &flags);
    ask(&server, "cached", 1, 3);
    ask(&server, "cached", 1, 3);
    assert_eq!(counts(&server, "cached"), [1, 1, 2, 1]);
    // Stopped, it takes connections and answers nothing.
    signal(redis.child.id(), "STOP");
    (0..5).for_each(|first| ask(&server, "cached", first, 3));
    assert_eq!(counts(&server, "cached"), [1, 6, 7, 6]);
    signal(redis.child.id(), "CONT");
    let port = redis.port;
    let hit = || {
        let started = Instant::now();
        let before = counts(&server, "cached")[0];
        while counts(&server, "cached")[0] == before {
            assert!(started.elapsed() < PATIENCE, "the cache is not used again:\n{}", server.log());
            ask(&server, "cached", 1, 3);
        }
    };
    hit();
    let _ = redis.child.kill();
    let _ = redis.child.wait();
    (0..20).for_each(|first| ask(&server, "cached", 100 + first, 3));
    redis = Redis::start_at(port).expect("it started before");
    // It is empty now; what is executed is kept again.
    hit();
    let log = server.stop();
    drop(redis);
    assert_eq!(log.matches("does not answer, requests do without it").count(), 2, "{log}");
    assert_eq!(log.matches("answers again").count(), 2, "{log}");
}

#[test]
fn a_redis_that_is_not_there_ends_the_start() {
    let repository = repository();
    let location = format!("--model-repository={}", repository.path().display());
    let port = format!("--cache-config=redis,port={}", free_port());
    let (status, _, error) = run_to_end(&[&location, "--cache-config=redis,host=127.0.0.1", &port]);
    assert_eq!(status.code(), Some(1));
    assert!(error.contains("error: creating server: Internal - Failed to initialize RedisCache: "), "{error}");
}
