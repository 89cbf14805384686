//! Measures a hit of the response cache, and whether its time grows with the entries: `cargo bench --bench cache`.
//!
//! In this process and on one thread: the key of a small request, the lookup, and the response that would be sent. A
//! cache with one entry is compared with a full one, and insertions into free room with insertions that evict, so that
//! a cache that slows down as it fills shows (triton-inference-server/server#4379).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_request::{Completion, DataType, Delivery, InputTensor, OutputTensor, Request, Response, Shape, Sink, Text};
use nereid_scheduler::cache::{Entry, HashSecret, Inserted, Key, KeyForm, LocalCache};

/// 16 FP32.
const BYTES: usize = 64;
/// Of the full cache.
const ENTRIES: u64 = 200_000;
/// Operations between two reads of the clock, which costs as much as one.
const BATCH: u64 = 32;
const BATCHES: u64 = 20_000;
/// Batches that fill the cache.
const FILLING: u64 = ENTRIES / BATCH;

struct Nowhere;

impl Sink for Nowhere {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

fn main() -> ExitCode {
    let secret = HashSecret::random();
    let requests: Vec<Request> = (0..ENTRIES).map(request).collect();
    let keys: Vec<Key> =
        requests.iter().map(|request| Key::of(request, "identity", 1, secret, KeyForm::Request)).collect();
    let size = entry(keys[0]).byte_size();
    let (small, full) = (LocalCache::new(size * 4), LocalCache::new(size * ENTRIES as usize));
    println!("| ns | median | p99 | p99.9 | most |\n|---|---|---|---|---|");
    if small.put(keys[0], entry(keys[0]), false) != Inserted::Kept {
        eprintln!("an entry is not kept");
        return ExitCode::FAILURE;
    }
    let mut missed = 0;
    let mut hit = |cache: &LocalCache, at: usize| {
        let key = Key::of(&requests[at], "identity", 1, secret, KeyForm::Request);
        match cache.find(key) {
            Some(entry) => drop(std::hint::black_box(entry.response(Text::from("1")))),
            None => missed += 1,
        }
    };
    measure("hit, one entry", BATCHES, |_| hit(&small, 0));
    measure("insertion into free room", FILLING, |number| {
        full.put(keys[number as usize], entry(keys[number as usize]), false);
    });
    measure(&format!("hit, {ENTRIES} entries, all the same"), BATCHES, |_| hit(&full, 0));
    measure(&format!("hit, {ENTRIES} entries, one after the other"), BATCHES, |number| {
        hit(&full, (number.wrapping_mul(7919) % ENTRIES) as usize);
    });
    measure("insertion that throws one out", BATCHES, |number| {
        let key = Key { hash: number.wrapping_mul(0x9e37_79b9_7f4a_7c15), seal: number };
        full.put(key, entry(key), false);
    });
    match missed {
        0 => ExitCode::SUCCESS,
        missed => {
            eprintln!("{missed} lookups found nothing");
            ExitCode::FAILURE
        }
    }
}

fn request(number: u64) -> Request {
    let mut request = Request::new(Completion::new(Arc::new(Nowhere), number));
    let mut input = InputTensor::new(Text::from("INPUT0"), DataType::Fp32, Shape::from_slice(&[16]));
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    input.data.push(Slice::copy_of(&bytes));
    request.inputs.push(input);
    request
}

fn entry(key: Key) -> Arc<Entry> {
    let mut response = Response::default();
    response.outputs.push(OutputTensor {
        name: Text::from("OUTPUT0"),
        datatype: DataType::Fp32,
        shape: Shape::from_slice(&[16]),
        data: [Slice::copy_of(&[7; BYTES])].into_iter().collect(),
        index: 0,
        on_device: None,
    });
    Entry::of(&response, key)
}

/// Prints the distribution of what one operation takes, over batches of them.
fn measure(name: &str, batches: u64, mut operation: impl FnMut(u64)) {
    let mut times: Vec<u64> = (0..batches)
        .map(|batch| {
            let started = Instant::now();
            (batch * BATCH..(batch + 1) * BATCH).for_each(&mut operation);
            started.elapsed().as_nanos() as u64 / BATCH
        })
        .collect();
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!("| {name} | {} | {} | {} | {} |", at(0.5), at(0.99), at(0.999), at(1.0));
}
