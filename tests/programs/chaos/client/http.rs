//! Requests over HTTP: one after another, several at once on one connection, and sequences.

use super::vectors::{Part, Vector};
use super::{Broken, Outcome, Shared};
use crate::chaos::judge::Refusal;
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::random::Random;

const MODELS: [&str; 7] = ["plain", "batched", "echo", "chain", "generation", "flipping", "slow"];
/// Requests at once on a connection.
const PIPELINED: usize = 8;
/// Requests on a connection before the client opens another one.
const KEPT_FOR: usize = 500;

pub fn connect(shared: &Shared) -> Option<Peer> {
    Peer::try_connect(shared.order.http).map_err(|error| shared.is_wrong(format!("no connection: {error}"))).ok()
}

pub fn refusal_of(answer: &Answer) -> Refusal {
    Refusal { code: u32::from(answer.status), text: answer.text() }
}

fn outcome(shared: &Shared, vector: &Vector, answer: &Answer, expected: &[i32]) -> Outcome<Result<(), String>> {
    match answer.status {
        200 => Ok(vector.check_http(shared, answer, expected)),
        _ => Err(refusal_of(answer)),
    }
}

/// Whether the server ends the connection behind this answer, as it does if it does not take the rest of a request.
pub fn is_last(answer: &Answer) -> bool {
    answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
}

/// Sends all at once, and reads all answers; whether the connection can be used again. The server executes no request
/// behind one whose answer says that it is the last.
fn exchange(shared: &Shared, peer: &mut Peer, vectors: &[Vector], random: &mut Random) -> Result<bool, Broken> {
    let bytes: Vec<u8> = vectors.iter().flat_map(|vector| vector.over_http(random.below(2) == 0, None)).collect();
    vectors.iter().for_each(|vector| shared.asks(vector.model));
    // Where it takes no more bytes, it has refused one.
    peer.try_send(&bytes);
    let mut rest = vectors.iter();
    while let Some(vector) = rest.next() {
        let answer = peer.try_answer().map_err(Broken)?;
        shared.ends(vector.model, outcome(shared, vector, &answer, &vector.values));
        if is_last(&answer) {
            rest.for_each(|vector| shared.leaves(vector.model));
            return Ok(false);
        }
    }
    Ok(true)
}

fn run_on(shared: &Shared, mut random: Random, models: &[&'static str]) {
    while !shared.is_over() {
        let Some(mut peer) = connect(shared) else { return };
        for _ in 0..KEPT_FOR {
            let at_once = if random.below(4) == 0 { 1 + random.below(PIPELINED) } else { 1 };
            let any = |random: &mut Random| models[random.below(models.len())];
            let vectors = (0..at_once).map(|_| {
                let model = any(&mut random);
                Vector::new(shared, model, &mut random)
            });
            let vectors: Vec<_> = vectors.collect();
            match exchange(shared, &mut peer, &vectors, &mut random) {
                Err(broken) => return shared.breaks("HTTP", broken),
                Ok(false) => break,
                Ok(true) if shared.is_over() => return,
                Ok(true) => {}
            }
            shared.pause();
        }
    }
}

pub fn run(shared: &Shared, random: Random) {
    run_on(shared, random, &MODELS);
}

pub fn run_victim(shared: &Shared, random: Random) {
    run_on(shared, random, &["victim"]);
}

/// Each answer is the sum of its sequence so far. A sequence whose request was refused is over for the client.
pub fn run_sequences(shared: &Shared, mut random: Random) {
    let Some(mut peer) = connect(shared) else { return };
    while !shared.is_over() {
        let sequence = (random.next() >> 2) | 1;
        let (len, parts) = (1 + random.below(4), 2 + random.below(12));
        let mut sums = vec![0i32; len];
        for at in 0..parts {
            let vector = Vector::of_len(shared, "sums", &mut random, len);
            sums.iter_mut().zip(&vector.values).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
            let part = Part { sequence, is_start: at == 0, is_end: at + 1 == parts };
            shared.asks("sums");
            let is_sent = peer.try_send(&vector.over_http(random.below(2) == 0, Some(part)));
            let answer = match peer.try_answer() {
                Ok(answer) if is_sent => answer,
                Ok(answer) => return shared.breaks("a sequence over HTTP", Broken(answer.text())),
                Err(why) => return shared.breaks("a sequence over HTTP", Broken(why)),
            };
            let is_answered = shared.ends("sums", outcome(shared, &vector, &answer, &sums));
            if is_last(&answer) {
                let Some(another) = connect(shared) else { return };
                peer = another;
            }
            if !is_answered {
                break;
            }
            shared.pause();
        }
    }
}
