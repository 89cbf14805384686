//! Embeddings, scores and ranks.

use std::sync::Arc;

use super::{Bench, answer, output, plan, refused, respond, text};
use crate::error::Compat;
use crate::plan::Plan;
use crate::request::{Operation, Rerank};
use nereid_memory::Slice;
use nereid_request::{DataType, Response};

fn embeddings(base64: bool) -> Plan {
    Plan { base64, ..plan(Operation::Embeddings, Compat::Triton, false) }
}

fn floats(numbers: &[f32]) -> Response {
    let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    respond([output("logits", DataType::Fp32, &data)])
}

fn of_all(plan: Plan, responses: impl IntoIterator<Item = Response>) -> String {
    let mut bench = Bench::new(plan);
    for (index, response) in responses.into_iter().enumerate() {
        bench.take_of(index, response, true).unwrap();
    }
    bench.finish().unwrap()
}

#[test]
fn an_embedding_in_text_is_a_list_of_numbers() {
    let mut response = text("[0.5, -1.25e-3 ,2]");
    response.outputs.push(output("num_input_tokens", DataType::Uint32, &12u32.to_le_bytes()));
    let body = answer(embeddings(false), [response]).unwrap();
    let expected = concat!(
        r#"{"object":"list","data":[{"object":"embedding","embedding":[0.5,-0.00125,2.0],"index":0}],"#,
        r#""model":"m","usage":{"prompt_tokens":12,"total_tokens":12}}"#,
    );
    assert_eq!(body, expected);
    let body = answer(embeddings(true), [text("[0.5,-1.25e-3,2.0]")]).unwrap();
    let expected = concat!(
        r#"{"object":"list","data":[{"object":"embedding","embedding":"AAAAPwrXo7oAAABA","index":0}],"#,
        r#""model":"m","usage":null}"#,
    );
    assert_eq!(body, expected);
}

#[test]
fn embeddings_of_several_requests_stand_in_order() {
    let mut bench = Bench::new(Plan { prompt_tokens: Some(3), ..embeddings(false) });
    for index in [1, 0] {
        bench.take_of(index, floats(&[index as f32, 0.1]), false).unwrap();
        bench.take_of(index, respond([]), true).unwrap();
    }
    let body = bench.finish().unwrap();
    let data = concat!(
        r#"[{"object":"embedding","embedding":[0.0,0.1],"index":0},{"object":"embedding","#,
        r#""embedding":[1.0,0.1],"index":1}]"#,
    );
    assert!(body.contains(data) && body.contains(r#""usage":{"prompt_tokens":3,"total_tokens":3}"#), "{body}");
}

#[test]
fn a_long_vector_is_written_in_steps_and_is_the_same() {
    let numbers: Vec<f32> = (0..50_000).map(|number| number as f32 / 7.0).collect();
    let list: Vec<String> = numbers.iter().map(|number| format!("{number:?}")).collect();
    let list = format!("[{}]", list.join(","));
    let as_text = of_all(embeddings(false), [text(&list)]);
    let as_floats = of_all(embeddings(false), [floats(&numbers)]);
    assert!(as_text == as_floats && as_text.contains(&list));
    let in_base64 = of_all(embeddings(true), [text(&list)]);
    assert!(in_base64 == of_all(embeddings(true), [floats(&numbers)]));
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    use base64::Engine;
    assert!(in_base64.contains(&base64::engine::general_purpose::STANDARD.encode(bytes)));
}

#[test]
fn elements_that_pieces_share_are_whole() {
    let whole: Vec<u8> = [1.5f32, -2.5, 3.5].iter().flat_map(|number| number.to_le_bytes()).collect();
    for cut in 0..=whole.len() {
        for second in cut..=whole.len() {
            let mut response = floats(&[]);
            response.outputs[0].data =
                [&whole[..cut], &whole[cut..second], &whole[second..]].into_iter().map(Slice::copy_of).collect();
            let body = of_all(embeddings(false), [response]);
            assert!(body.contains("[1.5,-2.5,3.5]"), "{cut} {second}: {body}");
        }
    }
}

#[test]
fn what_is_no_vector_is_refused() {
    for bad in ["[", "[1", "[1,]", "1", "[NaN]", "[1e999]", "[[1]]", "[1]x", "[1 2]", "[--1]", "{}", &"1".repeat(99)] {
        let refusal = answer(embeddings(false), [text(bad)]).unwrap_err();
        assert_eq!(refusal.status, 500, "{bad}");
    }
    assert_eq!(answer(embeddings(false), [text("[]")]).unwrap_err().status, 500);
    assert_eq!(answer(embeddings(false), [respond([])]).unwrap_err().status, 500);
    assert_eq!(answer(embeddings(false), [floats(&[f32::NAN])]).unwrap_err().status, 500);
    let bench = &mut Bench::new(embeddings(false));
    assert_eq!(bench.answer.end_without_response(0).unwrap_err().status, 500);
    bench.take_of(0, floats(&[1.0]), false).unwrap();
    assert_eq!(bench.answer.end_without_response(0), Ok(()));
    assert_eq!(
        answer(embeddings(false), [text("[1")]).unwrap_err(),
        refused(500, "The model's vector cannot be read: the JSON list of numbers in it has no end.")
    );
}

#[test]
fn ranks_stand_by_their_relevance() {
    let documents = ["a", "b\"", "c", "d"].map(str::to_string).to_vec();
    let rank = |top_n, return_documents| {
        let request = Rerank {
            model: "m".to_string(),
            query: "q".to_string(),
            documents: documents.clone(),
            top_n,
            return_documents,
        };
        let plan = Plan { rerank: Some(Arc::new(request)), ..plan(Operation::Rerank, Compat::OpenAi, false) };
        of_all(plan, [0.25, 0.75, -3.0, 0.75].map(|score| floats(&[score, 99.0])))
    };
    let expected = concat!(
        r#"{"id":"cmpl-1","model":"m","results":[{"index":1,"document":{"text":"b\""},"#,
        r#""relevance_score":0.75},{"index":3,"document":{"text":"d"},"#,
        r#""relevance_score":0.75},{"index":0,"document":{"text":"a"},"#,
        r#""relevance_score":0.25},{"index":2,"document":{"text":"c"},"relevance_score":-3.0}],"#,
        r#""usage":null}"#,
    );
    assert_eq!(rank(None, true), expected);
    let expected = r#"{"id":"cmpl-1","model":"m","results":[{"index":1,"relevance_score":0.75}],"usage":null}"#;
    assert_eq!(rank(Some(1), false), expected);
}

#[test]
fn scores_stand_in_the_order_of_the_request() {
    let body = of_all(plan(Operation::Score, Compat::OpenAi, false), [floats(&[0.5]), text("[0.125]")]);
    let expected = concat!(
        r#"{"id":"cmpl-1","object":"list","created":5,"model":"m","data":[{"index":0,"object":"score","#,
        r#""score":0.5},{"index":1,"object":"score","score":0.125}],"usage":null}"#,
    );
    assert_eq!(body, expected);
}

#[test]
fn an_output_is_taken_by_its_name_where_the_plan_has_one() {
    let two = || {
        let [first, second] = [[1.0f32], [2.0]].map(|[number]| number.to_le_bytes());
        respond([output("a", DataType::Fp32, &first), output("b", DataType::Fp32, &second)])
    };
    let named = |name: &str| Plan { output_name: Some(name.into()), ..embeddings(false) };
    assert!(of_all(embeddings(false), [two()]).contains("[1.0]"));
    assert!(of_all(named("b"), [two()]).contains("[2.0]"));
    assert_eq!(answer(named("c"), [two()]).unwrap_err().status, 500);
    let text = respond([super::string("b", b"[3.0]")]);
    assert!(of_all(named("b"), [text]).contains("[3.0]"));
}

#[test]
fn numbers_are_written_as_python_writes_them() {
    let body = of_all(embeddings(false), [text("[1e-5, 1.5e-7, 1e15, 1e16, 1e22, 0, -0.0, 123456789, 1e-4]")]);
    assert!(body.contains("[1e-05,1.5e-07,1000000000000000.0,1e+16,1e+22,0.0,-0.0,123456789.0,0.0001]"), "{body}");
    let body = of_all(embeddings(false), [floats(&[1e-5, 0.1, 16777216.0, 3e38])]);
    assert!(body.contains("[1e-05,0.1,16777216.0,3e+38]"), "{body}");
}
