//! Instances and their threads as the host sees them (contract/model_config.md sections 5 and 7,
//! contract/schedulers.md section 7, contract/cli.md section 4).

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use super::stages::{backend_flag, said};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::{PATIENCE, Server, free_port, run_to_end};
use nereid_test_support::variant::usual;

const ONE_INSTANCE: &str = "instance_group [ { kind: KIND_CPU count: 1 } ]";

/// An identity model with other instance groups.
fn identity(repository: &Repository, name: &str, groups: &str) {
    let config = identity_config("identity", name, 0, &[Pair::new("INT32", "-1")], "");
    repository.model(name, &config.replace(ONE_INSTANCE, groups));
}

fn staged(repository: &Repository, name: &str, groups: &str) {
    repository.model(name, &format!("backend: \"stages\"\n{groups}\n"));
}

/// The threads of the server, by name.
fn threads(server: &Server) -> Vec<(String, PathBuf)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads of the server");
    let mut found: Vec<(String, PathBuf)> = tasks
        .filter_map(|task| {
            let path = task.ok()?.path();
            // A thread may end between the two looks.
            Some((fs::read_to_string(path.join("comm")).ok()?.trim_end().to_owned(), path))
        })
        .collect();
    found.sort();
    found
}

fn thread_names(server: &Server) -> Vec<String> {
    threads(server).into_iter().map(|(name, _)| name).collect()
}

/// Waits until the names of the threads are as wanted: a thread ends some time after it did its last work.
fn wait_for_threads(server: &Server, what: &str, fits: impl Fn(&[String]) -> bool) {
    let started = Instant::now();
    while !fits(&thread_names(server)) {
        assert!(started.elapsed() < PATIENCE, "{what}: {:?}", thread_names(server));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn allowed_cpus(status: PathBuf) -> String {
    let text = fs::read_to_string(status.join("status")).expect("status of a thread");
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("Cpus_allowed_list").trim().to_owned()
}

fn cpus_of(server: &Server, thread: &str) -> String {
    let all = threads(server);
    let (_, path) = all.into_iter().find(|(name, _)| name == thread).expect("a thread of that name");
    allowed_cpus(path)
}

fn infer(server: &Server, model: &str) -> (u16, String) {
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    let answer = Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body);
    (answer.status, answer.text())
}

/// Starts and expects exit code 1; returns all that was printed.
fn fails_to_start(repository: &Repository, more: &[&str]) -> String {
    let store = format!("--model-repository={}", repository.path().display());
    let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
    let mut flags = vec![store.as_str(), "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--io-cores=1"];
    flags.extend(ports.iter().map(String::as_str));
    flags.extend(more);
    let (status, out, err) = run_to_end(&flags);
    let log = format!("{out}{err}").replace("\\\"", "\"");
    assert_eq!(status.code(), Some(1), "expected the start to fail:\n{log}");
    log
}

#[test]
fn threads_bear_the_names_of_their_instances() {
    let repository = Repository::new();
    identity(&repository, "m", "instance_group [ { count: 2 } ]");
    identity(&repository, "a_model_of_a_long_name", "instance_group [ { count: 2 }, { name: \"special\" count: 1 } ]");
    identity(&repository, "open", "");
    let server = Server::start(usual(), repository.path(), &[]);
    let names = thread_names(&server);
    for name in ["m_0_0", "m_0_1", "a_model_of__0_0", "a_model_of__0_1", "special_0", "open_0"] {
        assert_eq!(names.iter().filter(|known| *known == name).count(), 1, "{name} in {names:?}");
    }
    assert_eq!(infer(&server, "a_model_of_a_long_name").0, 200);
    server.stop();
}

#[test]
fn a_host_policy_binds_the_threads_that_bear_its_name() {
    let ours = allowed_cpus(PathBuf::from("/proc/self"));
    let last = ours.rsplit([',', '-']).next().expect("a core");
    let repository = Repository::new();
    identity(&repository, "bound", "instance_group [ { count: 1 } ]");
    identity(&repository, "free", "instance_group [ { count: 1 host_policy: \"mine\" } ]");
    let flags = [&*format!("--host-policy=cpu,cpu-cores={last},4000")];
    let server = Server::start(usual(), repository.path(), &flags);
    assert_eq!(cpus_of(&server, "bound_0_0"), last);
    assert_eq!(infer(&server, "bound").0, 200);
    assert_eq!(infer(&server, "free").0, 200);
    let free = cpus_of(&server, "free_0_0");
    server.stop();
    // No policy bears that name: it is where it would be without any.
    let server = Server::start(usual(), repository.path(), &[]);
    assert_eq!(free, cpus_of(&server, "free_0_0"));
    server.stop();
}

#[test]
fn a_policy_is_in_force_before_the_backend_sees_the_instance() {
    let Some(backends) = backend_flag() else { return };
    let ours = allowed_cpus(PathBuf::from("/proc/self"));
    let last = ours.rsplit([',', '-']).next().expect("a core");
    let repository = Repository::new();
    staged(&repository, "m", "instance_group [ { count: 1 passive: true }, { count: 1 } ]");
    let policy = format!("--host-policy=cpu,cpu-cores={last}");
    let server = Server::start(usual(), repository.path(), &[&backends, &policy]);
    let log = server.stop();
    let expected = [("m_0_0", 1), ("m_1_0", 0)]
        .map(|(name, passive)| format!("{name} kind 1 device 0 passive {passive} thread {name} cpus {last} most 1"));
    assert_eq!(said(&log, "made"), expected);
    let mut ended = said(&log, "ended");
    ended.sort();
    assert_eq!(ended, ["m_0_0 thread m_0_0", "m_1_0 thread m_1_0"], "where they were made");
}

#[test]
fn a_policy_that_this_host_cannot_meet_fails_the_load() {
    let repository = Repository::new();
    identity(&repository, "m", "instance_group [ { host_policy: \"far\" } ]");
    for (flag, texts) in [
        ("far,numa-node=1000", &["host policy 'far': NUMA node 1000 is not on this host", "node1000/cpulist"][..]),
        (
            "far,cpu-cores=4000-4001",
            &["host policy 'far': none of the cores '4000-4001' is one that this process may use"],
        ),
    ] {
        let log = fails_to_start(&repository, &[&format!("--host-policy={flag}")]);
        for text in texts {
            assert!(log.contains(text), "expected {text:?} in:\n{log}");
        }
        assert!(log.contains("failed to load all models"), "{log}");
    }
    let malformed = fails_to_start(&repository, &["--host-policy=far,cpu-cores=3-"]);
    let text = "Invalid host policy 'far': cpu-cores must be a list of cores like 0-3,8, got '3-'";
    assert!(malformed.contains(text), "{malformed}");
}

/// A sequence stays with its instance, so a backend that wants one thread for a device does not get it then.
#[test]
fn a_sequence_model_overrides_its_backends_execution_policy() {
    let Some(backends) = backend_flag() else { return };
    let repository = Repository::new();
    let tensors = "max_batch_size: 1\ninput { name: \"A\" data_type: TYPE_INT32 dims: [ 1 ] }\n\
                   output { name: \"O\" data_type: TYPE_INT32 dims: [ 1 ] }\n";
    repository.model("plain", &format!("backend: \"stages\"\n{tensors}"));
    repository.model("sequences", &format!("backend: \"stages\"\n{tensors}sequence_batching {{ }}\n"));
    let server = Server::start(usual(), repository.path(), &[&backends, "--backend-config=stages,device=true"]);
    let log = server.stop();
    let text = |model: &str| {
        let words = r#"Overriding execution policy to "TRITONBACKEND_EXECUTION_BLOCKING" for sequence model"#;
        format!("{words} \"{model}\"").replace('"', r#"\""#)
    };
    assert!(log.contains(&text("sequences")) && !log.contains(&text("plain")), "{log}");
}

#[test]
fn passive_instances_take_no_requests() {
    let repository = Repository::new();
    identity(&repository, "half", "instance_group [ { count: 1 passive: true }, { count: 1 } ]");
    identity(&repository, "none", "instance_group [ { count: 2 passive: true } ]");
    let server = Server::start(usual(), repository.path(), &[]);
    let names = thread_names(&server);
    for name in ["half_0_0", "half_1_0", "none_0_0", "none_0_1"] {
        assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
    }
    assert_eq!(infer(&server, "half").0, 200);
    let (status, text) = infer(&server, "none");
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("all instances of the model are passive and take no requests"), "{text}");
    server.stop();
}

/// How many instances were inside their initialisation at once, at most, and how many were made.
fn load_staged(environment: &[(&str, &str)], settings: &[&str], groups: &str) -> Option<(usize, usize)> {
    let backends = backend_flag()?;
    let repository = Repository::new();
    staged(&repository, "m", groups);
    let settings: Vec<String> = settings.iter().map(|setting| format!("--backend-config=stages,{setting}")).collect();
    let mut flags = vec![backends.as_str()];
    flags.extend(settings.iter().map(String::as_str));
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", environment);
    let log = server.stop();
    let made = said(&log, "made");
    let most = made.iter().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).max();
    Some((most?, made.len()))
}

#[test]
fn instances_load_one_by_one_unless_they_may_meet() {
    const PARALLEL: &str = "TRITON_PARALLEL_INSTANCE_LOADING";
    let three = "instance_group [ { count: 3 } ]";
    for (environment, settings, groups, expected) in [
        (&[][..], &[][..], three, (1, 3)),
        (&[], &["parallel=true", "meet=3"], three, (3, 3)),
        (&[(PARALLEL, "1")], &["meet=3"], three, (3, 3)),
        (&[(PARALLEL, "0")], &["parallel=true"], three, (1, 3)),
        (&[(PARALLEL, "no")], &["parallel=true"], three, (1, 3)),
        (&[(PARALLEL, "")], &["parallel=true", "meet=2"], "", (2, 2)),
        (&[], &["groups=4"], "", (1, 4)),
    ] {
        let settings: Vec<&str> = match expected {
            // What the backend would choose where the configuration leaves it open.
            (2, 2) => settings.iter().copied().chain(["groups=2"]).collect(),
            _ => settings.to_vec(),
        };
        let Some(found) = load_staged(environment, &settings, groups) else { return };
        assert_eq!(found, expected, "{environment:?} {settings:?}");
    }
}

#[test]
fn an_instance_that_cannot_be_made_ends_the_load() {
    let Some(backends) = backend_flag() else { return };
    let repository = Repository::new();
    staged(&repository, "m", "instance_group [ { count: 1 host_policy: \"x\" }, { count: 1 host_policy: \"far\" } ]");
    let log = fails_to_start(&repository, &[&backends, "--host-policy=far,numa-node=1000"]);
    assert!(log.contains("host policy 'far': NUMA node 1000 is not on this host"), "{log}");
    assert_eq!(said(&log, "ended"), ["m_0_0 thread m_0_0"], "the first one is not left behind:\n{log}");
}

#[test]
fn instances_come_and_go_while_the_model_serves() {
    let repository = Repository::new();
    identity(&repository, "m", "instance_group [ { count: 2 } ]");
    let server = Server::start(usual(), repository.path(), &["--model-control-mode=explicit", "--load-model=m"]);
    let before: Vec<_> = threads(&server).into_iter().filter(|(name, _)| name.starts_with("m_")).collect();
    assert_eq!(before.len(), 2);
    let load = |groups: &str| {
        // Files are told apart by their times, which the file system may round.
        std::thread::sleep(std::time::Duration::from_millis(20));
        identity(&repository, "m", groups);
        let answer = Peer::connect(server.http).post("/v2/repository/models/m/load", &[], b"{}");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(infer(&server, "m").0, 200);
    };
    let own = |names: &[String]| names.iter().filter(|name| name.starts_with("m_")).cloned().collect::<Vec<_>>();
    load("instance_group [ { count: 3 } ]");
    wait_for_threads(&server, "one more", |names| own(names) == ["m_0_0", "m_0_1", "m_0_2"]);
    let now = threads(&server);
    assert!(before.iter().all(|thread| now.contains(thread)), "the old threads stay: {before:?} in {now:?}");
    load("instance_group [ { count: 1 } ]");
    wait_for_threads(&server, "two fewer", |names| own(names) == ["m_0_0"]);
    assert!(threads(&server).contains(&before[0]));
    load("instance_group [ { count: 1 passive: true }, { count: 1 } ]");
    wait_for_threads(&server, "another one, passive", |names| own(names) == ["m_0_0", "m_0_0"]);
    server.stop();
}
