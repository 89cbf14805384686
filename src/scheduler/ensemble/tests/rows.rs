//! The rows of contract/schedulers.md section 5, one after the other.

use std::sync::atomic::AtomicUsize;

use super::super::flow::with_looked_at_max;
use super::*;
use nereid_request::{CorrelationId, NeverWaits, SEQUENCE_END, SEQUENCE_START, Value as Parameter};

fn decoupled(name: &str, inputs: &str, outputs: &str) -> ModelSpec {
    model(name, inputs, outputs, "model_transaction_policy { decoupled: true }")
}

const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";

#[test]
fn a_step_runs_when_all_its_inputs_are_there() {
    let steps = ["top I=X -> O=A P=B", "left I=A -> O=C", "right I=B -> O=D", "join I=C J=D K=A -> O=Y"];
    let spec = ensemble("X", "Y", &steps, "", "");
    let parts = vec![
        model("top", "I", "O P", ""),
        model("left", "I", "O", ""),
        model("right", "I", "O", ""),
        model("join", "I J K", "O", ""),
    ];
    let bench = Bench::new(spec, parts);
    let _ticket = bench.send(1, &[("X", "x")]);
    let waiting = |bench: &Bench| ["top", "left", "right", "join"].map(|part| bench.waiting(part));
    assert_eq!(waiting(&bench), [1, 0, 0, 0]);
    bench.answer("top");
    assert_eq!(waiting(&bench), [0, 1, 1, 0]);
    bench.answer("right");
    assert_eq!(waiting(&bench), [0, 1, 0, 0]);
    bench.answer("left");
    assert_eq!(waiting(&bench), [0, 0, 0, 1]);
    assert_eq!(bench.answered(1), "");
    bench.answer("join");
    assert_eq!(bench.answered(1), "Y=join.O(left.O(top.O(x)),right.O(top.P(x)),top.O(x)).");
    let seen = bench.statistics.snapshot();
    assert_eq!((seen.success.count, seen.execution_count, seen.inference_count, seen.pending), (1, 1, 1, 0));
    assert_eq!(seen.batch_stats.first().map(|batch| batch.batch_size), Some(1));
}

/// More than a step or a response looks at one by one.
#[test]
fn what_joins_many_tensors_waits_for_all_of_them() {
    let count = 12;
    let names = |kind: &str| (0..count).map(|at| format!("{kind}{at:02}")).collect::<Vec<_>>().join(" ");
    let mut steps: Vec<String> = (0..count).map(|at| format!("p{at:02} I=X -> O=A{at:02}")).collect();
    let joined: String = (0..count).map(|at| format!("I{at:02}=A{at:02} ")).collect();
    steps.push(format!("join {joined}-> O=Y"));
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let spec = ensemble("X", &format!("Y {}", names("A")), &steps, "", "");
    let mut parts: Vec<_> = (0..count).map(|at| model(&format!("p{at:02}"), "I", "O", "")).collect();
    parts.push(model("join", &names("I"), "O", ""));
    let bench = Bench::new(spec, parts);
    for key in [1, 2] {
        let _ticket = bench.send(key, &[("X", "x")]);
        for at in 0..count {
            assert_eq!(bench.waiting("join"), 0, "after {at} of {count}");
            bench.answer(&format!("p{:02}", (at * 5 + 3) % count));
        }
        assert_eq!((bench.waiting("join"), &*bench.answered(key)), (1, ""));
        bench.answer("join");
        let made: Vec<String> = (0..count).map(|at| format!("p{at:02}.O(x)")).collect();
        let outputs: String = made.iter().enumerate().map(|(at, text)| format!(" A{at:02}={text}")).collect();
        assert_eq!(bench.answered(key), format!("Y=join.O({}){outputs}.", made.join(",")));
    }
}

/// What a step or a response joins may be left out, may come often or once, may fail, and may have other readers.
#[test]
fn what_is_counted_joins_as_what_is_looked_at() {
    with_looked_at_max(1, || {
        a_step_runs_when_all_its_inputs_are_there();
        optional_inputs_may_stay_absent_and_outputs_too();
        one_tensor_goes_to_two_inputs_of_a_step();
        decoupled_steps_run_those_behind_them_for_each_response();
        what_comes_once_joins_the_first_response_only();
        an_ensemble_that_must_answer_says_if_it_cannot();
        the_first_error_is_sent_when_all_begun_steps_have_ended();
        joins_that_no_requested_output_needs_are_not_made();
        responses_of_decoupled_steps_are_joined_by_their_numbers();
    });
}

#[test]
fn joins_that_no_requested_output_needs_are_not_made() {
    let steps = ["p I=X -> O=A", "q I=X -> O=B", "join I=A J=B -> O=Y"];
    let spec = ensemble("X", "Y A B", &steps, "", "");
    let one = |name: &str| model(name, "I", "O", "");
    let bench = Bench::new(spec, vec![one("p"), one("q"), model("join", "I J", "O", "")]);
    for (key, wanted) in [(1, "B A"), (2, "Y"), (3, "A"), (4, "A Y B")] {
        let mut request = request_to(&bench.spec, &bench.client, key, &[("X", "x")]);
        for output in wanted.split(' ') {
            crate::validate::add_output(&mut request, Text::from(output)).unwrap();
        }
        let _ticket = bench.hand_in(request);
        for part in ["q", "p"].into_iter().filter(|part| bench.waiting(part) > 0) {
            assert_eq!((bench.waiting("join"), bench.answered(key).as_str()), (0, ""), "{wanted}");
            bench.answer(part);
        }
        assert_eq!(bench.waiting("join"), usize::from(wanted.contains('Y')), "{wanted}");
        if wanted.contains('Y') {
            bench.answer("join");
        }
        let text = |output| match output {
            "A" => "A=p.O(x)",
            "B" => "B=q.O(x)",
            _ => "Y=join.O(p.O(x),q.O(x))",
        };
        let expected = wanted.split(' ').map(text).collect::<Vec<_>>().join(" ");
        assert_eq!(bench.answered(key), expected + ".", "{wanted}");
    }
}

#[test]
fn responses_of_decoupled_steps_are_joined_by_their_numbers() {
    let steps = ["c I=X -> O=A", "d I=X -> O=B", "join I=A J=B -> O=Y"];
    let spec = ensemble("X", "Y A B", &steps, DECOUPLED, "");
    let bench =
        Bench::new(spec, vec![decoupled("c", "I", "O"), decoupled("d", "I", "O"), model("join", "I J", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    let requests = ["c", "d"].map(|name| (bench.part(name), bench.part(name).take().unwrap()));
    let send = |at: usize, mark: &str| {
        let (part, request): &(Arc<Part>, Box<Request>) = &requests[at];
        request.responses().send(response_of(part, request, mark), false);
        bench.client.work_all();
    };
    // One is ahead by two, then the other by one.
    for (at, mark, joined) in [(0, "#0", 0), (0, "#1", 0), (1, "#0", 1), (1, "#1", 2), (1, "#2", 2), (0, "#2", 3)] {
        send(at, mark);
        assert_eq!(bench.waiting("join"), joined, "{at} {mark}");
    }
    for (_, request) in &requests {
        request.responses().send_end();
    }
    bench.client.work_all();
    (0..3).for_each(|_| bench.answer("join"));
    let one = |number| format!("Y=join.O(c.O#{number}(x),d.O#{number}(x)) A=c.O#{number}(x) B=d.O#{number}(x)");
    assert_eq!(bench.answered(1), [0, 1, 2].map(one).join("; ") + ".");
}

#[test]
fn tensors_are_handed_on_and_not_copied() {
    let spec = ensemble("X", "Y", &["p I=X -> O=A", "q I=A -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O", ""), model("q", "I", "O", "")]);
    let request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
    let given = request.inputs[0].data[0].clone();
    let _ticket = bench.hand_in(request);
    let at_p = lock(&bench.part("p").held)[0].inputs[0].data[0].clone();
    assert!(at_p.same_memory(&given));
    let (part, request) = (bench.part("p"), bench.part("p").take().unwrap());
    let response = response_of(&part, &request, "");
    let made = response.outputs[0].data[0].clone();
    request.finish(response);
    bench.client.work_all();
    assert!(lock(&bench.part("q").held)[0].inputs[0].data[0].same_memory(&made));
}

#[test]
fn what_no_requested_output_needs_is_not_run() {
    let steps = ["p I=X -> O=A", "q I=A -> O=Y", "r I=X -> O=B", "s I=B -> O=Z"];
    let spec = ensemble("X", "Y Z", &steps, "", "");
    let bench = Bench::new(spec, ["p", "q", "r", "s"].map(|name| model(name, "I", "O", "")).into());
    let mut request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
    crate::validate::add_output(&mut request, Text::from("Z")).unwrap();
    let _ticket = bench.hand_in(request);
    assert_eq!((bench.waiting("p"), bench.waiting("r")), (0, 1));
    bench.answer("r");
    bench.answer("s");
    assert_eq!(bench.answered(1), "Z=s.O(r.O(x)).");
    // A part that is not needed need not exist.
    lock(&bench.kitchen.0).remove("p");
    let mut request = request_to(&bench.spec, &bench.client, 2, &[("X", "x")]);
    crate::validate::add_output(&mut request, Text::from("Z")).unwrap();
    let _other = bench.hand_in(request);
    assert_eq!((bench.waiting("r"), bench.answered(2).as_str()), (1, ""));
}

#[test]
fn optional_inputs_may_stay_absent_and_outputs_too() {
    let spec = ensemble("X Z?", "Y V", &["p I=X J=Z -> O=A P=V", "q I=A -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I J?", "O P", ""), model("q", "I", "O", "")]);
    let _first = bench.send(1, &[("X", "x"), ("Z", "z")]);
    bench.answer("p");
    bench.answer("q");
    assert_eq!(bench.answered(1), "Y=q.O(p.O(x,z)) V=p.P(x,z).");
    let _second = bench.send(2, &[("X", "x")]);
    bench.answer("p");
    bench.answer("q");
    assert_eq!(bench.answered(2), "Y=q.O(p.O(x)) V=p.P(x).");
    // An output that the model leaves out: it is missing from the response and from the readers' inputs.
    let leave_out = |key: u64, output: &str| {
        let ticket = bench.send(key, &[("X", "x")]);
        let (part, request) = (bench.part("p"), bench.part("p").take().unwrap());
        let mut response = response_of(&part, &request, "");
        response.outputs.retain(|given| given.name != *output);
        request.finish(response);
        bench.client.work_all();
        ticket
    };
    let _third = leave_out(3, "P");
    bench.answer("q");
    assert_eq!(bench.answered(3), "Y=q.O(p.O(x)).");
    let _fourth = leave_out(4, "O");
    let answered = bench.answered(4);
    let text = "!in ensemble 'e', [request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'q'.";
    assert!(answered.starts_with(text) && answered.ends_with('.'), "{answered}");
}

#[test]
fn a_step_gets_what_its_request_said() {
    let spec = ensemble("X", "Y", &["p I=X -> O=A", "q I=A -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O", ""), model("q", "I", "O", "")]);
    let mut request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
    request.id = Text::from("me");
    request.correlation_id = CorrelationId::Number(7);
    request.flags = SEQUENCE_START;
    request.queueing.priority = 3;
    request.queueing.timeout_us = 99;
    request.parameters.push(Text::from("key"), Parameter::Int(5));
    let _ticket = bench.hand_in(request);
    let passed = |part: &str| {
        let part = bench.part(part);
        let held = lock(&part.held);
        let (request, parameter) = (&held[0], held[0].parameters.get(0).unwrap());
        assert!(request.is_counted() && matches!(parameter.value, Parameter::Int(5)), "{parameter:?}");
        assert_eq!(
            (request.id.to_string(), request.queueing.priority, request.queueing.timeout_us),
            ("me".to_owned(), 3, 99)
        );
        (request.correlation_id.clone(), request.flags)
    };
    assert_eq!(passed("p"), (CorrelationId::Number(7), SEQUENCE_START));
    // A response may name another sequence, for its readers.
    let (part, request) = (bench.part("p"), bench.part("p").take().unwrap());
    let mut response = response_of(&part, &request, "");
    response.parameters.push(Text::from("sequence_id"), Parameter::String(Text::from("s")));
    response.parameters.push(Text::from("sequence_start"), Parameter::Bool(false));
    response.parameters.push(Text::from("sequence_end"), Parameter::Bool(true));
    response.parameters.push(Text::from("other"), Parameter::Bool(true));
    request.finish(response);
    bench.client.work_all();
    assert_eq!(passed("q"), (CorrelationId::Text(Text::from("s")), SEQUENCE_END));
    bench.answer("q");
    let answers = lock(&bench.client.answers);
    let response = answers[&1][0].response.as_ref().unwrap();
    assert_eq!(response.id.to_string(), "me");
    let parameters: Vec<_> = response.parameters.iter().map(|one| format!("{}={:?}", one.name, one.value)).collect();
    assert_eq!(parameters, ["sequence_id=String(\"s\")", "sequence_start=Bool(false)", "sequence_end=Bool(true)"]);
}

/// The sequence that step q gets, or the error that the client gets, when p and r answer with these parameters.
fn joined(of_p: &[(&str, Parameter)], of_r: &[(&str, Parameter)]) -> Result<(CorrelationId, u32), String> {
    let steps = ["p I=X -> O=A", "r I=X -> O=B", "q I=A J=B -> O=Y"];
    let parts = vec![model("p", "I", "O", ""), model("r", "I", "O", ""), model("q", "I J", "O", "")];
    let bench = Bench::new(ensemble("X", "Y", &steps, "", ""), parts);
    let mut request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
    (request.correlation_id, request.flags) = (CorrelationId::Number(7), SEQUENCE_START);
    let _ticket = bench.hand_in(request);
    for (name, parameters) in [("p", of_p), ("r", of_r)] {
        let (part, request) = (bench.part(name), bench.part(name).take().unwrap());
        let mut response = response_of(&part, &request, "");
        parameters.iter().for_each(|(name, value)| response.parameters.push(Text::from(*name), value.clone()));
        request.finish(response);
        bench.client.work_all();
    }
    let held = lock(&bench.part("q").held).pop();
    held.map(|request| (request.correlation_id.clone(), request.flags)).ok_or_else(|| bench.answered(1))
}

#[test]
fn what_steps_say_of_their_sequences_is_joined() {
    let named = CorrelationId::Text(Text::from("s"));
    let id = |id: &str| ("sequence_id", Parameter::String(Text::from(id)));
    assert_eq!(joined(&[], &[]), Ok((CorrelationId::Number(7), SEQUENCE_START)));
    // Flags that a response does not name are off once it names any.
    assert_eq!(joined(&[id("s")], &[]), Ok((named.clone(), 0)));
    let end = ("sequence_end", Parameter::Bool(true));
    assert_eq!(joined(&[], std::slice::from_ref(&end)), Ok((CorrelationId::Number(7), SEQUENCE_END)));
    assert_eq!(joined(&[id("s")], &[id("t")]), Ok((named, 0)), "the first one counts");
    let answered = |text: &str| Err(format!("!in ensemble 'e', {text}."));
    let text = "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING";
    assert_eq!(joined(&[("sequence_id", Parameter::Bool(true))], &[]), answered(text));
    for name in ["sequence_start", "sequence_end"] {
        let text = format!("expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL");
        assert_eq!(joined(&[(name, Parameter::Int(1))], &[]), answered(&text));
    }
}

#[test]
fn one_tensor_goes_to_two_inputs_of_a_step() {
    for steps in [&["p I=X J=X -> O=Y"][..], &["p I=A J=A -> O=Y", "r I=X -> O=A"]] {
        let parts = vec![model("p", "I J", "O", ""), model("r", "I", "O", "")];
        let bench = Bench::new(ensemble("X", "Y", steps, "", ""), parts);
        let _ticket = bench.send(1, &[("X", "x")]);
        let x = if steps.len() == 1 { "x" } else { "r.O(x)" };
        if steps.len() == 2 {
            bench.answer("r");
        }
        bench.answer("p");
        assert_eq!(bench.answered(1), format!("Y=p.O({x},{x})."));
    }
}

#[test]
fn every_output_of_a_step_names_its_sequence() {
    let spec = ensemble("X", "Y Z", &["p I=X -> O=Y P=Z"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O P", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    bench.answer("p");
    let answers = lock(&bench.client.answers);
    let parameters = &answers[&1][0].response.as_ref().unwrap().parameters;
    let shown: Vec<_> = parameters.iter().map(|one| format!("{}={:?}", one.name, one.value)).collect();
    let each = ["sequence_id=Int(0)", "sequence_start=Bool(false)", "sequence_end=Bool(false)"];
    assert_eq!(shown, [each, each].concat());
}

#[test]
fn a_batch_dimension_comes_and_goes() {
    let spec = ensemble("X", "Y", &["flat I=X -> O=A", "rows I=A -> O=B", "flat I=B -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("flat", "I", "O", ""), model("rows", "I", "O", "max_batch_size: 4")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    bench.answer("flat");
    let shape = |part: &str| lock(&bench.part(part).held)[0].inputs[0].shape.to_vec();
    assert_eq!(shape("rows"), [1, "flat.O(x)".len() as i64]);
    bench.answer("rows");
    assert_eq!(shape("flat"), ["rows.O(flat.O(x))".len() as i64]);
    bench.answer("flat");
    assert_eq!(bench.answered(1), "Y=flat.O(rows.O(flat.O(x))).");
    let spec = ensemble("X", "Y", &["flat I=X -> O=Y"], "max_batch_size: 2", "");
    let bench = Bench::new(spec, vec![model("flat", "I", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    assert_eq!(lock(&bench.part("flat").held)[0].inputs[0].shape.to_vec(), [1]);
    bench.answer("flat");
    let answers = lock(&bench.client.answers);
    let shape = answers[&1][0].response.as_ref().unwrap().outputs[0].shape.to_vec();
    assert_eq!(shape, [1, "flat.O(x)".len() as i64]);
}

#[test]
fn decoupled_steps_run_those_behind_them_for_each_response() {
    let spec = ensemble("X", "Y", &["d I=X -> O=A P=B", "join I=A J=B -> O=Y"], DECOUPLED, "");
    let bench = Bench::new(spec, vec![decoupled("d", "I", "O P"), model("join", "I J", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    let (part, request) = (bench.part("d"), bench.part("d").take().unwrap());
    let responses = request.responses();
    for mark in ["#0", "#1", "#2"] {
        responses.send(response_of(&part, &request, mark), false);
    }
    bench.client.work_all();
    assert_eq!(bench.waiting("join"), 3);
    bench.answer("join");
    assert_eq!(bench.answered(1), "Y=join.O(d.O#0(x),d.P#0(x))");
    responses.send_end();
    bench.client.work_all();
    bench.answer("join");
    bench.answer("join");
    let expected = [0, 1, 2].map(|number| format!("Y=join.O(d.O#{number}(x),d.P#{number}(x))")).join("; ");
    assert_eq!(bench.answered(1), expected + ".", "the last response is the end");
    drop((responses, request));
    // A late end comes alone, and a stream may be empty.
    for (key, marks, expected) in [(2, &["#0"][..], "Y=join.O(d.O#0(x),d.P#0(x)); -."), (3, &[], "-.")] {
        let _ticket = bench.send(key, &[("X", "x")]);
        let request = part.take().unwrap();
        for mark in marks {
            request.responses().send(response_of(&part, &request, mark), false);
            bench.client.work_all();
            bench.answer("join");
        }
        request.responses().send_end();
        bench.client.work_all();
        assert_eq!(bench.answered(key), expected);
    }
    assert_eq!(bench.statistics.snapshot().success.count, 3);
}

#[test]
fn what_comes_once_joins_the_first_response_only() {
    let spec = ensemble("X", "Y Z", &["d I=X -> O=Y", "p I=X -> O=Z"], DECOUPLED, "");
    let bench = Bench::new(spec, vec![decoupled("d", "I", "O"), model("p", "I", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    let (part, request) = (bench.part("d"), bench.part("d").take().unwrap());
    for mark in ["#0", "#1"] {
        request.responses().send(response_of(&part, &request, mark), false);
    }
    request.responses().send_end();
    bench.client.work_all();
    assert_eq!(bench.answered(1), "");
    bench.answer("p");
    assert_eq!(bench.answered(1), "Y=d.O#0(x) Z=p.O(x).");
}

#[test]
fn an_ensemble_that_must_answer_says_if_it_cannot() {
    let spec = ensemble("X", "Y", &["p I=X -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    bench.part("p").take().unwrap().responses().send_end();
    bench.client.work_all();
    let text = "!in ensemble 'e', [request id: <id_unknown>] unexpected deadlock, at least one output is not set while \
                no more ensemble steps can be made.";
    assert_eq!(bench.answered(1), text);
    assert_eq!(bench.statistics.snapshot().failures.other, 1);
}

#[test]
fn the_first_error_is_sent_when_all_begun_steps_have_ended() {
    let steps = ["p I=X -> O=A", "q I=X -> O=B", "r I=A J=B -> O=Y", "s I=A -> O=Z"];
    let spec = ensemble("X", "Y Z", &steps, "", "");
    let one = |name: &str| model(name, "I", "O", "");
    let bench = Bench::new(spec, vec![one("p"), one("q"), model("r", "I J", "O", ""), one("s")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    bench.part("q").take().unwrap().fail(Status::unavailable("first"));
    bench.client.work_all();
    assert_eq!(bench.answered(1), "", "p still runs");
    bench.part("p").take().unwrap().fail(Status::internal("second"));
    bench.client.work_all();
    assert_eq!(bench.answered(1), "!in ensemble 'e', first.");
    let code = lock(&bench.client.answers)[&1][0].response.as_ref().unwrap().error.as_ref().unwrap().code;
    assert_eq!(code, nereid_request::Code::Unavailable);
    let _other = bench.send(2, &[("X", "x")]);
    bench.part("q").take().unwrap().fail(Status::unavailable("first"));
    bench.client.work_all();
    bench.answer("p");
    assert_eq!((bench.waiting("s"), bench.answered(2).as_str()), (0, "!in ensemble 'e', first."), "nothing new began");
    // A refusal is an error like others.
    *lock(&bench.part("p").refusal) = Some(Status::unavailable("full"));
    let _third = bench.send(3, &[("X", "x")]);
    assert_eq!((bench.waiting("q"), bench.answered(3).as_str()), (0, "!in ensemble 'e', full."));
    let seen = bench.statistics.snapshot();
    assert_eq!((seen.success.count, seen.failures.other, seen.execution_count), (0, 3, 0));
}

#[test]
fn models_are_chosen_when_a_request_begins() {
    let spec = ensemble("X", "Y", &["p I=X -> O=A", "q I=A -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O", ""), model("q", "I", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    let old = bench.part("q");
    bench.kitchen.add(model("q", "I", "O", ""));
    bench.answer("p");
    assert_eq!((lock(&old.held).len(), bench.waiting("q")), (1, 0), "a reload in between changes nothing");
    lock(&bench.kitchen.0).remove("q");
    let _other = bench.send(2, &[("X", "x")]);
    assert_eq!(bench.answered(2), "!in ensemble 'e', Request for unknown model: 'q' is not found.");
    assert_eq!(bench.waiting("p"), 0);
}

#[test]
fn cancellation_reaches_the_steps() {
    let spec = ensemble("X", "Y", &["p I=X -> O=A", "q I=A -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O", ""), model("q", "I", "O", "")]);
    let cancel = |ticket: &Ticket| {
        bench.ensemble.cancel(ticket).now();
        bench.client.work_all();
    };
    let ticket = bench.send(1, &[("X", "x")]);
    cancel(&ticket);
    assert_eq!(bench.answered(1), "!in ensemble 'e', .", "it still waited");
    assert!(bench.part("p").take().is_none());
    drop(ticket);
    // An executed request can see its cancellation, and is the last step to run.
    let ticket = bench.send(2, &[("X", "x")]);
    let (part, request) = (bench.part("p"), bench.part("p").take().unwrap());
    cancel(&ticket);
    assert!(request.cancel_token().is_cancelled() && bench.answered(2).is_empty());
    request.finish(response_of(&part, &request, ""));
    bench.client.work_all();
    assert_eq!((bench.answered(2).as_str(), bench.waiting("q")), ("!in ensemble 'e', .", 0));
    let code = lock(&bench.client.answers)[&2][0].response.as_ref().unwrap().error.as_ref().unwrap().code;
    assert_eq!(code, nereid_request::Code::Cancelled);
    cancel(&ticket);
    assert_eq!(bench.statistics.snapshot().failures.other, 2);
    drop((request, ticket));
    assert_eq!(bench.runs(), 0);
}

#[test]
fn the_time_of_a_step_is_kept_at_home() {
    let spec = ensemble("X", "Y", &["p I=X -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O", "")]);
    *lock(&bench.part("p").expires_at_ns) = Some(12345);
    let expired = bench.send(1, &[("X", "x")]);
    bench.client.work_all();
    let (at_ns, job) = lock(&bench.client.timed).pop().expect("a timer");
    assert_eq!(at_ns, 12345);
    job.run(&mut &*bench.client);
    bench.client.work_all();
    assert_eq!(bench.answered(1), "!in ensemble 'e', Request timeout expired.");
    assert!(bench.part("p").take().is_none(), "a tombstone");
    drop(expired);
    // A timer that fires after the end does nothing, and keeps nothing alive.
    let ticket = bench.send(2, &[("X", "x")]);
    bench.answer("p");
    assert_eq!(bench.answered(2), "Y=p.O(x).");
    bench.client.work_all();
    drop(ticket);
    assert_eq!(bench.runs(), 0);
    let (_, job) = lock(&bench.client.timed).pop().expect("a timer");
    job.run(&mut &*bench.client);
}

#[test]
fn so_many_requests_of_a_step_are_in_flight() {
    let spec = ensemble("X", "Y", &["p I=X -> O=A", "q I=A -> O=Y"], "", "max_inflight_requests: 2");
    let bench = Bench::new(spec, vec![model("p", "I", "O", ""), model("q", "I", "O", "")]);
    let tickets: Vec<_> = (0..5).map(|key| bench.send(key, &[("X", "x")])).collect();
    assert_eq!(bench.waiting("p"), 2);
    bench.answer("p");
    assert_eq!((bench.waiting("p"), bench.waiting("q")), (2, 1));
    // A waiting request can be cancelled, and the others move up.
    bench.ensemble.cancel(&tickets[3]).now();
    bench.client.work_all();
    assert_eq!(bench.answered(3), "!in ensemble 'e', .");
    let limiter = bench.ensemble.0.limiters[0].as_ref().unwrap();
    assert_eq!(limiter.counts(), (2, 1));
    bench.part("p").take().unwrap().fail(Status::internal("no"));
    bench.client.work_all();
    assert_eq!((bench.waiting("p"), limiter.counts()), (2, (2, 0)));
    // After 300 s a step goes on without room.
    let late = bench.send(9, &[("X", "x")]);
    assert_eq!((bench.waiting("p"), limiter.counts()), (2, (2, 1)));
    let (overdue, again) = limiter.overdue(now_ns());
    assert!(overdue.is_empty() && again.is_some());
    let (overdue, again) = limiter.overdue(now_ns() + super::super::limiter::STEP_WAIT_MAX_NS);
    assert_eq!((overdue.len(), again), (1, None));
    overdue.into_iter().for_each(|waiter| waiter.run.overdue(waiter.key));
    bench.client.work_all();
    assert_eq!((bench.waiting("p"), limiter.counts()), (3, (2, 0)));
    for part in ["p", "q"] {
        while bench.waiting(part) > 0 {
            bench.answer(part);
        }
    }
    drop((tickets, late));
    let counts = bench.ensemble.0.limiters.iter().flatten().map(|limiter| limiter.counts());
    assert!(counts.eq([(0, 0), (0, 0)]));
    assert_eq!(bench.runs(), 0);
    let seen = bench.statistics.snapshot();
    assert_eq!((seen.success.count, seen.fail.count), (4, 2));
}

/// One timer covers all that wait; when it has fired and something still waits, or waits later, there is another one.
#[test]
fn whatever_waits_for_room_has_a_timer() {
    let spec = ensemble("X", "Y", &["p I=X -> O=A", "q I=A -> O=Y"], "", "max_inflight_requests: 1");
    let bench = Bench::new(spec, vec![model("p", "I", "O", ""), model("q", "I", "O", "")]);
    let limiter = Arc::clone(bench.ensemble.0.limiters[0].as_ref().unwrap());
    let timers = || {
        bench.client.work_all();
        std::mem::take(&mut *lock(&bench.client.timed))
    };
    let mut tickets: Vec<_> = (0..3).map(|key| bench.send(key, &[("X", "x")])).collect();
    let mut first = timers();
    assert_eq!((first.len(), limiter.counts()), (1, (1, 2)));
    let (due_ns, timer) = first.remove(0);
    // Before its time nobody is overdue, and the timer sets the next one.
    timer.run(&mut &*bench.client);
    let mut again = timers();
    assert_eq!((again.len(), again[0].0, limiter.counts()), (1, due_ns, (1, 2)));
    assert!(limiter.overdue(due_ns - 1).0.is_empty());
    let (overdue, next_ns) = limiter.overdue(due_ns);
    assert_eq!(overdue.len(), 1, "the one that has waited for exactly so long");
    assert!(next_ns.is_some_and(|next_ns| next_ns > due_ns), "the other one waits");
    overdue.into_iter().for_each(|waiter| waiter.run.overdue(waiter.key));
    bench.client.work_all();
    assert_eq!((bench.waiting("p"), limiter.counts()), (2, (1, 1)));
    bench.answer("p");
    assert_eq!((bench.waiting("p"), limiter.counts()), (2, (1, 0)), "the room goes to the next");
    // Nothing waits any more when the timer fires, so that the next to wait sets one; dropped timers are replaced too.
    again.remove(0).1.run(&mut &*bench.client);
    assert_eq!(timers().len(), 0);
    tickets.push(bench.send(3, &[("X", "x")]));
    assert_eq!(timers().len(), 1, "and it is dropped here");
    tickets.push(bench.send(4, &[("X", "x")]));
    let last = timers();
    assert_eq!((last.len(), limiter.counts()), (1, (1, 2)));
    tickets.push(bench.send(5, &[("X", "x")]));
    assert_eq!(timers().len(), 0, "one covers both");
    for part in ["p", "q"] {
        while bench.waiting(part) > 0 {
            bench.answer(part);
        }
    }
    drop((tickets, last));
    assert_eq!((limiter.counts(), bench.runs()), ((0, 0), 0));
}

#[test]
fn a_step_that_is_too_far_ahead_ends_the_request() {
    let _never_waits = NeverWaits::here();
    let spec = ensemble("X", "Y", &["d I=X -> O=A", "p I=A -> O=Y"], DECOUPLED, "max_inflight_requests: 1");
    for is_looked_at in [false, true] {
        let bench = Bench::new(spec.clone(), vec![decoupled("d", "I", "O"), model("p", "I", "O", "")]);
        let ticket = bench.send(1, &[("X", "x")]);
        let (part, request) = (bench.part("d"), bench.part("d").take().unwrap());
        let responses = request.responses();
        for _ in 0..20_000 {
            responses.send(response_of(&part, &request, ""), false);
            if is_looked_at {
                bench.client.work_all();
            }
        }
        bench.client.work_all();
        assert!(request.cancel_token().is_cancelled(), "the producer can see it");
        assert_eq!((bench.waiting("p"), bench.answered(1).as_str()), (usize::from(is_looked_at), ""));
        responses.send_end();
        bench.client.work_all();
        lock(&bench.part("p").held).clear();
        bench.client.work_all();
        let text = "!in ensemble 'e', more than 16384 responses of composing models wait for the steps after them.";
        assert_eq!(bench.answered(1), text);
        drop((responses, request, ticket));
        assert_eq!(bench.runs(), 0);
    }
}

#[test]
fn many_responses_wait_for_a_place_in_flight() {
    let _never_waits = NeverWaits::here();
    let spec = ensemble("X", "Y", &["d I=X -> O=A", "p I=A -> O=Y"], DECOUPLED, "");
    let bench = Bench::new(spec, vec![decoupled("d", "I", "O"), model("p", "I", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    let (part, request) = (bench.part("d"), bench.part("d").take().unwrap());
    for number in 0..3000 {
        request.responses().send(response_of(&part, &request, &format!("#{number}")), number == 2999);
        bench.client.work_all();
    }
    assert_eq!(bench.waiting("p"), 1024);
    while bench.waiting("p") > 0 {
        bench.answer("p");
    }
    let answered = bench.answered(1);
    let expected: Vec<_> = (0..3000).map(|number| format!("Y=p.O(d.O#{number}(x))")).collect();
    assert_eq!(answered, expected.join("; ") + ".");
}

#[test]
fn a_stopped_ensemble_refuses() {
    let spec = ensemble("X", "Y", &["p I=X -> O=A", "q I=A -> O=Y"], "", "");
    let bench = Bench::new(spec, vec![model("p", "I", "O", ""), model("q", "I", "O", "")]);
    let _ticket = bench.send(1, &[("X", "x")]);
    bench.ensemble.stop();
    let refused = bench.ensemble.enqueue(request_to(&bench.spec, &bench.client, 2, &[("X", "x")])).unwrap_err();
    assert_eq!(refused.status, stopping().prefixed("[request id: <id_unknown>] "));
    refused.request.withdraw();
    bench.answer("p");
    bench.answer("q");
    assert_eq!(bench.answered(1), "Y=q.O(p.O(x)).", "what was accepted is finished");
    assert!(matches!(bench.ensemble.poll(0, 0), Next::Leave));
    assert_eq!(bench.statistics.snapshot().fail.count, 0);
}

/// A thread in which `part` answers its request so many times and returns it. It counts the responses.
fn answer_often(part: &Arc<Part>, count: usize) -> (std::thread::JoinHandle<Box<Request>>, Arc<AtomicUsize>) {
    let request = part.take().expect("a request waits");
    let (part, sent) = (Arc::clone(part), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&sent);
    let thread = std::thread::spawn(move || {
        for number in 0..count {
            request.responses().send(response_of(&part, &request, &format!("#{number}")), false);
            counter.fetch_add(1, Ordering::SeqCst);
        }
        request
    });
    (thread, sent)
}

#[test]
fn a_slow_reader_holds_the_first_step_back_through_the_others() {
    let parts = vec![model("d", "I", "O", DECOUPLED), model("j", "I", "O", "")];
    let bench = Bench::new(ensemble("X", "Y", &["d I=X -> O=A", "j I=A -> O=Y"], DECOUPLED, ""), parts);
    let request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
    request.limit_responses(2);
    bench.hand_in(request);
    let (thread, sent) = answer_often(&bench.part("d"), 4);
    for number in 0..4 {
        while bench.waiting("j") == 0 {
            bench.client.work_all();
            std::thread::yield_now();
        }
        bench.answer("j");
        assert_eq!(bench.answered(1), format!("Y=j.O(d.O#{number}(x))"));
        let delivery = lock(&bench.client.answers).get_mut(&1).unwrap().remove(0);
        let credit = delivery.response.unwrap().into_parts().credit.unwrap();
        if number < 2 {
            let most = number + 2;
            while sent.load(Ordering::SeqCst) < most || !credit.is_wanted() {
                std::thread::yield_now();
            }
            assert_eq!(sent.load(Ordering::SeqCst), most, "one with the client, one with the other step");
        }
    }
    // Only now: an end that comes while the last answer is being sent goes with it.
    thread.join().unwrap().responses().send_end();
    bench.client.work_all();
    assert_eq!((bench.answered(1).as_str(), bench.runs()), ("-.", 0));
}

#[test]
fn a_value_that_waits_for_others_holds_no_step_back() {
    let parts = vec![model("d", "I", "O", DECOUPLED), model("z", "I", "O", DECOUPLED), model("j", "I J", "O", "")];
    let steps = ["d I=X -> O=A", "z I=X -> O=B", "j I=A J=B -> O=Y"];
    let bench = Bench::new(ensemble("X", "Y", &steps, DECOUPLED, ""), parts);
    let request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
    request.limit_responses(2);
    bench.hand_in(request);
    let (thread, sent) = answer_often(&bench.part("d"), 100);
    while !thread.is_finished() {
        bench.client.work_all();
        std::thread::yield_now();
    }
    thread.join().unwrap().responses().send_end();
    assert_eq!(sent.load(Ordering::SeqCst), 100);
    let (thread, _) = answer_often(&bench.part("z"), 0);
    thread.join().unwrap().responses().send_end();
    bench.client.work_all();
    assert_eq!((bench.answered(1).as_str(), bench.runs()), ("-.", 0));
}
