//! Joins and splits without a model: a "runtime" that copies its joined input to its output.

use std::sync::Arc;

use super::*;
use crate::fixtures::{Answers, Draft, as_floats, context, floats};
use nereid_model_config::ModelSpec;
use nereid_request::{Code, StateTensor, States};
use nereid_wire::inference::ModelConfig;

fn input(datatype: DataType) -> Input {
    Input { name: "A".to_owned(), index: 0, datatype, is_ragged: false }
}

fn output(index: usize, datatype: DataType) -> Output {
    let shape = OutputShape { dims: Shape::from_slice(&[-1]), reshape: None };
    Output { name: Text::from("OUT"), index, datatype, shape, is_state: false }
}

struct Rig {
    answers: Arc<Answers>,
    pool: Pool,
    context: InstanceContext,
}

impl Rig {
    fn new() -> Rig {
        let config = ModelConfig { name: "m".to_owned(), max_batch_size: 8, ..ModelConfig::default() };
        let model = Arc::new(context("m", Default::default(), config.clone()));
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let (answers, pool) = (Arc::default(), model.pool.clone());
        Rig { answers, pool, context: InstanceContext::new("m_0", spec, model) }
    }

    fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    /// A request with as many rows of two floats as `values` has pairs.
    fn pairs(&self, key: u64, values: &[f32]) -> Draft {
        let rows = values.len() / 2;
        self.draft(key).batch(rows as u64).floats(0, &[rows as i64, 2], values)
    }

    fn strings(&self, key: u64, shape: &[i64], pieces: &[&[u8]]) -> Box<Request> {
        let pieces: Vec<Slice> = pieces.iter().map(|piece| Slice::copy_of(piece)).collect();
        self.draft(key).batch(shape[0] as u64).input(0, DataType::Bytes, shape, &pieces).outputs([0])
    }

    /// Runs `requests` with `run`.
    fn execute(
        &self,
        requests: impl IntoIterator<Item = Box<Request>>,
        max_batch_size: u64,
        run: impl FnMut(&Batch<'_>) -> Result<Computed, Failure>,
    ) -> Vec<(u64, Result<Response, Status>)> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        execute(&self.context, &mut payload, max_batch_size, run);
        assert!(payload.is_empty());
        self.answers.take()
    }

    fn batches(&self) -> u64 {
        self.context.statistics.snapshot().execution_count
    }
}

/// The joined input is the result.
fn echo(batch: &Batch<'_>) -> Result<Computed, Failure> {
    let joined = batch.join(&input(DataType::Fp32))?;
    let produced = Produced { shape: joined.shape, bytes: Bytes::Shared(joined.bytes) };
    Ok((batch.split(&[output(0, DataType::Fp32)], &[Some(produced)])?, Execution::default()))
}

fn wire(elements: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for element in elements {
        bytes.extend_from_slice(&u32::try_from(element.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(element);
    }
    bytes
}

/// A slice whose first byte is `offset` bytes behind an aligned one.
fn slice_at(offset: usize, bytes: &[u8]) -> Slice {
    let mut padded = vec![0; offset];
    padded.extend_from_slice(bytes);
    Slice::copy_of(&padded).window(offset..offset + bytes.len())
}

#[test]
fn the_only_piece_of_the_only_request_is_not_copied() {
    let rig = Rig::new();
    let whole = floats(&[1., 2., 3., 4.]);
    let requests =
        [rig.draft(1).batch(2).input(0, DataType::Fp32, &[2, 2], &[Slice::empty(), whole.clone()]).outputs([0])];
    let joined = Batch::new(&requests, true, &rig.pool).join(&input(DataType::Fp32)).unwrap();
    assert!(joined.bytes.same_memory(&whole), "empty pieces do not count");
    assert_eq!((&joined.shape[..], joined.elements), (&[2, 2][..], 4));
    // Its answer is a window of the same bytes.
    let answers = rig.execute(requests, 8, echo);
    let response = answers[0].1.as_ref().unwrap();
    assert!(response.outputs[0].data[0].same_memory(&whole));
    assert_eq!(rig.pool.bytes_in_use(), 0);
}

#[test]
fn a_copy_shares_no_memory_with_a_request() {
    let rig = Rig::new();
    let whole = floats(&[1., 2.]);
    let requests = [
        rig.draft(1).batch(1).input(0, DataType::Fp32, &[1, 2], std::slice::from_ref(&whole)).outputs([0]),
        rig.draft(2).batch(1).input(0, DataType::Fp32, &[1, 2], std::slice::from_ref(&whole)).outputs([0]),
    ];
    let copies = |count: usize, times: usize| {
        let mut copied = Batch::new(&requests[..count], true, &rig.pool).copy(&input(DataType::Fp32), times).unwrap();
        let values = as_floats(&[Slice::copy_of(&copied.bytes)]);
        copied.bytes.fill(0xff);
        assert_eq!(as_floats(std::slice::from_ref(&whole)), [1., 2.], "the request has its own bytes");
        (copied.shape.to_vec(), values)
    };
    assert_eq!(copies(1, 1), (vec![1, 2], vec![1., 2.]));
    assert_eq!(copies(1, 2), (vec![2, 2], vec![1., 2., 1., 2.]));
    assert_eq!(copies(2, 1), (vec![2, 2], vec![1., 2., 1., 2.]));
    // The number of bytes does not fit the shape, and a tensor without elements.
    let wrong = [rig.draft(3).batch(1).input(0, DataType::Fp32, &[1, 3], std::slice::from_ref(&whole)).outputs([0])];
    let failed = Batch::new(&wrong, true, &rig.pool).copy(&input(DataType::Fp32), 1);
    assert!(matches!(failed, Err(Failure::One(0, _))), "{failed:?}");
    let empty = [rig.draft(4).batch(1).input(0, DataType::Fp32, &[1, 0], &[]).outputs([0])];
    let copied = Batch::new(&empty, true, &rig.pool).copy(&input(DataType::Fp32), 2).unwrap();
    assert_eq!((&copied.shape[..], copied.bytes.len()), (&[2, 0][..], 0));
}

#[test]
fn pieces_and_bytes_at_odd_addresses_are_copied_once() {
    let rig = Rig::new();
    let whole = floats(&[1., 2., 3., 4.]);
    let cut = [whole.window(0..3), whole.window(3..16)];
    for pieces in [&cut[..], &[slice_at(2, &whole)]] {
        let requests = [rig.draft(1).batch(2).input(0, DataType::Fp32, &[2, 2], pieces).outputs([0])];
        let joined = Batch::new(&requests, true, &rig.pool).join(&input(DataType::Fp32)).unwrap();
        assert!(joined.bytes.is_aligned_to(4) && joined.bytes[..] == whole[..]);
    }
    let odd = slice_at(1, &[7, 8]);
    let requests = [rig.draft(1).batch(2).input(0, DataType::Uint8, &[2], std::slice::from_ref(&odd)).outputs([0])];
    let joined = Batch::new(&requests, true, &rig.pool).join(&input(DataType::Uint8)).unwrap();
    assert!(joined.bytes.same_memory(&odd), "bytes have no alignment");
    let requests = [rig.draft(1).batch(2).input(0, DataType::Fp32, &[2, 2], &cut).outputs([0])];
    let Err(Failure::All(status)) = Batch::new(&requests, true, &Pool::new(0)).join(&input(DataType::Fp32)) else {
        panic!("joined without memory");
    };
    assert_eq!(status.code, Code::Unavailable);
}

#[test]
fn requests_are_joined_and_split_by_their_rows() {
    let rig = Rig::new();
    let requests = [
        rig.pairs(1, &[1., 2.]).outputs([0]),
        rig.pairs(2, &[3., 4., 5., 6.]).outputs([0]),
        rig.pairs(3, &[7., 8.]).outputs([]),
    ];
    let answers = rig.execute(requests, 8, |batch| {
        let joined = batch.join(&input(DataType::Fp32))?;
        assert_eq!((batch.rows(), &joined.shape[..], joined.elements), (4, &[4, 2][..], 8));
        assert_eq!(as_floats(&[joined.bytes]), [1., 2., 3., 4., 5., 6., 7., 8.]);
        echo(batch)
    });
    let outputs: Vec<_> = answers.iter().map(|(_, answer)| &answer.as_ref().unwrap().outputs).collect();
    assert_eq!((&outputs[0][0].shape[..], as_floats(&outputs[0][0].data)), (&[1, 2][..], vec![1., 2.]));
    assert_eq!((&outputs[1][0].shape[..], as_floats(&outputs[1][0].data)), (&[2, 2][..], vec![3., 4., 5., 6.]));
    assert_eq!((outputs[2].len(), rig.batches()), (0, 1));
    // Borrowed bytes are copied to the memory of each request.
    let requests = [rig.pairs(1, &[1., 2.]).outputs([0]), rig.pairs(2, &[3., 4.]).outputs([0])];
    drop(answers);
    let answers = rig.execute(requests, 8, |batch| {
        let joined = batch.join(&input(DataType::Fp32))?;
        let produced = Produced { shape: joined.shape, bytes: Bytes::Borrowed(&joined.bytes) };
        Ok((batch.split(&[output(0, DataType::Fp32)], &[Some(produced)])?, Execution::default()))
    });
    assert_eq!(as_floats(&answers[1].1.as_ref().unwrap().outputs[0].data), [3., 4.]);
    assert_eq!((rig.pool.bytes_in_use(), rig.answers.pool.bytes_in_use()), (0, 1024));
}

#[test]
fn padding_is_zeros_behind_the_rows_and_is_cut_off() {
    let rig = Rig::new();
    let answers = rig.execute([rig.pairs(1, &[1., 2.]).outputs([0])], 8, |batch| {
        let joined = batch.join_padded(&input(DataType::Fp32), 3)?;
        assert_eq!((&joined.shape[..], joined.elements), (&[3, 2][..], 6));
        assert_eq!(as_floats(std::slice::from_ref(&joined.bytes)), [1., 2., 0., 0., 0., 0.]);
        let produced = Produced { shape: joined.shape, bytes: Bytes::Shared(joined.bytes) };
        Ok((batch.split(&[output(0, DataType::Fp32)], &[Some(produced)])?, Execution::default()))
    });
    let response = answers[0].1.as_ref().unwrap();
    assert_eq!((&response.outputs[0].shape[..], as_floats(&response.outputs[0].data)), (&[1, 2][..], vec![1., 2.]));
    // The block had other content before.
    let mut block = rig.pool.get(24).unwrap();
    block.fill(0xff);
    drop(block);
    let requests = [rig.pairs(1, &[1., 2.]).outputs([0])];
    let joined = Batch::new(&requests, true, &rig.pool).join_padded(&input(DataType::Fp32), 3).unwrap();
    assert_eq!(joined.bytes[8..], [0; 16]);
}

#[test]
fn a_request_that_cannot_be_joined_fails_alone() {
    let rig = Rig::new();
    let data = [floats(&[9.; 3])];
    let requests = [
        rig.pairs(1, &[1., 2.]).outputs([0]),
        rig.draft(2).batch(1).outputs([0]),
        rig.draft(3).batch(1).input(0, DataType::Fp32, &[1, 3], &data).outputs([0]),
        rig.draft(4).batch(1).input(0, DataType::Fp32, &[1, 2], &data).outputs([0]),
        rig.draft(5).batch(2).input(0, DataType::Fp32, &[3, 1], &data).outputs([0]),
        rig.draft(6).batch(1).floats(0, &[1, 2], &[8., 9.]).outputs([7]),
        rig.pairs(7, &[3., 4.]).outputs([0]),
    ];
    let answers = rig.execute(requests, 8, echo);
    let error = |key| {
        let (_, answer) = answers.iter().find(|(found, _)| *found == key).unwrap();
        answer.as_ref().err().map(|status| status.message.to_string())
    };
    assert_eq!((error(1), error(7)), (None, None));
    assert_eq!(error(2).unwrap(), "failed to get input 'A'");
    assert_eq!(error(3).unwrap(), "requests of a batch differ in the shape of 'A'");
    assert_eq!(error(4).unwrap(), "input 'A' has 12 bytes, which do not fit its shape [1,2]");
    assert_eq!(error(5).unwrap(), "input 'A' has the shape [3,1], but the request's batch size is 2");
    assert_eq!(error(6).unwrap(), "the model has no output 'out'");
    assert_eq!(rig.batches(), 1);
}

#[test]
fn a_batch_over_the_limit_and_a_result_with_too_few_rows_fail_whole() {
    let rig = Rig::new();
    let two = || [rig.pairs(1, &[1., 2.]).outputs([0]), rig.pairs(2, &[3., 4.]).outputs([0])];
    let messages = |answers: Vec<(u64, Result<Response, Status>)>| -> Vec<String> {
        answers.into_iter().map(|(_, answer)| answer.unwrap_err().message.to_string()).collect()
    };
    let answers = messages(rig.execute(two(), 1, |_| panic!("runs")));
    assert_eq!(answers, ["batch size 2 for 'm_0', max allowed is 1"; 2]);
    let short = |shape: &'static [i64], bytes: usize| {
        messages(rig.execute(two(), 8, |batch| {
            let bytes = Bytes::Shared(Slice::copy_of(&vec![0; bytes]));
            let produced = Produced { shape: Shape::from_slice(shape), bytes };
            Ok((batch.split(&[output(0, DataType::Fp32)], &[Some(produced)])?, Execution::default()))
        }))
    };
    let text = |shape: &str| format!("output 'OUT' of shape {shape} has fewer rows than its batch");
    assert_eq!(short(&[1, 2], 8), [text("[1,2]"), text("[1,2]")]);
    assert_eq!(short(&[2, 2], 12), [text("[2,2]"), text("[2,2]")], "fewer bytes than the shape says");
    assert_eq!(short(&[], 4), [text("[]"), text("[]")]);
    assert_eq!(short(&[i64::MAX, i64::MAX], 8).len(), 2);
    assert_eq!(rig.batches(), 0, "no batch counts of which every request failed");
}

#[test]
fn without_batching_a_request_is_the_whole_tensor() {
    let rig = Rig::new();
    let request = rig.draft(1).batch(1).floats(0, &[3], &[1., 2., 3.]).outputs([0]);
    let answers = rig.execute([request], 0, echo);
    let response = answers[0].1.as_ref().unwrap();
    assert_eq!((&response.outputs[0].shape[..], as_floats(&response.outputs[0].data)), (&[3][..], vec![1., 2., 3.]));
}

#[test]
fn ragged_inputs_lie_one_behind_the_other() {
    let rig = Rig::new();
    let requests = [
        rig.draft(1).batch(1).floats(0, &[1, 3], &[1., 2., 3.]).outputs([]),
        rig.draft(2).batch(1).floats(0, &[1, 1], &[4.]).outputs([]),
    ];
    let ragged = Input { is_ragged: true, ..input(DataType::Fp32) };
    let joined = Batch::new(&requests, true, &rig.pool).join(&ragged).unwrap();
    assert_eq!((&joined.shape[..], as_floats(&[joined.bytes])), (&[4][..], vec![1., 2., 3., 4.]));
}

#[test]
fn a_shape_without_a_size_is_the_fault_of_its_request_alone() {
    let rig = Rig::new();
    let strings = |key, shape: &[i64]| rig.draft(key).batch(1).input(0, DataType::Bytes, shape, &[]).outputs([]);
    let ragged = Input { is_ragged: true, ..input(DataType::Bytes) };
    for (shape, fault) in [([1, -1], "[1,-1] has no size"), ([i64::MAX, 2], "[9223372036854775807,2] is too large")] {
        let requests = [strings(1, &[1, 0]), strings(2, &shape)];
        let Err(Failure::One(1, status)) = Batch::new(&requests, true, &rig.pool).join_strings(&ragged) else {
            panic!("{shape:?} is not refused alone")
        };
        assert_eq!(status.message, format!("input 'A' of shape {fault}"));
    }
    let open = [strings(1, &[-1, 1])];
    let failure = Batch::new(&open, false, &rig.pool).join_strings(&input(DataType::Bytes)).unwrap_err();
    assert!(matches!(failure, Failure::All(status) if status.message == "input 'A' of shape [-1,1] has no size"));
}

#[test]
fn memory_for_an_output_is_the_clients_own_if_one_request_has_all_rows() {
    let rig = Rig::new();
    let out = output(0, DataType::Fp32);
    let one = [rig.pairs(1, &[1., 2.]).outputs([0])];
    let target = Batch::new(&one, true, &rig.pool).allocate(&out, 8).unwrap();
    assert_eq!((target.len(), rig.pool.bytes_in_use(), rig.answers.pool.bytes_in_use()), (8, 0, 512));
    drop(target);
    for requests in [
        vec![rig.pairs(1, &[1., 2.]).outputs([0]), rig.pairs(2, &[1., 2.]).outputs([0])],
        vec![rig.pairs(1, &[1., 2.]).outputs([])],
    ] {
        let batch = Batch::new(&requests, true, &rig.pool);
        assert_eq!(batch.wants(&out), requests.len() == 2);
        let _target = batch.allocate(&out, 8).unwrap();
        assert_eq!((rig.pool.bytes_in_use(), rig.answers.pool.bytes_in_use()), (512, 0));
    }
}

#[test]
fn states_are_updated_with_copies_of_their_rows() {
    let rig = Rig::new();
    let state = StateTensor {
        input_name: "IN".to_owned(),
        output_name: "OUT".to_owned(),
        datatype: DataType::Fp32,
        shape: Shape::new(),
        data: Slice::empty(),
    };
    let states: Arc<States> = Arc::new(States::new(vec![state]));
    let mut request = rig.pairs(1, &[1., 2.]).outputs([]);
    request.states = Some(Arc::clone(&states));
    let out = Output { is_state: true, index: usize::MAX, ..output(0, DataType::Fp32) };
    let other = rig.pairs(2, &[3., 4.]).outputs([]);
    let answers = rig.execute([other, request], 8, |batch| {
        assert!(batch.wants(&out));
        let joined = batch.join(&input(DataType::Fp32))?;
        let produced = Produced { shape: joined.shape, bytes: Bytes::Shared(joined.bytes) };
        Ok((batch.split(std::slice::from_ref(&out), &[Some(produced)])?, Execution::default()))
    });
    assert!(answers.iter().all(|(_, answer)| answer.is_ok()));
    let kept = &states.tensors()[0];
    assert_eq!((&kept.shape[..], as_floats(std::slice::from_ref(&kept.data))), (&[1, 2][..], vec![1., 2.]));
}

#[test]
fn strings_are_found_across_every_cut_and_go_back_as_they_came() {
    let rig = Rig::new();
    let elements: [&[u8]; 4] = [b"abc", b"", b"a\0b", b"\xff\xfe"];
    let bytes = wire(&elements);
    for first in 0..=bytes.len() {
        let cut = [&bytes[..first], &bytes[first..]];
        let requests = [rig.strings(1, &[2], &[&wire(&[b"x", b"y"])]), rig.strings(2, &[4], &cut)];
        let joined = Batch::new(&requests, true, &rig.pool).join_strings(&input(DataType::Bytes)).unwrap();
        assert_eq!((&joined.shape[..], joined.len()), (&[6][..], 6));
        assert_eq!(joined.iter().skip(2).collect::<Vec<_>>(), elements, "{first}");
    }
    rig.answers.take();
    let requests = [rig.strings(1, &[1], &[&wire(&[b"x"])]), rig.strings(2, &[4], &[&bytes])];
    let answers = rig.execute(requests, 8, |batch| {
        let joined = batch.join_strings(&input(DataType::Bytes))?;
        let strings: Vec<&[u8]> = joined.iter().collect();
        let encoded = EncodedStrings::encode(strings.into_iter(), "OUT", &rig.pool)?;
        let produced = Produced { shape: joined.shape.clone(), bytes: Bytes::Strings(&encoded) };
        Ok((batch.split(&[output(0, DataType::Bytes)], &[Some(produced)])?, Execution::default()))
    });
    let data = |at: usize| answers[at].1.as_ref().unwrap().outputs[0].data[0].to_vec();
    assert_eq!((data(0), data(1)), (wire(&[b"x"]), bytes));
    assert!(EncodedStrings::encode([&b"x"[..]].into_iter(), "OUT", &Pool::new(0)).is_err());
}

#[test]
fn malformed_strings_fail_their_request_with_the_texts_of_the_contract() {
    let rig = Rig::new();
    let short = [&wire(&[b"abc"])[..], &[9, 0, 0, 0, 1]].concat();
    let huge = [0xffu8; 8];
    let cases: [(&[u8], &str); 5] = [
        (&wire(&[b"a", b"b", b"c"]), "unexpected number of string elements 3 for inference input 'A', expecting 2"),
        (
            &short,
            "incomplete string data for inference input 'A', expecting string of length 9 but only 1 bytes available",
        ),
        (
            &huge,
            "incomplete string data for inference input 'A', expecting string of length 4294967295 but only 4 bytes \
             available",
        ),
        (&wire(&[b"a"]), "expected 2 strings for inference input 'A', got 1"),
        (&[1, 2, 3], "expected 2 strings for inference input 'A', got 0"),
    ];
    for (bytes, text) in cases {
        let requests = [rig.strings(1, &[1], &[&wire(&[b"x"])]), rig.strings(2, &[2], &[bytes])];
        let Err(Failure::One(1, status)) = Batch::new(&requests, true, &rig.pool).join_strings(&input(DataType::Bytes))
        else {
            panic!("{text}");
        };
        assert_eq!((status.code, &*status.message), (Code::InvalidArg, text));
    }
    // A shape that promises more than there is takes no memory.
    let requests = [rig.strings(1, &[i64::MAX], &[&wire(&[b"x"])])];
    let refused = Batch::new(&requests, true, &rig.pool).join_strings(&input(DataType::Bytes));
    assert!(matches!(refused, Err(Failure::One(0, _))));
}

#[test]
fn a_flat_result_is_split_by_the_shapes_of_an_input() {
    let rig = Rig::new();
    let ragged = |key, values: &[f32], outputs: &[usize]| {
        let draft = rig.draft(key).batch(1).floats(0, &[1, values.len() as i64], values);
        draft.outputs(outputs.iter().copied())
    };
    let requests =
        [ragged(1, &[1.], &[0]), ragged(2, &[9., 9.], &[]), ragged(3, &[2., 3., 4.], &[0]), ragged(4, &[], &[0])];
    let flat = Input { is_ragged: true, ..input(DataType::Fp32) };
    let scatters = [Some(Scatter { source: 0 })];
    let answers = rig.execute(requests, 8, |batch| {
        let joined = batch.join(&flat)?;
        assert_eq!(joined.shape[..], [6]);
        let produced = [Some(Produced { shape: joined.shape, bytes: Bytes::Shared(joined.bytes) })];
        Ok((batch.split_scattered(&[output(0, DataType::Fp32)], &produced, &scatters)?, Execution::default()))
    });
    let got = |at: usize| {
        let outputs = &answers[at].1.as_ref().unwrap().outputs;
        outputs.first().map(|output| (output.shape.to_vec(), as_floats(&output.data)))
    };
    assert_eq!(got(0), Some((vec![1, 1], vec![1.])));
    assert_eq!(got(1), None, "its share is skipped");
    assert_eq!((got(2), got(3)), (Some((vec![1, 3], vec![2., 3., 4.])), Some((vec![1, 0], vec![]))));
    // The model gave fewer elements than the inputs have.
    let answers = rig.execute([ragged(1, &[1., 2.], &[0])], 8, |batch| {
        let bytes = Bytes::Shared(floats(&[1.]));
        let produced = [Some(Produced { shape: Shape::from_slice(&[1]), bytes })];
        Ok((batch.split_scattered(&[output(0, DataType::Fp32)], &produced, &scatters)?, Execution::default()))
    });
    let error = answers[0].1.as_ref().unwrap_err();
    assert_eq!(error.message, "output 'OUT' of shape [1] has fewer elements than its batch");
}

#[test]
fn a_described_batch_lists_the_elements_of_each_request() {
    use nereid_wire::inference::BatchInput;
    let rig = Rig::new();
    let given =
        BatchInput { target_name: vec!["COUNTS".into()], data_type: DataType::Fp32 as i32, ..Default::default() };
    let tensor = BatchInputTensor::new(&given, 0);
    let requests = [rig.pairs(1, &[1., 2.]).outputs([0]), rig.pairs(2, &[1., 2., 3., 4.]).outputs([0])];
    let (shape, bytes) = tensor.make_for(&Batch::new(&requests, true, &rig.pool)).unwrap();
    assert_eq!((&shape[..], as_floats(&[bytes])), (&[2][..], vec![2., 4.]));
    let requests = [rig.draft(3).batch(1).outputs([0])];
    let error = tensor.make_for(&Batch::new(&requests, true, &rig.pool)).unwrap_err();
    assert_eq!(error.message, "some request has no input that 'COUNTS' could describe");
}

#[test]
fn no_rows_have_no_elements_however_large_an_item_is() {
    let shape = [0, 2, 1 << 62];
    assert_eq!(part(&shape, Some((0, 0))), Some((Shape::from_slice(&shape), 0..0)));
    assert_eq!(part(&[1, 2, 1 << 62], Some((0, 1))), None);
}

#[test]
fn many_inputs_and_outputs_are_found_in_any_order() {
    let rig = Rig::new();
    let count = 40;
    let orders: [Vec<usize>; 3] =
        [(0..count).collect(), (0..count).rev().collect(), (0..count).map(|at| at * 7 % count).collect()];
    for order in &orders {
        let mut draft = rig.draft(1).batch(1);
        for &at in order {
            draft = draft.input(at, DataType::Fp32, &[1, 1], &[floats(&[at as f32])]);
        }
        // All but one are requested.
        let wanted: Vec<usize> = order.iter().rev().copied().filter(|at| *at != 5).collect();
        let outputs: Vec<Output> = (0..count).map(|at| output(at, DataType::Fp32)).collect();
        let answers = rig.execute([draft.outputs(wanted.iter().copied())], 8, |batch| {
            let of_input = |at: usize| Input { index: at, ..input(DataType::Fp32) };
            assert_eq!(batch.inputs(count).collect::<Vec<_>>().len(), 1);
            assert!(batch.inputs(count).all(|tensor| tensor.is_none()));
            let mut produced = Vec::new();
            for (at, output) in outputs.iter().enumerate() {
                assert_eq!(batch.wants(output), at != 5, "{at} of {order:?}");
                let joined = batch.join(&of_input(at))?;
                produced.push(Some(Produced { shape: joined.shape, bytes: Bytes::Shared(joined.bytes) }));
            }
            Ok((batch.split(&outputs, &produced)?, Execution::default()))
        });
        let response = answers[0].1.as_ref().unwrap();
        let made = response.outputs.iter().map(|output| (output.index, as_floats(&output.data)));
        let expected = wanted.iter().map(|&at| (at, vec![at as f32]));
        assert!(made.eq(expected), "{order:?}");
    }
}
