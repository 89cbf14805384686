//! A plain answer must be the answer that is written in steps, also when its JSON was kept.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::api::infer::OutputForm;
use nereid_model_config::{ModelSpec, normalize};
use nereid_request::{Request, Shape, Ticket, WakeUp};
use nereid_scheduler::{Accepted, Refused, Scheduler};

struct Nobody;

impl Scheduler for Nobody {
    fn enqueue(&self, request: Box<Request>) -> Result<Accepted, Refused> {
        Err(Refused { status: Status::unavailable("nobody is here"), request })
    }

    fn cancel(&self, _: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn expire(&self, _: &Ticket) -> WakeUp {
        WakeUp::needless()
    }

    fn stop(&self) {}
}

fn model(name: &str, version: i64) -> Arc<ServedModel> {
    let text = "name: \"m\" backend: \"identity\" input { name: \"I\" data_type: TYPE_UINT8 dims: [ -1 ] } output { \
                name: \"O\" data_type: TYPE_UINT8 dims: [ -1 ] }";
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    Arc::new(ServedModel {
        name: name.to_owned(),
        namespace: String::new(),
        version,
        spec: Arc::new(ModelSpec::new(config).unwrap()),
        statistics: Arc::default(),
        scheduler: Arc::new(Nobody),
        labels: BTreeMap::new(),
        load_duration_secs: 0.0,
        provenance: None,
        checks: nereid_scheduler::Checks::new("m", 1),
        load: Arc::default(),
        pins: AtomicUsize::new(0),
    })
}

fn output(name: &str, datatype: DataType, shape: &[i64], data: &[u8]) -> OutputTensor {
    let data = if data.is_empty() { SmallVec::new() } else { SmallVec::from_iter([Slice::copy_of(data)]) };
    OutputTensor { name: Text::from(name), datatype, shape: Shape::from_slice(shape), data, index: 0, on_device: None }
}

fn form(binary_by_default: bool, outputs: &[(&str, bool, bool)]) -> AnswerForm {
    let outputs = outputs.iter().map(|&(name, binary, is_shared)| OutputForm {
        name: Text::from(name),
        binary,
        class_count: 0,
        is_shared,
    });
    AnswerForm { outputs: outputs.collect(), binary_by_default, ..AnswerForm::default() }
}

/// Head and body, written in steps.
fn in_steps(response: Response, model: &Arc<ServedModel>, form: &AnswerForm, pool: &Pool) -> (String, Vec<u8>) {
    let mut encoder = Encoder::new(response, model, form.clone().into(), pool).unwrap();
    while !encoder.step(pool).unwrap() {}
    shown(encoder.finish())
}

fn shown(mut reply: http1::Response) -> (String, Vec<u8>) {
    (format!("{:?}", reply.head), reply.body.to_vec())
}

fn copy_of(response: &Response) -> Response {
    let mut copy = Response::new(response.id.clone());
    copy.outputs.extend(response.outputs.iter().map(|output| {
        let OutputTensor { name, datatype, shape, data, index, .. } = output;
        OutputTensor {
            name: name.clone(),
            datatype: *datatype,
            shape: shape.clone(),
            data: data.clone(),
            index: *index,
            on_device: None,
        }
    }));
    copy.parameters = response.parameters.clone();
    copy
}

#[test]
fn plain_answers_are_those_that_are_written_in_steps() {
    let pool = Pool::new(1 << 24);
    let (mut answers, mut texts) = (HttpAnswers::default(), Texts::default());
    let models = [model("m", 1), model("m", 2), model("other \"one\"\n", 1)];
    let responses: [&[OutputTensor]; 6] = [
        &[output("O", DataType::Uint8, &[3], &[1, 2, 3])],
        &[output("O", DataType::Uint8, &[1, 3], &[1, 2, 3])],
        &[output("O", DataType::Int8, &[3], &[1, 255, 3])],
        &[
            output("O", DataType::Fp32, &[2], &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]),
            output("P", DataType::Bool, &[1], &[1]),
        ],
        &[output("P", DataType::Uint8, &[0], &[])],
        &[],
    ];
    let forms = [
        form(true, &[]),
        form(false, &[]),
        form(false, &[("O", true, false)]),
        form(false, &[("O", true, false), ("P", false, true)]),
        form(true, &[("O", false, true)]),
    ];
    let mut plain = 0;
    for round in 0..3 {
        for model in &models {
            for outputs in responses {
                for form in &forms {
                    for (id, with_parameters) in [("", false), ("i\"d", true), ("", true), ("7", round == 1)] {
                        let mut response = Response::new(Text::from(id));
                        for output in outputs {
                            response.outputs.push(OutputTensor {
                                name: output.name.clone(),
                                datatype: output.datatype,
                                shape: output.shape.clone(),
                                data: output.data.clone(),
                                index: 0,
                                on_device: None,
                            });
                        }
                        if with_parameters {
                            response.parameters.push(Text::from("a"), Value::Int(-5));
                            response.parameters.push(Text::from("b"), Value::Double(0.5 + f64::from(round)));
                            response.parameters.push(Text::from("c"), Value::String(Text::from("\"")));
                            response.parameters.push(Text::from("d"), Value::Bool(round == 2));
                        }
                        let expected = in_steps(copy_of(&response), model, form, &pool);
                        let brief = write_plainly(&mut response, model, form, (&mut answers, &mut texts), &pool);
                        if let Some(brief) = brief {
                            assert_eq!(shown(brief.into_response(&pool)), expected);
                            plain += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(plain > 900, "{plain}");
}

/// Answers that take several steps, with arrays between descriptions and more text than is collected at once, are those
/// that are written in one go.
#[test]
fn many_outputs_are_written_in_steps_as_in_one_go() {
    let (pool, model) = (Pool::new(1 << 24), model("m", 1));
    for count in [1, 127, 128, 129, 500] {
        for arrays_one_in in [1, 2, 50] {
            let names: Vec<String> = (0..count).map(|at| format!("OUTPUT{at}")).collect();
            let binary: Vec<(&str, bool, bool)> =
                names.iter().enumerate().map(|(at, name)| (&**name, at % arrays_one_in != 0, false)).collect();
            let form = form(false, &binary);
            let mut response = Response::new(Text::from("id"));
            response.parameters.push(Text::from("long"), Value::String(Text::from(&*"p".repeat(20_000))));
            response.outputs.extend(names.iter().map(|name| output(name, DataType::Uint8, &[3], &[1, 2, 3])));
            let mut expected = Vec::new();
            put_id(&response.id, &mut expected);
            let start = expected.len();
            write_json(&response, &model, &form, &mut expected).unwrap();
            // The object goes on behind the id.
            expected.remove(start);
            expected.extend([1u8, 2, 3].repeat(binary.iter().filter(|(_, is_binary, _)| *is_binary).count()));
            let (_, body) = in_steps(response, &model, &form, &pool);
            assert!(body == expected, "{count} outputs, of which one in {arrays_one_in} is an array");
        }
    }
}

#[test]
fn what_needs_more_than_most_is_left_as_it_is() {
    let pool = Pool::new(1 << 24);
    let (mut answers, mut texts) = (HttpAnswers::default(), Texts::default());
    let model = model("m", 1);
    let strings = || output("O", DataType::Bytes, &[1], &[1, 0, 0, 0, b'x']);
    let long = || output("O", DataType::Uint8, &[5000], &[0; 5000]);
    let table: [(Vec<OutputTensor>, AnswerForm); 4] = [
        (vec![strings()], form(false, &[])),
        (vec![long()], form(false, &[])),
        (vec![output("O", DataType::Uint8, &[1], &[1])], AnswerForm { dialect: Dialect::SageMaker, ..form(true, &[]) }),
        ((0..65).map(|n| output(&n.to_string(), DataType::Uint8, &[1], &[1])).collect(), form(true, &[])),
    ];
    for (outputs, form) in table {
        let mut response = Response::new(Text::default());
        response.outputs.extend(outputs);
        let before = copy_of(&response);
        assert!(write_plainly(&mut response, &model, &form, (&mut answers, &mut texts), &pool).is_none());
        assert_eq!(format!("{response:?}"), format!("{before:?}"));
    }
    let mut named = Response::new(Text::default());
    named.parameters.push(Text::from("b"), Value::Bytes(Slice::empty()));
    assert!(write_plainly(&mut named, &model, &form(true, &[]), (&mut answers, &mut texts), &pool).is_none());
}

/// A client may name thousands of outputs in another order than the model has them. What is not where it is expected is
/// looked up in a table, which is made once.
#[test]
fn the_form_of_each_of_many_outputs_is_found_in_any_order() {
    let name = |at: usize| Text::from(&*format!("OUTPUT{at}"));
    for (count, is_reversed, table) in [(4000, false, None), (4000, true, Some(4000)), (16, true, None)] {
        let forms = (0..count).map(|at| OutputForm {
            name: name(at),
            binary: at % 2 == 0,
            class_count: at as u32,
            is_shared: at % 3 == 0,
        });
        let mut outputs: SmallVec<[OutputForm; 2]> = forms.collect();
        if is_reversed {
            outputs.reverse();
        }
        let form = AnswerForm { outputs, ..AnswerForm::default() };
        for at in 0..count {
            let found = (form.of(at, &name(at)), form.is_shared(at, &name(at)));
            assert_eq!(found, ((at % 2 == 0, at as u32), at % 3 == 0), "output {at}");
        }
        assert_eq!(form.places.0.get().map(|places| places.len()), table);
        assert_eq!((form.of(0, &name(count)), form.is_shared(0, &name(count))), ((false, 0), false));
    }
}
