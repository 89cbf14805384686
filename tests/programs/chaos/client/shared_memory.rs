//! Requests whose tensors lie in shared memory, in objects that are sparse, that are truncated while they are
//! registered, and that a full file system has no pages for.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Shared;
use super::http::{connect, is_last, refusal_of};
use super::vectors::Vector;
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::random::Random;
use nereid_test_support::server::PATIENCE;

/// The input is in the first page; the output is in the last one, which nothing has touched.
const PAGE: u64 = 4096;
const PAGES: u64 = 4;

pub fn run(shared: &Shared, mut random: Random) {
    let Some(mut peer) = connect(shared) else { return };
    while !shared.is_over() {
        let name = format!("chaos-{}-{:x}", std::process::id(), random.next());
        let path = shared.order.shm.join(&name);
        let ran = with_object(shared, &mut peer, &name, &path, &mut random);
        let _ = fs::remove_file(&path);
        if let Err(why) = ran {
            return shared.breaks("shared memory", super::Broken(why));
        }
    }
}

fn post(shared: &Shared, peer: &mut Peer, path: &str, body: &str) -> Result<Answer, String> {
    if !peer.try_send(&request("POST", path, &[], body.as_bytes())) {
        return Err("the server takes no more bytes".to_owned());
    }
    let answer = peer.try_answer()?;
    // A request that is refused unread, for want of memory, ends its connection.
    if is_last(&answer) {
        *peer = Peer::try_connect(shared.order.http).map_err(|error| format!("no connection: {error}"))?;
    }
    Ok(answer)
}

fn with_object(shared: &Shared, peer: &mut Peer, name: &str, path: &Path, random: &mut Random) -> Result<(), String> {
    let Ok(file) = OpenOptions::new().read(true).write(true).create_new(true).open(path) else {
        shared.injects("shared memory refused to a client");
        std::thread::sleep(Duration::from_millis(5));
        return Ok(());
    };
    if file.set_len(PAGES * PAGE).is_err() {
        return Ok(());
    }
    let region = format!("/v2/systemsharedmemory/region/{name}");
    let body = json!({ "key": format!("/{name}"), "offset": 0, "byte_size": PAGES * PAGE }).to_string();
    let registered = post(shared, peer, &format!("{region}/register"), &body)?;
    if registered.status != 200 {
        shared.asks("plain");
        shared.ends("plain", Err(refusal_of(&registered)));
        return Ok(());
    }
    let is_truncated = random.below(20) == 0;
    for at in 0..8 {
        if is_truncated && at == 4 {
            let _ = file.set_len(0);
            shared.injects("shared memory truncated");
        }
        let len = 1 + random.below(900);
        let vector = Vector::of_len(shared, "plain", random, len);
        // The file system may have no page for it; what the server reads then is not this request's.
        let is_written = file.write_all_at(&vector.bytes(), 0).is_ok();
        let is_intact = is_written && !(is_truncated && at >= 4);
        let answer = infer(shared, peer, name, &vector)?;
        let outcome = match answer.status {
            200 if is_intact => {
                let mut bytes = vec![0; 4 * vector.values.len()];
                let is_read = file.read_exact_at(&mut bytes, (PAGES - 1) * PAGE).is_ok();
                Ok(match is_read && *bytes == *vector.bytes() {
                    true => Ok(()),
                    false => Err(format!("the region of {} has other numbers", vector.id)),
                })
            }
            // An answer to what the region held.
            200 => Ok(Ok(())),
            _ => Err(refusal_of(&answer)),
        };
        if !shared.ends("plain", outcome) {
            break;
        }
    }
    let started = Instant::now();
    loop {
        let unregistered = post(shared, peer, &format!("{region}/unregister"), "{}")?;
        match unregistered.status {
            200 => return Ok(()),
            // The memory of requests may be exhausted just now.
            503 if started.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                shared.is_wrong(format!("a region stays registered: {}", unregistered.text()));
                return Ok(());
            }
        }
    }
}

fn infer(shared: &Shared, peer: &mut Peer, region: &str, vector: &Vector) -> Result<Answer, String> {
    let size = 4 * vector.values.len();
    let place = |offset: u64| json!({ "shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset });
    let body = json!({
        "id": vector.id,
        "inputs": [{ "name": "INPUT0", "datatype": "INT32", "shape": [vector.values.len()], "parameters": place(0) }],
        "outputs": [{ "name": "OUTPUT0", "parameters": place((PAGES - 1) * PAGE) }],
    });
    shared.asks("plain");
    post(shared, peer, "/v2/models/plain/infer", &body.to_string())
}
