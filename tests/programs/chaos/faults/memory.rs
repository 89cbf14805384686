//! The memory for requests is held by connections that send no end of their requests; the memory of a worker is
//! limited.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use super::{Fault, meanwhile};
use crate::chaos::campaign::Campaign;
use crate::chaos::faults::workers;
use crate::chaos::prober;
use crate::chaos::tally::count;

pub const EXHAUSTED: Fault = Fault { name: "memory of requests exhausted", inject: exhaust };
pub const WORKER_LIMITED: Fault = Fault { name: "memory of a worker limited", inject: limit };

/// Connections and the bytes of each. Of 16 MiB, three quarters are for one address; what no longer fits is refused,
/// and smaller ones fill the rest.
const HELD: [(usize, usize); 3] = [(4, 3 << 20), (4, 1 << 20), (8, 1 << 19)];
/// Numbers of a request that needs memory, of nine bytes each.
const PROBE: usize = 1 << 17;
const PROBES: usize = 50;

fn exhaust(campaign: &mut Campaign) {
    let mut held = Vec::new();
    for bytes in HELD.into_iter().flat_map(|(count, bytes)| std::iter::repeat_n(bytes, count)) {
        let Ok(mut stream) = TcpStream::connect(campaign.site.server.http) else { continue };
        let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
        let head = format!("POST /v2/models/plain/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", bytes + 1);
        // The server may refuse it before it has taken all.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b' '; bytes]));
        held.push(stream);
    }
    // The server may still be about to read what they sent.
    for _ in 0..PROBES {
        let status = probe(campaign);
        if status == 503 {
            campaign.injected(EXHAUSTED.name, 1);
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    meanwhile(campaign);
    campaign.go_on_for(50, 200);
}

/// The status of a request that needs memory: it is answered, or refused for want of it.
fn probe(campaign: &mut Campaign) -> u16 {
    let input = json!({ "name": "INPUT0", "datatype": "INT32", "shape": [PROBE], "data": vec![10_000_000; PROBE] });
    let answer = prober::post(&campaign.site.server, "/v2/models/plain/infer", &json!({ "inputs": [input] }));
    campaign.with_tally(|tally| {
        count(&mut tally.asked, "plain", 1);
        match answer.status {
            200 => count(&mut tally.right, "plain", 1),
            _ => count(tally.refused.entry("plain".to_owned()).or_default(), "503 while memory is exhausted", 1),
        }
    });
    assert!(matches!(answer.status, 200 | 503), "{}: without memory: {}", campaign.place(), answer.text());
    answer.status
}

fn limit(campaign: &mut Campaign) {
    let Some(worker) = workers::any(campaign) else { return };
    let status = std::fs::read_to_string(format!("/proc/{}/statm", worker.as_raw_nonzero())).unwrap_or_default();
    let pages: u64 = status.split_whitespace().next().and_then(|pages| pages.parse().ok()).unwrap_or_default();
    let limit = Rlimit { current: Some(pages * 4096), maximum: getrlimit(Resource::As).maximum };
    let Ok(before) = prlimit(Some(worker), Resource::As, limit) else { return };
    campaign.go_on_for(100, 300);
    // It may have ended for want of memory.
    let _ = prlimit(Some(worker), Resource::As, before);
    campaign.injected(WORKER_LIMITED.name, 1);
}
