//! The cost of a request in a worker, in system calls and wake-ups: these counts do not depend on the machine and its
//! load.

use serde_json::{Value, json};

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
    // A thread that spins is not rung for, and a worker that spins does not wait: neither would call the kernel.
    let Some(server) = models::serve(usual(), &repository, &["--spin-us=0"]) else { return };
    let mut peer = Peer::connect(server.http);
    let body = r#"{"inputs":[
        {"name":"INPUT0","datatype":"FP32","shape":[4],"data":[1,2,3,4]},
        {"name":"INPUT1","datatype":"FP32","shape":[4],"data":[10,20,30,40]}]}"#;
    let mut ask = || assert_eq!(peer.post("/v2/models/sums/infer", &[], body.as_bytes()).status, 200);
    // What is imported, allocated and learnt at first is not a request's.
    (0..50).for_each(|_| ask());
    // The process that completed the configuration may still be ending.
    server.wait_until("there is one worker: one model has one instance", || children(server.pid()).len() == 1);
    let worker = children(server.pid())[0];
    let trace = repository.path().join("trace.txt");
    let Some(strace) = Strace::attach(Scope::Process(worker), &trace) else { return };
    (0..REQUESTS).for_each(|_| ask());
    let calls = strace.finish();
    // A few more, now and then, where the interpreter asks for memory.
    let most = 2 * REQUESTS + REQUESTS / 10;
    let shown = &calls[..calls.len().min(40)];
    // The server is not rung for where it does not sleep yet, and the worker does not wait where the next request is
    // there already. Both are rare, but where a machine's other work decides, not so rare as to count on: a trace of a
    // quarter is one of the right process.
    assert!(calls.len() >= REQUESTS / 4, "a trace of {} calls: {shown:#?}", calls.len());
    assert!(calls.len() <= most, "{} system calls for {REQUESTS} requests: {shown:#?}", calls.len());
}

/// What the model `evaluate_async` says to this code.
fn evaluated(peer: &mut Peer, code: &str) -> Value {
    let input = json!({"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]});
    let body = json!({"inputs": [input], "outputs": [{"name": "RESULT"}]});
    let answer = peer.post("/v2/models/evaluate_async/infer", &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.json()["outputs"][0]["data"][0].as_str().map(str::to_owned);
    serde_json::from_str(&text.expect("a text")).expect("JSON")
}

/// An event loop has one eventfd for all of its calls. Their answers ring it once, because the loop does not run before
/// all are there; the model counts the rings, and puts them back.
#[test]
fn the_answers_of_a_burst_of_calls_ring_once() {
    const CODE: &str = r#"
import os, time
from nereid_python import calls

def asked(number):
    return pb.InferenceRequest(model_name="echo", requested_output_names=["OUT"], inputs=[ints("IN", number)])

value = []
for burst in range(5):
    futures = [asked(number).async_exec() for number in range(16)]
    bells = list(calls._bells.values())
    while sum(slot.has_answer() for slot in bells[0].awaited.values()) < 16:
        time.sleep(0.001)
    rung = os.read(bells[0].slot.fd, 8)
    os.write(bells[0].slot.fd, rung)
    responses = await asyncio.gather(*futures)
    numbers = [int(one.output_tensors()[0].as_numpy()[0]) for one in responses]
    value.append([len(bells), int.from_bytes(rung, "little"), numbers == list(range(16))])
"#;
    let repository = models::repository(&["echo", "evaluate_async"]);
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let mut peer = Peer::connect(server.http);
    let burst = json!({"list": [1, 1, true]});
    let all = json!({"list": [burst, burst, burst, burst, burst]});
    assert_eq!(evaluated(&mut peer, CODE), all);
    // A process that replaces the first begins anew.
    let before = models::workers(&server, "evaluate_async");
    let died =
        json!({"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": ["import os; os._exit(9)"]}]});
    peer.post("/v2/models/evaluate_async/infer", &[], died.to_string().as_bytes());
    assert_eq!(evaluated(&mut peer, CODE), all);
    assert_ne!(models::workers(&server, "evaluate_async"), before);
}
