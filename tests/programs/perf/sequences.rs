//! Sequences with a model that adds up their values, and models with several responses.

use std::path::Path;

use nereid_memory::Slice;
use nereid_perf::{Compression, Expected, Input, Plan, Protocol, Sequences, Template};

use super::plans::{PROTOCOLS, concurrency, measure, plan, rate};
use nereid_test_support::backend;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const LENGTH: usize = 5;

/// A model of tests/backends/sequences.c that adds up the values of a sequence in the row that the sequence has. What a
/// run leaves unfinished keeps its row until it was idle for long enough, so that is not for ever.
fn config(idle_us: u64) -> String {
    format!(
        r#"name: "rows" backend: "sequences" max_batch_size: 2
    input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
    output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
    parameters {{ key: "mode" value {{ string_value: "rows" }} }}
    instance_group {{ kind: KIND_CPU count: 2 }}
    sequence_batching {{ max_sequence_idle_microseconds: {idle_us} direct {{ }}
        control_input {{ name: "READY" control {{ kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }} }}
        control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} }} }}"#
    )
}

/// Sends 1, 2, 3, … and expects their sums: an answer that belongs to another sequence, a request out of order and a
/// wrong mark all show.
fn steps() -> Vec<Template> {
    let step = |n: usize| {
        let bytes = |value: usize| Slice::copy_of(&(value as i32).to_le_bytes());
        Template {
            inputs: vec![Input {
                name: "INPUT0".to_owned(),
                datatype: "INT32".to_owned(),
                shape: vec![1, 1],
                data: bytes(n),
            }],
            expected: Some(vec![Expected { name: "OUTPUT0".to_owned(), data: bytes(n * (n + 1) / 2) }]),
            ..Template::default()
        }
    };
    (1..=LENGTH).map(step).collect()
}

/// As many at a time as the model has places: one that waits for a place waits for others to end.
fn in_sequences(mut plan: Plan) -> Plan {
    plan.work.sequences =
        Some(Sequences { at_once: 6, length: None, length_variation_percent: 0.0, first_id: 100, end_id: Some(130) });
    plan
}

#[test]
fn sequences_are_sent_in_order_and_end() {
    let Some(directory) = backend::compiled("sequences.c") else { return };
    // On a busy machine a sequence may be idle for too long: then it may be so for longer.
    let in_time = [3_000_000, 15_000_000, 60_000_000].into_iter().any(|idle_us| sequences_end(&directory, idle_us));
    assert!(in_time, "sequences are lost");
}

/// False: a sequence was idle for too long.
fn sequences_end(directory: &Path, idle_us: u64) -> bool {
    let repository = Repository::new();
    repository.model("rows", &config(idle_us));
    let flag = format!("--backend-directory={}", directory.display());
    let server = Server::start(usual(), repository.path(), &[&flag]);
    for protocol in PROTOCOLS {
        for compression in [Compression::None, Compression::Gzip] {
            for load in [concurrency(4), rate(2000.0)] {
                let mut plan = in_sequences(plan(&server, protocol, "rows", steps(), 300));
                (plan.load, plan.work.compression, plan.client.threads) = (load, compression, 2);
                plan.records_max = 1000;
                let measured = measure(&plan);
                if measured.errors.counts.keys().any(|text| text.contains("must specify the START flag")) {
                    return false;
                }
                assert_eq!(measured.errors.counts, Default::default(), "{protocol:?} {compression:?}");
                assert_eq!((measured.counts.completed, measured.counts.failed), (300, 0));
                assert!(measured.counts.sequences > 0);
                let ids = || measured.records.iter().map(|record| record.sequence_id.expect("an id"));
                assert!(ids().all(|id| (100..130).contains(&id)));
                for record in &measured.records {
                    let same = |other: &&nereid_perf::Record| {
                        other.sequence_id == record.sequence_id && other.sent_ns > record.sent_ns
                    };
                    let next = measured.records.iter().filter(same).map(|other| other.sent_ns).min();
                    assert!(next.is_none_or(|next_ns| next_ns >= record.responses_ns[0]), "two of one in flight");
                }
            }
        }
    }
    // A plan without them is refused before anything is sent.
    let error = nereid_perf::run(&plan(&server, Protocol::Http, "rows", steps(), 5), &mut ());
    assert!(error.expect_err("no sequences").to_string().contains("scheduled by sequences"));
    server.stop();
    true
}

fn repeat(count: usize) -> Template {
    let input = |name: &str, datatype: &str, data: Vec<u8>| Input {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![(data.len() / 4) as i64],
        data: Slice::copy_of(&data),
    };
    Template {
        inputs: vec![
            input("IN", "INT32", (0..count as i32).flat_map(i32::to_le_bytes).collect()),
            input("DELAY", "UINT32", vec![0; 4 * count]),
            input("WAIT", "UINT32", vec![0; 4]),
        ],
        ..Template::default()
    }
}

#[test]
fn responses_of_decoupled_models_are_counted_until_the_last_one() {
    let repository = Repository::new();
    repository.model(
        "repeat",
        r#"backend: "repeat"
        input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
                { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
        output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
        instance_group [ { kind: KIND_CPU count: 1 } ] model_transaction_policy { decoupled: true }"#,
    );
    let server = Server::start(usual(), repository.path(), &[]);
    let mut wanted = plan(&server, Protocol::GrpcStream, "repeat", vec![repeat(3), repeat(0), repeat(8)], 60);
    (wanted.work.decoupled, wanted.records_max) = (true, 1000);
    for load in [concurrency(4), rate(1000.0)] {
        wanted.load = load;
        let measured = measure(&wanted);
        assert_eq!(measured.errors.counts, Default::default());
        assert_eq!((measured.counts.completed, measured.counts.responses), (60, 20 * 11));
        assert_eq!(measured.histograms.first_response_ns.len(), 40, "a request without a response has no first one");
        assert_eq!(measured.histograms.between_responses_ns.len(), 20 * (2 + 7));
        for record in &measured.records {
            assert_eq!(record.responses_ns.len(), [3, 0, 8][record.template]);
        }
    }
    for protocol in [Protocol::Http, Protocol::GrpcUnary] {
        let error = nereid_perf::run(&plan(&server, protocol, "repeat", vec![repeat(1)], 5), &mut ());
        assert!(error.expect_err("no stream").to_string().contains("gRPC streams only"));
    }
    server.stop();
}
