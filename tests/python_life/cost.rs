//! What a request takes of a worker, in system calls: counts, which say the same on every machine at every hour.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::models;
use crate::support::http::Peer;
use crate::support::server::signal;
use crate::support::skip::skip;
use crate::support::variant::usual;

const REQUESTS: usize = 200;

/// What the process `pid` has started.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads of the server");
    let text = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let text: Vec<String> = text.collect();
    text.iter().flat_map(|text| text.split_whitespace()).filter_map(|child| child.parse().ok()).collect()
}

/// One to wait for it and one to answer it: nothing else is asked of the kernel for a tiny request, which needs no
/// memory, no lock and no clock.
#[test]
fn a_tiny_request_takes_two_system_calls_of_its_worker() {
    let repository = models::repository(&["sums"]);
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let body = r#"{"inputs":[
        {"name":"INPUT0","datatype":"FP32","shape":[4],"data":[1,2,3,4]},
        {"name":"INPUT1","datatype":"FP32","shape":[4],"data":[10,20,30,40]}]}"#;
    let mut ask = || assert_eq!(peer.post("/v2/models/sums/infer", &[], body.as_bytes()).status, 200);
    // What is imported, allocated and learnt at first is not a request's.
    (0..50).for_each(|_| ask());
    let workers = children(server.pid());
    let [worker] = workers[..] else { panic!("one model has one instance, hence one worker: {workers:?}") };
    let trace = repository.path().join("trace.txt");
    let mut strace = Command::new("strace");
    strace.arg("-f").arg("-o").arg(&trace).args(["-p", &worker.to_string()]).stderr(Stdio::piped());
    let Ok(mut strace) = strace.spawn() else { return skip("there is no strace") };
    let mut said = BufReader::new(strace.stderr.take().expect("it is piped"));
    let mut line = String::new();
    // It says so when it is attached, or why it cannot be.
    let is_attached = said.read_line(&mut line).is_ok() && line.contains("attached");
    if !is_attached {
        let _ = strace.kill();
        let _ = strace.wait();
        return skip(&format!("strace may not look at a process: {line}"));
    }
    (0..REQUESTS).for_each(|_| ask());
    signal(strace.id(), "INT");
    strace.wait().expect("strace ends");
    let text = std::fs::read_to_string(&trace).expect("a trace");
    let is_call = |line: &&str| line.contains('(') && !line.contains(" resumed>");
    let calls: Vec<&str> = text.lines().filter(is_call).collect();
    // A few more, now and then, where the interpreter asks for memory.
    let most = 2 * REQUESTS + REQUESTS / 10;
    let shown = &calls[..calls.len().min(40)];
    // Each was answered with one; a wait is left out where the next one was there already.
    assert!(calls.len() >= REQUESTS, "a trace of {} calls: {shown:#?}", calls.len());
    assert!(calls.len() <= most, "{} system calls for {REQUESTS} requests: {shown:#?}", calls.len());
}
