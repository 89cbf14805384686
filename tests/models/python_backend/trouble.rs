//! The model `trouble`, whose input selects a fault, and observations of the workers of a server.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use super::models;
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{PATIENCE, Server};

/// Adds the model under another name, with further lines of configuration and as many instances.
pub fn add(repository: &Repository, name: &str, instances: usize, more: &str) {
    models::add(repository, "trouble", name);
    let path = repository.path().join(name).join("config.pbtxt");
    let config = fs::read_to_string(&path).expect("the model's configuration");
    let groups = format!("instance_group [ {{ kind: KIND_CPU count: {instances} }} ]");
    fs::write(&path, format!("{config}\n{groups}\n{more}\n")).expect("write the model's configuration");
}

/// `parameters` of the configuration: what the model does in its other methods.
pub fn parameter(name: &str, words: &str) -> String {
    format!("parameters {{ key: \"{name}\" value: {{ string_value: \"{words}\" }} }}\n")
}

pub fn body(words: &str) -> Vec<u8> {
    let tensor = json!({ "name": "DO", "datatype": "BYTES", "shape": [1], "data": [words] });
    json!({ "inputs": [tensor] }).to_string().into_bytes()
}

/// Has a model do something.
pub fn act(peer: &mut Peer, model: &str, words: &str) -> Answer {
    peer.post(&format!("/v2/models/{model}/infer"), &[], &body(words))
}

/// What it did.
pub fn done(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["outputs"][0]["data"][0].as_str().expect("a text").to_owned()
}

/// The process of the one instance of a model, asked by a request.
pub fn worker(peer: &mut Peer, model: &str) -> u32 {
    done(&act(peer, model, "pid")).parse().expect("the number of a process")
}

/// Processes that a process has started and that have not ended.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let mut found: Vec<u32> =
        lists.flat_map(|list| list.split_whitespace().filter_map(|one| one.parse().ok()).collect::<Vec<_>>()).collect();
    found.sort_unstable();
    found
}

/// Whether a process runs; one that has ended and was not waited for does not.
pub fn runs(pid: u32) -> bool {
    !matches!(state(pid), Some('Z' | 'X') | None)
}

/// proc_pid_stat(5), field 3.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Waits for an event that can only be looked for.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "it never comes to pass that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The value of a sample on the page of metrics.
pub fn metric(server: &Server, sample: &str) -> Option<f64> {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let line = page.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok())
}

/// What a server and its workers use of the file system for shared memory: what has no name there cannot stay there.
pub fn shared_names(server: u32) -> Vec<String> {
    let mut found = Vec::new();
    for pid in children(server).into_iter().chain([server]) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        found.extend(maps.lines().filter(|line| line.contains("/dev/shm/")).map(str::to_owned));
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = descriptors.filter_map(|one| fs::read_link(one.path()).ok());
        found.extend(links.map(|link| link.display().to_string()).filter(|link| link.starts_with("/dev/shm/")));
    }
    found
}

/// The same where the worker may have to be started again first, after a pause.
pub fn worker_after_pauses(peer: &mut Peer, model: &str) -> u32 {
    let started = Instant::now();
    loop {
        let answer = act(peer, model, "pid");
        if answer.status == 200 {
            return done(&answer).parse().expect("the number of a process");
        }
        let text = answer.error();
        let begins =
            text.starts_with("Stub process '") || text.starts_with("Failed to process the request(s) for model");
        assert!(begins && started.elapsed() < PATIENCE, "{}: {text}", answer.status);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The model `owing` with so many instances.
pub fn add_owing(repository: &Repository, instances: usize) {
    models::add(repository, "owing", "owing");
    let path = repository.path().join("owing/config.pbtxt");
    let config = fs::read_to_string(&path).expect("the model's configuration");
    fs::write(&path, format!("{config}\ninstance_group [ {{ kind: KIND_CPU count: {instances} }} ]\n"))
        .expect("write the model's configuration");
}

/// Resident memory of a process in KiB; 0 for one that is gone.
pub fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

/// Memory that a server shares with workers, by its descriptors.
pub fn segments(pid: u32) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = descriptors.filter_map(|one| fs::read_link(one.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("/memfd:nereid (")).count()
}
