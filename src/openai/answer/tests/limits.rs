//! Outputs that a model should not have sent.

use super::{answer, output, plan, refused, respond, string};
use crate::error::Compat;
use crate::request::Operation;
use nereid_memory::Slice;
use nereid_request::{DataType, OutputTensor};

fn refusal(output: OutputTensor) -> crate::error::Refusal {
    answer(plan(Operation::Completions, Compat::Triton, false), [respond([output])]).unwrap_err()
}

#[test]
fn a_text_is_one_string() {
    let mut two = string("text_output", b"a");
    two.shape = [2].into_iter().collect();
    assert_eq!(refusal(two), refused(500, "Expected to find 1 string in the output, found 2 instead."));
    let mut none = string("text_output", b"");
    none.shape = [0].into_iter().collect();
    assert_eq!(refusal(none), refused(500, "Expected to find 1 string in the output, found 0 instead."));
    let short = output("text_output", DataType::Bytes, b"abc");
    let expected = "Expected string buffer to contain its serialized byte size, but found size of 3.";
    assert_eq!(refusal(short), refused(500, expected));
    let floats = output("text_output", DataType::Fp32, &[0; 4]);
    assert_eq!(refusal(floats).status, 500);
}

#[test]
fn a_length_beyond_the_data_is_not_believed() {
    let long = output("text_output", DataType::Bytes, b"\xff\xff\xff\xffab");
    let body = answer(plan(Operation::Completions, Compat::Triton, false), [respond([long])]).unwrap();
    assert!(body.contains(r#""text":"ab""#), "{body}");
}

#[test]
fn a_text_in_pieces_is_one_text() {
    let whole = [&[6, 0, 0, 0][..], "abécd".as_bytes()].concat();
    for cut in 0..=whole.len() {
        for second in cut..=whole.len() {
            let mut pieces = string("text_output", b"");
            pieces.data =
                [&whole[..cut], &whole[cut..second], &whole[second..]].into_iter().map(Slice::copy_of).collect();
            for stream in [false, true] {
                let body = answer(plan(Operation::Completions, Compat::OpenAi, stream), [respond([pieces.clone()])]);
                assert!(body.as_ref().unwrap().contains("\"text\":\"abécd\""), "{cut} {second}: {body:?}");
            }
        }
    }
}

#[test]
fn an_answer_that_is_collected_counts_as_memory() {
    let mut bench = super::Bench::new(plan(Operation::Completions, Compat::OpenAi, false));
    bench.pool = nereid_memory::Pool::new(64 << 10);
    let refused = (0..100).find_map(|_| bench.take(super::text(&"x".repeat(4096)), false).err());
    assert_eq!(refused.map(|refusal| refusal.status), Some(503));
}

#[test]
fn a_text_is_taken_from_the_output_that_the_plan_names() {
    let mut named = plan(Operation::Completions, Compat::OpenAi, false);
    named.output_name = Some("answer".into());
    let body = answer(named, [respond([string("text_output", b"a"), string("answer", b"b")])]).unwrap();
    assert!(body.contains(r#""text":"b""#), "{body}");
}
