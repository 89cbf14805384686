//! The cost of a request in a worker, in system calls: these counts do not depend on the machine and its load.

use super::models;
use nereid_test_support::http::Peer;
use nereid_test_support::strace::{Scope, Strace};
use nereid_test_support::variant::usual;

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
    let Some(strace) = Strace::attach(Scope::Process(worker), &trace) else { return };
    (0..REQUESTS).for_each(|_| ask());
    let calls = strace.finish();
    // A few more, now and then, where the interpreter asks for memory.
    let most = 2 * REQUESTS + REQUESTS / 10;
    let shown = &calls[..calls.len().min(40)];
    // Each was answered with one; a wait is left out where the next one was there already.
    assert!(calls.len() >= REQUESTS, "a trace of {} calls: {shown:#?}", calls.len());
    assert!(calls.len() <= most, "{} system calls for {REQUESTS} requests: {shown:#?}", calls.len());
}
