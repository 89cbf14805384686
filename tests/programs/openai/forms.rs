//! Which inputs a model gets, by the names that its configuration declares (contract/openai.md sections 3.1 to 3.3).

use serde_json::{Value, json};

use super::events::{reasons, texts};
use super::frontend::{
    CHAT, COMPLETIONS, EMBEDDINGS, Frontend, Tokenizer, add, chat, completion, has_run, repository, vllm_backend, with,
};
use nereid_test_support::repository::Repository;

const TRITON: &str = "--openai-compat=triton";

/// What the model got: `{name: {"shape", "data"}}`, and the identifier of the request.
fn inputs(frontend: &Frontend, model: &str, more: Value) -> (Value, String) {
    let answer = frontend.asked(COMPLETIONS, &with(&completion(model, "<<inputs>>"), more));
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    let said: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (said["inputs"].clone(), said["id"].as_str().unwrap_or_default().to_owned())
}

fn names(inputs: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = inputs.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn one(shape: &[u64], value: Value) -> Value {
    json!({"shape": shape, "data": [value]})
}

#[test]
fn vllms_inputs() {
    if has_run() {
        return;
    }
    let (backends, directory) = vllm_backend();
    let repository = Repository::new();
    repository.model("llm", "backend: \"vllm\"");
    add(&repository, "openai_mock", "by_its_inputs");
    let Some(frontend) = Frontend::start(&repository, &[&directory, TRITON]) else { return };
    for model in ["llm", "by_its_inputs"] {
        let (sent, id) = inputs(&frontend, model, json!({}));
        assert_eq!(sent["text_input"], one(&[1], json!("<<inputs>>")), "{model}");
        assert_eq!(sent["stream"], one(&[1], json!(false)));
        assert_eq!(sent["exclude_input_in_output"], one(&[1], json!(true)));
        assert_eq!(sent["return_num_input_tokens"], one(&[1], json!(true)));
        assert_eq!(sent["return_num_output_tokens"], one(&[1], json!(true)));
        assert_eq!(sent["return_logprobs"], one(&[1], json!(false)));
        assert_eq!(sent["return_finish_reason"], Value::Null);
        let sampling = "{\"frequency_penalty\": 0, \"ignore_eos\": false, \"n\": 1, \"presence_penalty\": 0, \
                        \"temperature\": 1, \"top_p\": 1, \"max_tokens\": 16}";
        assert_eq!(sent["sampling_parameters"], one(&[1], json!(sampling)));
        assert!(id.starts_with("cmpl-"), "{id}");
        let more = json!({"max_tokens": 3, "seed": -5, "stop": ["a\n", "\u{e9}\n"], "temperature": 0.5, "min_tokens": 2,
            "top_p": 0.25, "frequency_penalty": -1.5, "presence_penalty": 1, "ignore_eos": true, "echo": true});
        let (sent, _) = inputs(&frontend, model, with(&more, json!({"echo": null})));
        let text = sent["sampling_parameters"]["data"][0].as_str().expect("a text").to_owned();
        let given: Value = serde_json::from_str(&text).expect("JSON");
        let expected = json!({"frequency_penalty": -1.5, "ignore_eos": true, "min_tokens": 2, "n": 1,
            "presence_penalty": 1.0, "seed": -5, "stop": ["a\n", "\u{e9}\n"], "temperature": 0.5, "top_p": 0.25,
            "max_tokens": 3});
        assert_eq!(given, expected, "{text}");
        let nulls = json!({"temperature": null, "top_p": null, "frequency_penalty": null, "presence_penalty": null});
        let (sent, _) = inputs(&frontend, model, nulls);
        let text = sent["sampling_parameters"]["data"][0].as_str().expect("a text");
        assert_eq!(text, "{\"ignore_eos\": false, \"n\": 1, \"max_tokens\": 16}");
    }
    drop(backends);
    frontend.stop();
}

#[test]
fn tensorrt_llms_inputs() {
    if has_run() {
        return;
    }
    let repository = repository(&["openai_mock_trtllm"]);
    let Some(frontend) = Frontend::start(&repository, &[TRITON, "--default-max-tokens=5"]) else { return };
    let (sent, _) = inputs(&frontend, "openai_mock_trtllm", json!({}));
    let expected = [
        "frequency_penalty",
        "max_tokens",
        "presence_penalty",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "stream",
        "temperature",
        "text_input",
        "top_p",
    ];
    assert_eq!(names(&sent), expected);
    assert_eq!(sent["max_tokens"], one(&[1, 1], json!(5)));
    assert_eq!(sent["text_input"], one(&[1, 1], json!("<<inputs>>")));
    let more = json!({"stop": ["a\n", "bc\n"], "seed": 9, "echo": false, "temperature": null, "max_tokens": 0});
    let (sent, _) = inputs(&frontend, "openai_mock_trtllm", more);
    assert_eq!(sent["stop_words"], json!({"shape": [1, 2], "data": ["a\n", "bc\n"]}));
    assert_eq!(sent["seed"], one(&[1, 1], json!(9)));
    assert_eq!(sent["exclude_input_in_output"], one(&[1, 1], json!(true)));
    assert_eq!(sent["max_tokens"], one(&[1, 1], json!(0)));
    assert_eq!(sent["temperature"], Value::Null);
    let negative = with(&completion("openai_mock_trtllm", "x"), json!({"seed": -1}));
    let answer = frontend.post(COMPLETIONS, &negative);
    assert!(answer.status == 400 || answer.status == 500, "{}", answer.text());
    let usage = frontend.asked(COMPLETIONS, &completion("openai_mock_trtllm", "a b <<reply x>>"))["usage"].clone();
    assert_eq!(usage, json!({"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}));
    frontend.stop();
}

/// TensorRT-LLM's LLM API says in each response all that it has said so far.
#[test]
fn the_llm_apis_inputs_and_its_growing_texts() {
    if has_run() {
        return;
    }
    let repository = repository(&["openai_mock_llmapi"]);
    let Some(frontend) = Frontend::start(&repository, &[]) else { return };
    let model = "openai_mock_llmapi";
    let (sent, _) = inputs(&frontend, model, json!({"stop": ["a\n", "b\n"], "max_tokens": 4, "seed": 3}));
    assert_eq!(sent["sampling_param_max_tokens"], one(&[1], json!(4)));
    assert_eq!(sent["sampling_param_stop"], json!({"shape": [2], "data": ["a\n", "b\n"]}));
    assert_eq!(sent["sampling_param_seed"], one(&[1], json!(3)));
    assert_eq!(sent["sampling_param_exclude_input_from_output"], one(&[1], json!(true)));
    assert_eq!(sent["streaming"], one(&[1], json!(false)));
    let script = "<<pieces [\"one\", \" two\", \"\", \" three\"]>>";
    let events = frontend.streamed(COMPLETIONS, &completion(model, script));
    assert_eq!(texts(&events), ["one", " two", "", " three"]);
    assert_eq!(reasons(&events), ["stop"]);
    // A character that one response has in part.
    let events = frontend.streamed(COMPLETIONS, &completion(model, "<<hex 61e4 bda0 62>>"));
    assert_eq!(texts(&events).concat(), "a\u{4f60}b");
    let limit = json!({"max_tokens": 2});
    let answer = frontend.asked(COMPLETIONS, &with(&completion(model, "<<length 9>>"), limit));
    assert_eq!((&answer["choices"][0]["finish_reason"], &answer["usage"]), (&json!("length"), &Value::Null));
    frontend.stop();
}

#[test]
fn a_flag_names_the_form_of_all_models() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&["openai_mock", "openai_mock_trtllm"]), Tokenizer::new());
    let flags = ["--backend=vllm", &tokenizer.flag()];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    assert_eq!(frontend.says("openai_mock", "<<reply x>>"), "x");
    let (sent, _) = inputs(&frontend, "openai_mock", json!({}));
    assert!(sent["sampling_parameters"].is_object(), "{sent}");
    // The other declares no such input: it gets what it has.
    let (sent, _) = inputs(&frontend, "openai_mock_trtllm", json!({}));
    assert!(sent["sampling_parameters"].is_null() && sent["text_input"].is_object(), "{sent}");
    frontend.stop();
}

#[test]
fn models_that_are_none_of_a_language_refuse() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&["openai_mock_trtllm"]), Tokenizer::new());
    repository.identity("numbers", 0, &[nereid_test_support::repository::Pair::new("INT32", "-1")]);
    let flags = [TRITON, &tokenizer.flag()];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    for (path, body) in [(COMPLETIONS, completion("numbers", "x")), (CHAT, chat("numbers", "x"))] {
        let answer = frontend.post(path, &body);
        assert!((400..=500).contains(&answer.status), "{}: {}", answer.status, answer.text());
        assert!(answer.json()["detail"].is_string(), "{}", answer.text());
        // The same before a stream begins.
        let answer = frontend.post(path, &with(&body, json!({"stream": true})));
        assert!((400..=500).contains(&answer.status), "{}: {}", answer.status, answer.text());
    }
    let embeddings = json!({"model": "openai_mock_trtllm", "input": "x"});
    let text = "TRT-LLM backend and Python backend do not support embedding requests";
    assert_eq!(frontend.refused(400, EMBEDDINGS, &embeddings), text);
    frontend.stop();
}
