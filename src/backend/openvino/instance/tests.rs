//! Executions: batches, types, shapes, memory.

use std::sync::Arc;

use super::*;
use crate::fixtures::{
    bytes_of, config, error_of, floats_of, input, open, open_with, output, pair, single, slice, with_parameters,
};
use nereid_backend::fixtures::as_floats;
use nereid_request::{StateTensor, States};
use nereid_wire::inference::DataType as Type;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::control::Kind as ControlKind;
use nereid_wire::inference::model_sequence_batching::{Control, ControlInput, State};
use nereid_wire::inference::{ModelConfig, ModelSequenceBatching};

macro_rules! opened {
    ($config:expr) => {
        match open($config) {
            Some(result) => result.unwrap(),
            None => return,
        }
    };
}

fn counting(from: usize, count: usize) -> Vec<f32> {
    (from..from + count).map(|number| number as f32).collect()
}

#[test]
fn requests_are_joined_and_answered_by_their_rows() {
    let mut model = opened!(pair(config("add_sub.xml"), 8, Type::TypeFp32, &[16]));
    let values = [(1, 0), (2, 100), (3, 1000)].map(|(rows, from)| (rows, counting(from, rows * 16)));
    let requests: Vec<_> = (1u64..)
        .zip(&values)
        .map(|(key, (rows, values))| model.pair(key, &[*rows as i64, 16], [values, values]))
        .collect();
    let answers = model.execute(requests);
    for (answer, (rows, values)) in answers.iter().zip(&values) {
        let doubled: Vec<f32> = values.iter().map(|value| 2. * value).collect();
        assert_eq!(floats_of(answer, 0), (vec![*rows as i64, 16], doubled));
        assert_eq!(floats_of(answer, 1).1, vec![0.; rows * 16]);
    }
    assert_eq!(model.batches(), 1);
    // A full batch after smaller ones, and a smaller one again.
    for rows in [8, 1, 8] {
        let values = counting(7, rows * 16);
        let request = model.pair(1, &[rows as i64, 16], [&values, &values]);
        assert_eq!(floats_of(&model.execute([request])[0], 0).1[1], 16.);
    }
    let nine = model.pair(1, &[9, 16], [&[0.; 144], &[0.; 144]]);
    assert_eq!(error_of(model.execute([nine]).remove(0)), "batch size 9 for 'm_0', max allowed is 8");
}

#[test]
fn large_outputs_of_known_size_are_written_to_the_memory_of_the_response() {
    const ROWS: usize = 160;
    const { assert!(ROWS * 64 > COPIED_BYTES_MAX) };
    let mut model = opened!(pair(config("add_sub.xml"), 512, Type::TypeFp32, &[16]));
    let values = counting(0, ROWS * 16);
    let shape = [ROWS as i64, 16];
    let request = model.pair(1, &shape, [&values, &values]);
    let before = model.answers.pool.bytes_in_use();
    let answers = model.execute([request]);
    // Both outputs lie in blocks that the response's receiver gave; the model's own pool has nothing.
    assert!(model.answers.pool.bytes_in_use() > before);
    assert_eq!(model.context.model.pool.bytes_in_use(), 0);
    assert_eq!(floats_of(&answers[0], 0).1[31], 62.);
    // Of several requests, one block that all of them share.
    drop(answers);
    let requests = [1, 2].map(|key| model.pair(key, &shape, [&values, &values]));
    let answers = model.execute(requests);
    assert!(model.context.model.pool.bytes_in_use() > 0);
    let data = |at: usize| answers[at].as_ref().unwrap().outputs[0].data[0].clone();
    assert_eq!(data(1).as_ptr().addr() - data(0).as_ptr().addr(), ROWS * 64);
    drop(answers);
    // An output that nobody wants takes none.
    let rows = ROWS as u64;
    let one = model.draft(1).batch(rows).floats(0, &shape, &values).floats(1, &shape, &values).outputs([1]);
    let answers = model.execute([one]);
    assert_eq!(floats_of(&answers[0], 0), (shape.to_vec(), vec![0.; ROWS * 16]));
    drop(answers);
    assert_eq!((model.answers.pool.bytes_in_use(), model.context.model.pool.bytes_in_use()), (0, 0));
}

#[test]
fn tensors_that_stay_set_have_the_numbers_of_each_run() {
    let mut model = opened!(pair(config("add_sub.xml"), 512, Type::TypeFp32, &[16]));
    // Below and above the size that is copied, and each twice.
    for (run, rows) in [1, 1, 2, 160, 160, 1, 160, 2, 2].into_iter().enumerate() {
        let (left, right) = (counting(run, rows * 16), counting(100 * run, rows * 16));
        let request = model.pair(1, &[rows as i64, 16], [&left, &right]);
        let answers = model.execute([request]);
        let sums: Vec<f32> = left.iter().zip(&right).map(|(left, right)| left + right).collect();
        assert_eq!(floats_of(&answers[0], 0), (vec![rows as i64, 16], sums), "run {run}");
    }
    // One output of a run in the library's memory alone.
    let values = counting(3, 160 * 16);
    let draft = model.draft(1).batch(160).floats(0, &[160, 16], &values).floats(1, &[160, 16], &values);
    assert_eq!(floats_of(&model.execute([draft.outputs([0])])[0], 0).1[1], 8.);
    let request = model.pair(1, &[1, 16], [&values[..16]; 2]);
    assert_eq!(floats_of(&model.execute([request])[0], 1).1, [0.; 16]);
}

#[test]
fn every_type_is_computed() {
    let half = |value: f32| -> [u8; 2] {
        // Of small whole numbers: sign, exponent, mantissa.
        let bits = value.to_bits();
        let exponent = ((bits >> 23) & 0xff) as i32 - 127 + 15;
        let short = (((bits >> 16) & 0x8000) | ((exponent as u32) << 10) | ((bits >> 13) & 0x3ff)) as u16;
        if value == 0. { [0; 2] } else { short.to_le_bytes() }
    };
    let encode = |datatype: DataType, value: i64| -> Vec<u8> {
        match datatype {
            DataType::Fp32 => (value as f32).to_le_bytes().to_vec(),
            DataType::Fp16 => half(value as f32).to_vec(),
            other => value.to_le_bytes()[..other.byte_size()].to_vec(),
        }
    };
    use DataType::{Bool, Fp16, Fp32, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    for (file, datatype) in [
        ("i8", Int8),
        ("u8", Uint8),
        ("i16", Int16),
        ("u16", Uint16),
        ("i32", Int32),
        ("u32", Uint32),
        ("i64", Int64),
        ("u64", Uint64),
        ("f16", Fp16),
        ("add_sub", Fp32),
        ("boolean", Bool),
    ] {
        let data_type = Type::try_from(datatype as i32).unwrap();
        let mut model = opened!(pair(config(&format!("{file}.xml")), 4, data_type, &[16]));
        let tensor = |value: i64| slice(&encode(datatype, value).repeat(32));
        let (a, b, sum, difference) = if datatype == Bool { (1, 1, 1, 0) } else { (7, 5, 12, 2) };
        let request = model.draft(1).batch(2);
        let request = request.input(0, datatype, &[2, 16], &[tensor(a)]).input(1, datatype, &[2, 16], &[tensor(b)]);
        let answer = &model.execute([request.outputs([0, 1])])[0];
        assert_eq!(bytes_of(answer, 0), tensor(sum)[..], "{file}");
        assert_eq!(bytes_of(answer, 1), tensor(difference)[..], "{file}");
    }
}

#[test]
fn types_of_the_configuration_are_converted() {
    // The model computes with 64 bits, which requests cannot have.
    let mut model = opened!(pair(config("f64.xml"), 4, Type::TypeFp32, &[16]));
    let request = model.pair(1, &[1, 16], [&[1.5; 16], &[0.25; 16]]);
    assert_eq!(floats_of(&model.execute([request])[0], 0).1, [1.75; 16]);
    // Inputs of one type, outputs of two others.
    let mixed = ModelConfig {
        output: vec![output("OUTPUT0", Type::TypeInt32, &[16]), output("OUTPUT1", Type::TypeFp32, &[16])],
        ..pair(config("add_sub.xml"), 4, Type::TypeInt8, &[16])
    };
    let mut model = opened!(mixed);
    let bytes = |value: u8| slice(&[value; 16]);
    let request = model.draft(1).batch(1);
    let request =
        request.input(0, DataType::Int8, &[1, 16], &[bytes(100)]).input(1, DataType::Int8, &[1, 16], &[bytes(100)]);
    let answer = &model.execute([request.outputs([0, 1])])[0];
    assert_eq!(bytes_of(answer, 0), 200i32.to_le_bytes().repeat(16));
    assert_eq!(floats_of(answer, 1).1, [0.; 16]);
}

#[test]
fn a_model_of_a_fixed_batch_runs_smaller_ones_padded() {
    for parameters in [&[][..], &[("ENABLE_BATCH_PADDING", "YES")]] {
        let mut model =
            opened!(with_parameters(single(config("four_rows.xml"), 4, ["x", "y"], [&[2], &[2]]), parameters));
        // Full after padded, and padded after full.
        for rows in [1, 4, 3, 4, 2] {
            let request = model.single(1, &[rows, 2], &vec![1.; 2 * rows as usize]);
            let (shape, values) = floats_of(&model.execute([request])[0], 0);
            let expected: Vec<f32> = (1..=rows).flat_map(|row| [row as f32 * 100. + 1.; 2]).collect();
            assert_eq!((shape, values), (vec![rows, 2], expected));
        }
        let requests = [model.single(1, &[1, 2], &[1., 1.]), model.single(2, &[2, 2], &[2.; 4])];
        let answers = model.execute(requests);
        assert_eq!(floats_of(&answers[1], 0).1, [202., 202., 302., 302.]);
    }
    // A batch of one needs no open dimension.
    let mut model = opened!(pair(config("add_sub.xml"), 1, Type::TypeFp32, &[16]));
    assert_eq!(model.model.plan_rows(), Rows::Exactly(1));
    let request = model.pair(1, &[1, 16], [&[1.; 16], &[2.; 16]]);
    assert_eq!(floats_of(&model.execute([request])[0], 0).1, [3.; 16]);
}

#[test]
fn shapes_that_the_model_cannot_take_are_refused_and_later_requests_run() {
    let mut model = opened!(pair(config("open.xml"), 8, Type::TypeFp32, &[-1]));
    let mixed = |model: &crate::fixtures::Opened| {
        model.draft(1).batch(1).floats(0, &[1, 2], &[1.; 2]).floats(1, &[1, 3], &[1.; 3]).outputs([0])
    };
    for _ in 0..3 {
        let good = model.pair(1, &[2, 2], [&[1.; 4], &[2.; 4]]);
        assert_eq!(floats_of(&model.execute([good])[0], 0).1, [3.; 4]);
        let request = mixed(&model);
        let error = error_of(model.execute([request]).remove(0));
        assert!(error.starts_with("openvino error in running inference - wait : "), "{error}");
    }
    // The configuration leaves open what the model fixes.
    let mut model = opened!(ModelConfig {
        output: vec![output("OUTPUT0", Type::TypeFp32, &[16])],
        ..pair(config("add_sub.xml"), 8, Type::TypeFp32, &[-1])
    });
    let request = model.draft(1).batch(1).floats(0, &[1, 8], &[1.; 8]).floats(1, &[1, 8], &[1.; 8]).outputs([0]);
    let error = error_of(model.execute([request]).remove(0));
    assert_eq!(error, "input 'INPUT0' has the shape [1,8], but model 'm' takes [-1,16]");
    assert_eq!(model.batches(), 0);
}

/// With one thread the library answers wrongly, or crashes, where it should refuse.
#[test]
fn a_model_that_asks_for_one_thread_refuses_what_others_refuse() {
    for parameters in [&[("INFERENCE_NUM_THREADS", "1")][..], &[]] {
        let given = with_parameters(pair(config("add_sub.xml"), 0, Type::TypeFp32, &[-1, 16]), parameters);
        let Some(model) = open_with(given, |context| context.worker_cpu_count = 1) else { return };
        let mut model = model.unwrap();
        let request = |model: &crate::fixtures::Opened, rows: [usize; 2]| {
            let [a, b] = rows.map(|rows| vec![1.; rows * 16]);
            let draft = model.draft(1).batch(1).floats(0, &[rows[0] as i64, 16], &a);
            draft.floats(1, &[rows[1] as i64, 16], &b).outputs([0])
        };
        for rows in [[4, 4], [4, 3], [8, 3], [2, 2]] {
            let request = request(&model, rows);
            let answer = model.execute([request]).remove(0);
            match rows[0] == rows[1] {
                true => assert_eq!(floats_of(&answer, 0), (vec![rows[0] as i64, 16], vec![2.; rows[0] * 16])),
                false => assert!(error_of(answer).starts_with("openvino error in running inference"), "{rows:?}"),
            }
        }
    }
    let reshaping = ModelConfig {
        input: vec![input("x", Type::TypeFp32, &[-1]), input("shape", Type::TypeInt64, &[2])],
        output: vec![output("y", Type::TypeFp32, &[-1, -1])],
        ..with_parameters(config("reshaping.xml"), &[("INFERENCE_NUM_THREADS", "1")])
    };
    let mut model = opened!(reshaping);
    for (count, shape, fits) in [(6, [2i64, 3], true), (6, [2, 4], false), (8, [2, 4], true)] {
        let target = shape.map(i64::to_le_bytes).concat();
        let draft = model.draft(1).batch(1).floats(0, &[count], &counting(0, count as usize));
        let request = draft.input(1, DataType::Int64, &[2], &[slice(&target)]).outputs([0]);
        let answer = model.execute([request]).remove(0);
        match fits {
            true => assert_eq!(floats_of(&answer, 0), (shape.to_vec(), counting(0, count as usize))),
            false => assert!(error_of(answer).starts_with("openvino error in running inference")),
        }
    }
}

#[test]
fn results_of_unknown_size_are_copied_from_the_librarys_memory() {
    // Height and width are open.
    let images = |dims| single(config("convolution.xml"), 4, ["image", "sums"], [dims, dims]);
    let mut model = opened!(images(&[1, -1, -1]));
    for (rows, height, width) in [(1, 4, 5), (2, 3, 3), (3, 7, 2)] {
        let count = rows * height * width;
        let request = model.single(1, &[rows, 1, height, width], &vec![1.; count as usize]);
        let (shape, values) = floats_of(&model.execute([request])[0], 0);
        assert_eq!(shape, [rows, 1, height, width]);
        // A corner has three neighbours inside, and itself.
        assert_eq!((values.len(), values[0]), (count as usize, 4.));
    }
    // Without batching, the first dimension may be anything.
    let mut model = opened!(single(config("matmul.xml"), 0, ["x", "y"], [&[-1, 8], &[-1, 4]]));
    for rows in [3i64, 1, 5] {
        let request = model.single(1, &[rows, 8], &vec![0.; rows as usize * 8]);
        assert_eq!(floats_of(&model.execute([request])[0], 0), (vec![rows, 4], vec![1.; rows as usize * 4]));
    }
}

#[test]
fn results_of_another_number_of_rows_do_no_harm() {
    // More rows than there is memory for: the first ones are those of the requests.
    let mut model = opened!(single(config("twice.xml"), 4, ["x", "y"], [&[2], &[2]]));
    for rows in [2i64, 3, 1] {
        let values = counting(0, 2 * rows as usize);
        let request = model.single(1, &[rows, 2], &values);
        assert_eq!(floats_of(&model.execute([request])[0], 0), (vec![rows, 2], values));
    }
    // Fewer rows than requests.
    let mut model = opened!(single(config("nonzero_rows.xml"), 4, ["x", "y"], [&[2], &[2]]));
    for _ in 0..2 {
        let request = model.single(1, &[3, 2], &[1., 1., 0., 0., 2., 2.]);
        let error = error_of(model.execute([request]).remove(0));
        assert_eq!(error, "output 'y' of shape [2,2] has fewer rows than its batch");
        let request = model.single(1, &[1, 2], &[5., 6.]);
        assert_eq!(floats_of(&model.execute([request])[0], 0), (vec![1, 2], vec![5., 6.]));
    }
}

#[test]
fn sequence_controls_and_states_are_inputs_and_outputs_of_the_model() {
    let control =
        Control { kind: ControlKind::ControlSequenceStart.into(), fp32_false_true: vec![0., 1.], ..Default::default() };
    let start = ControlInput { name: "START".to_owned(), control: vec![control] };
    let state = State {
        input_name: "state".to_owned(),
        output_name: "total".to_owned(),
        data_type: Type::TypeFp32.into(),
        dims: vec![1],
        ..Default::default()
    };
    let sequence = ModelSequenceBatching { control_input: vec![start], state: vec![state], ..Default::default() };
    let with = |sequence| ModelConfig {
        scheduling_choice: Some(SchedulingChoice::SequenceBatching(sequence)),
        ..single(config("accumulator.xml"), 4, ["x", "total"], [&[1], &[1]])
    };
    let mut model = opened!(with(sequence.clone()));
    let kept = StateTensor {
        input_name: "state".to_owned(),
        output_name: "total".to_owned(),
        datatype: DataType::Fp32,
        shape: Shape::from_slice(&[1, 1]),
        data: slice(&40f32.to_le_bytes()),
    };
    let states = Arc::new(States::new(vec![kept]));
    let mut request = model.draft(1).batch(1).floats(0, &[1, 1], &[2.]).floats(1, &[1, 1], &[0.]);
    request = request.floats(2, &[1, 1], &[40.]);
    let mut request = request.outputs([0]);
    request.states = Some(Arc::clone(&states));
    assert_eq!(floats_of(&model.execute([request])[0], 0).1, [42.]);
    assert_eq!(as_floats(&[states.tensors()[0].data.clone()]), [42.]);
    // A control that the model has no input for.
    let mut unknown = sequence;
    unknown.control_input[0].name = "READY".to_owned();
    let error = error_of(open(with(unknown)).unwrap());
    assert_eq!(error, "configuration specified sequence control 'READY', but model does not provide that input");
}

/// The model has INPUT0, INPUT1, OUTPUT0, OUTPUT1.
#[test]
fn the_configuration_may_name_tensors_in_another_order_than_the_model() {
    // Outputs of known sizes, and others.
    for (file, dims) in [("add_sub.xml", 16), ("open.xml", -1)] {
        let given = pair(config(file), 8, Type::TypeFp32, &[dims]);
        let reversed = |mut given: ModelConfig| {
            given.input.reverse();
            given.output.reverse();
            given
        };
        let mut model = opened!(reversed(given.clone()));
        // The first input of the configuration is the second of the model.
        let request = model.pair(1, &[2, 16], [&[1.; 32], &[5.; 32]]);
        let answer = &model.execute([request])[0];
        assert_eq!(floats_of(answer, 0), (vec![2, 16], vec![4.; 32]), "{file}");
        assert_eq!(floats_of(answer, 1), (vec![2, 16], vec![6.; 32]), "{file}");
        // The second output alone.
        let subset = ModelConfig { output: given.output[1..].to_vec(), ..given };
        let mut model = opened!(subset);
        let draft = model.draft(1).batch(1).floats(0, &[1, 16], &[5.; 16]).floats(1, &[1, 16], &[1.; 16]);
        assert_eq!(floats_of(&model.execute([draft.outputs([0])])[0], 0), (vec![1, 16], vec![4.; 16]), "{file}");
    }
}

#[test]
fn outputs_have_the_shape_of_the_configuration_not_that_of_its_reshape() {
    let mut given = pair(config("add_sub.xml"), 8, Type::TypeFp32, &[4, 4]);
    let reshape = || Some(nereid_wire::inference::ModelTensorReshape { shape: vec![16] });
    given.input.iter_mut().for_each(|input| input.reshape = reshape());
    given.output.iter_mut().for_each(|output| output.reshape = reshape());
    let mut model = opened!(given);
    // Shapes of requests are reshaped before a backend gets them.
    let request = model.pair(1, &[2, 16], [&[1.; 32], &[2.; 32]]);
    let answer = &model.execute([request])[0];
    assert_eq!(floats_of(answer, 0), (vec![2, 4, 4], vec![3.; 32]));
}

#[test]
fn a_state_that_is_no_output_is_kept_and_not_sent() {
    let state = State {
        input_name: "INPUT1".to_owned(),
        output_name: "OUTPUT0".to_owned(),
        data_type: Type::TypeFp32.into(),
        dims: vec![16],
        ..Default::default()
    };
    let sequence = ModelSequenceBatching { state: vec![state], ..Default::default() };
    let mut model = opened!(ModelConfig {
        scheduling_choice: Some(SchedulingChoice::SequenceBatching(sequence)),
        input: vec![input("INPUT0", Type::TypeFp32, &[16])],
        output: vec![output("OUTPUT1", Type::TypeFp32, &[16])],
        ..pair(config("add_sub.xml"), 4, Type::TypeFp32, &[16])
    });
    let kept = StateTensor {
        input_name: "INPUT1".to_owned(),
        output_name: "OUTPUT0".to_owned(),
        datatype: DataType::Fp32,
        shape: Shape::from_slice(&[1, 16]),
        data: slice(&[0; 64]),
    };
    let states = Arc::new(States::new(vec![kept]));
    let draft = model.draft(1).batch(1).floats(0, &[1, 16], &[7.; 16]).floats(1, &[1, 16], &[2.; 16]);
    let mut request = draft.outputs([0]);
    request.states = Some(Arc::clone(&states));
    let answer = model.execute([request]).remove(0);
    assert_eq!(answer.as_ref().unwrap().outputs.len(), 1);
    assert_eq!(floats_of(&answer, 0).1, [5.; 16]);
    assert_eq!(as_floats(&[states.tensors()[0].data.clone()]), [9.; 16]);
}

#[test]
fn two_instances_run_at_the_same_time() {
    let given = with_parameters(single(config("deep.xml"), 64, ["x", "y"], [&[64], &[64]]), &[("NUM_STREAMS", "2")]);
    let first = opened!(given);
    let values: Vec<f32> = counting(0, 64 * 64).iter().map(|value| (value % 13.) / 13.).collect();
    let second = crate::fixtures::Opened {
        instance: nereid_backend::Model::create_instance(Arc::clone(&first.model), first.context.clone()).unwrap(),
        model: Arc::clone(&first.model),
        context: first.context.clone(),
        answers: Arc::default(),
    };
    let run = |mut opened: crate::fixtures::Opened| {
        let values = &values;
        move || {
            let mut results = Vec::new();
            for rows in (1..=64i64).chain(1..=64) {
                let request = opened.single(1, &[rows, 64], &values[..rows as usize * 64]);
                results.push(floats_of(&opened.execute([request])[0], 0).1);
            }
            results
        }
    };
    let (first, second) = std::thread::scope(|scope| {
        let (first, second) = (scope.spawn(run(first)), scope.spawn(run(second)));
        (first.join().unwrap(), second.join().unwrap())
    });
    for (at, (a, b)) in first.iter().zip(&second).enumerate() {
        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1.);
        assert!(a.iter().zip(b).all(close), "{at}");
        assert!(a.iter().any(|value| *value != 0.));
    }
}
