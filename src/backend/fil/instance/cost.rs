//! What an instance adds to the call of treelite: `cargo test -p nereid-fil --lib -- --ignored --nocapture cost`.

use std::hint::black_box;
use std::time::Instant;

use crate::fixtures::Asked;
use nereid_backend::Instance;
use nereid_backend::fixtures::{Draft, floats};
use nereid_request::DataType;
use nereid_scheduler::Payload;

const EXECUTIONS: usize = 20_000;

/// Median, 99th percentile and largest, in nanoseconds.
fn distribution(mut times_ns: Vec<u128>) -> String {
    times_ns.sort_unstable();
    let at = |percent: usize| times_ns[(times_ns.len() - 1) * percent / 100];
    format!("p50 {} ns, p99 {} ns, max {} ns", at(50), at(99), at(100))
}

#[test]
#[ignore = "it prints figures and checks none"]
fn cost_of_a_request_beyond_treelite() {
    let Some(model) = Asked::new("xgb_number.json", "xgboost_json", "false").open() else { return };
    let mut instance = model.instance();
    for rows in [1usize, 32] {
        let data = floats(&vec![0.5; rows * 4]);
        let mut whole = Vec::with_capacity(EXECUTIONS);
        for _ in 0..EXECUTIONS {
            let shape = [rows as i64, 4];
            let draft = Draft::new(&model.answers, 0).batch(rows as u64);
            let mut payload = Payload::default();
            payload.push(draft.input(0, DataType::Fp32, &shape, std::slice::from_ref(&data)).outputs([0]));
            let started = Instant::now();
            instance.execute(&mut payload).unwrap();
            whole.push(started.elapsed().as_nanos());
            black_box(model.answers.take());
        }
        let (input, mut output) = (vec![0.5f32; rows * 4], vec![0.0f32; rows]);
        let mut bare = Vec::with_capacity(EXECUTIONS);
        for _ in 0..EXECUTIONS {
            let started = Instant::now();
            instance.forest.predictor.predict(rows, black_box(&input), &mut output).unwrap();
            bare.push(started.elapsed().as_nanos());
        }
        println!("{rows} rows: execution {}; treelite alone {}", distribution(whole), distribution(bare));
    }
}
