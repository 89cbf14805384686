//! What Triton's front end has not (contract/openai.md section 5): reasoning, schemas, members of engines, counts, and
//! tokenizers of models.

use serde_json::{Value, json};

use super::events::{contents, reasons};
use super::frontend::{
    CHAT, COMPLETIONS, EMBEDDINGS, Frontend, TEMPLATE, Tokenizer, add, chat, completion, has_run, repository, with,
};
use nereid_test_support::python::Python;

const MOCK: &str = "openai_mock";

fn reasoning(events: &[Value]) -> String {
    let parts = events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str());
    parts.collect()
}

#[test]
fn reasoning_is_parted_from_content() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let text = "<think>let me \u{e9} see</think>\n\nIt is 4 < 5.";
    for (parser, text, thought, content) in [
        ("qwen3", text, "let me \u{e9} see", "It is 4 < 5."),
        // Its template has opened the tag already.
        ("deepseek_r1", &text[7..], "let me \u{e9} see", "It is 4 < 5."),
        ("qwen3", "no thought", "", "no thought"),
        ("qwen3", "a <thin line", "", "a <thin line"),
    ] {
        let flags = [&tokenizer.flag(), &format!("--reasoning-parser={parser}")];
        let Some(frontend) = Frontend::start(&repository, &flags.map(String::as_str)) else { return };
        for cut in [1, 5, 1000] {
            let body = chat(MOCK, &format!("<<pieces {}>><<cut {cut}>>", json!([text])));
            let message = frontend.asked(CHAT, &body)["choices"][0]["message"].clone();
            assert_eq!(message["content"].as_str().map(str::trim_start), Some(content), "{parser}: {message}");
            assert_eq!(message["reasoning_content"].as_str().unwrap_or(""), thought, "{parser}: {message}");
            let events = frontend.streamed(CHAT, &body);
            assert_eq!(contents(&events).concat().trim_start(), content, "{parser} cut at {cut}");
            assert_eq!(reasoning(&events), thought, "{parser} cut at {cut}");
            assert_eq!(reasons(&events), ["stop"]);
        }
        frontend.stop();
    }
}

#[test]
fn reasoning_and_calls_of_tools_go_together() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let flags = [&tokenizer.flag(), "--reasoning-parser=qwen3", "--tool-call-parser=hermes"];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let script = format!("<<pieces {}>><<cut 3>>", json!([format!("<think>why?</think>{call}")]));
    let tools = json!({"tools": [{"type": "function", "function": {"name": "f"}}]});
    let body = with(&chat(MOCK, &script), tools);
    let message = frontend.asked(CHAT, &body)["choices"][0]["message"].clone();
    assert_eq!(message["reasoning_content"], "why?", "{message}");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "f", "{message}");
    let events = frontend.streamed(CHAT, &body);
    assert_eq!((reasoning(&events).as_str(), reasons(&events)), ("why?", vec!["tool_calls".to_owned()]));
    frontend.stop();
}

fn sampling(frontend: &Frontend, path: &str, body: &Value) -> Value {
    let answer = frontend.asked(path, body);
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).expect("a text");
    let said: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let parameters = said["inputs"]["sampling_parameters"]["data"][0].as_str().expect("a text");
    serde_json::from_str(parameters).expect("JSON")
}

#[test]
fn schemas_and_members_of_engines_reach_vllm() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag()]) else { return };
    let more = json!({"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "parallel_tool_calls": true, "store": false,
        "metadata": {"a": "b"}, "service_tier": "auto"});
    let given = sampling(&frontend, COMPLETIONS, &with(&completion(MOCK, "<<inputs>>"), more));
    assert_eq!((&given["top_k"], &given["min_p"], &given["repetition_penalty"]), (&json!(5), &json!(0.1), &json!(1.5)));
    assert!(given["store"].is_null() && given["metadata"].is_null(), "{given}");
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let given = sampling(&frontend, CHAT, &with(&chat(MOCK, "<<inputs>>"), json!({ "response_format": format })));
    let guide: Value = serde_json::from_str(given["structured_outputs"].as_str().expect("a text")).expect("JSON");
    let guide: Value = serde_json::from_str(guide["json"].as_str().expect("a text")).expect("JSON");
    assert_eq!(guide, schema);
    let answer = frontend.asked(CHAT, &with(&chat(MOCK, "x"), json!({ "response_format": format })));
    assert_eq!(answer["choices"][0]["message"]["content"], "{\"city\": \"Dallas\"}");
    // No member is let through that nobody knows.
    assert_eq!(frontend.post(COMPLETIONS, &with(&completion(MOCK, "x"), json!({"n_best": 1}))).status, 422);
    frontend.stop();
}

#[test]
fn usage_stands_in_every_chunk_where_it_is_asked_for() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    let Some(frontend) = Frontend::start(&repository, &[]) else { return };
    let options = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let script = "<<pieces [\"a\",\"b\",\"c\"]>>";
    let events = frontend.streamed(COMPLETIONS, &with(&completion(MOCK, script), options));
    let counts: Vec<&Value> = events.iter().map(|event| &event["usage"]["completion_tokens"]).collect();
    assert_eq!(json!(counts), json!([1, 2, 3, 3]), "{events:?}");
    frontend.stop();
}

#[test]
fn prompts_are_counted_where_the_model_does_not() {
    if has_run() {
        return;
    }
    let Some(python) = Python::with("openai.txt") else { return };
    let (repository, tokenizer) = (repository(&["openai_embedding_native"]), Tokenizer::new());
    python.run("openai_tokens.py", &["train", &tokenizer.path().display().to_string()]);
    let body = json!({"model": "openai_embedding_native", "input": ["some text", "more"]});
    for (flag, is_counted) in [("--openai-count-tokens=false", false), ("--openai-count-tokens=true", true)] {
        let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag(), flag]) else { return };
        let count =
            |text: &str| frontend.asked("/tokenize", &json!({ "prompt": text }))["count"].as_u64().expect("a count");
        let tokens = count("some text") + count("more");
        let usage = frontend.asked(EMBEDDINGS, &body)["usage"].clone();
        let expected = if is_counted { json!({"prompt_tokens": tokens, "total_tokens": tokens}) } else { Value::Null };
        assert_eq!(usage, expected);
        frontend.stop();
    }
}

#[test]
fn a_model_may_have_a_tokenizer_of_its_own() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    add(&repository, MOCK, "own");
    let own = json!({"chat_template": "own:{{ messages[0].content }}"});
    repository.file("own/tokenizer/tokenizer_config.json", own.to_string());
    let Some(frontend) = Frontend::start(&repository, &[]) else { return };
    let prompt = |frontend: &Frontend, model: &str| {
        let answer = frontend.asked(CHAT, &chat(model, "<<inputs>>"));
        let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
        let said: Value = serde_json::from_str(text).expect("JSON");
        said["inputs"]["text_input"]["data"][0].as_str().expect("a prompt").to_owned()
    };
    assert_eq!(prompt(&frontend, "own"), "own:<<inputs>>");
    assert_eq!(frontend.refused(500, CHAT, &chat(MOCK, "x")), "Unknown tokenizer");
    frontend.stop();
    // The flag is for the others.
    let tokenizer = Tokenizer::with(&json!({"chat_template": TEMPLATE, "bos_token": "<s>"}));
    let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag()]) else { return };
    assert!(prompt(&frontend, MOCK).starts_with("<s><user>"));
    frontend.stop();
}

/// An ensemble in front of the model, which is what TensorRT-LLM's repositories have.
#[test]
fn an_ensemble_is_asked_as_its_model() {
    if has_run() {
        return;
    }
    let repository = repository(&["openai_mock_trtllm"]);
    let inputs = [("text_input", "TYPE_STRING"), ("max_tokens", "TYPE_INT32"), ("stream", "TYPE_BOOL")];
    let counts = [("return_num_input_tokens", "TYPE_BOOL"), ("return_num_output_tokens", "TYPE_BOOL")];
    let outputs = [
        ("text_output", "TYPE_STRING", "-1"),
        ("num_input_tokens", "TYPE_INT32", "1"),
        ("num_output_tokens", "TYPE_INT32", "1"),
    ];
    let mut config = "platform: \"ensemble\" max_batch_size: 8\n".to_owned();
    let mut step = "ensemble_scheduling { step [ { model_name: \"openai_mock_trtllm\" model_version: -1\n".to_owned();
    for (name, kind) in inputs.iter().chain(&counts) {
        config.push_str(&format!("input {{ name: \"{name}\" data_type: {kind} dims: [ 1 ] }}\n"));
        step.push_str(&format!("input_map {{ key: \"{name}\" value: \"{name}\" }}\n"));
    }
    for (name, kind, dims) in outputs {
        config.push_str(&format!("output {{ name: \"{name}\" data_type: {kind} dims: [ {dims} ] }}\n"));
        step.push_str(&format!("output_map {{ key: \"{name}\" value: \"{name}\" }}\n"));
    }
    repository.model("ensemble", &format!("{config}{step}}} ] }}"));
    let Some(frontend) = Frontend::start(&repository, &[]) else { return };
    let answer = frontend.asked(COMPLETIONS, &completion("ensemble", "a <<reply through>>"));
    assert_eq!(answer["choices"][0]["text"], "through");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}));
    let events = frontend.streamed(COMPLETIONS, &completion("ensemble", "<<pieces [\"a\",\"b\"]>>"));
    assert_eq!(super::events::texts(&events).concat(), "ab");
    assert_eq!(reasons(&events), ["stop"]);
    frontend.stop();
}
