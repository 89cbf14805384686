//! Requests and what becomes of them, against models of each convention.

use std::time::Duration;

use super::messages::ContentStyle;
use super::*;
use crate::error::Detail;
use crate::form::tests::{facts, sampling, strings};
use crate::request::*;

mod chats;
mod prompts;

const VLLM: &str = r#"
    name: "llama" backend: "vllm" max_batch_size: 0
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "embedding_request" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
"#;

const PYTHON: &str = r#"
    name: "mock" backend: "python" max_batch_size: 0
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1, 1 ] }
    input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1, 1 ] }
    output { name: "text_output" data_type: TYPE_STRING dims: [ 1, -1 ] }
"#;

/// vLLM's convention by another backend.
const LIKE_VLLM: &str = r#"
    name: "alike" backend: "python" max_batch_size: 0
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "return_logprobs" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "logprobs" data_type: TYPE_STRING dims: [ -1 ] }
"#;

const EMBEDDER: &str = r#"
    name: "minilm" platform: "ensemble" max_batch_size: 32
    input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] }
"#;

const RANKER: &str = r#"
    name: "ranker" backend: "onnxruntime" max_batch_size: 0
    input { name: "query" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "document" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "score" data_type: TYPE_FP32 dims: [ 1 ] }
"#;

const IDENTITY: &str = r#"
    name: "identity"
    input { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] }
"#;

fn bounds() -> RenderBounds {
    RenderBounds { steps_max: 1_000_000, bytes_max: 1 << 20, time_max: Duration::from_secs(60) }
}

fn settings(compat: Compat) -> Settings {
    Settings {
        compat,
        extensions: true,
        form: None,
        lora_separator: None,
        default_max_tokens: 16,
        tool_parser: None,
        tool_parse_bytes_max: 512,
        reasoning_parser: None,
        counts_tokens: false,
        render: bounds(),
        language: None,
    }
}

fn find(name: &str) -> Option<Model> {
    let config = [VLLM, LIKE_VLLM, PYTHON, EMBEDDER, RANKER, IDENTITY]
        .into_iter()
        .find(|config| config.contains(&format!("name: \"{name}\"\n")) || config.contains(&format!("\"{name}\" ")))?;
    let mut facts = facts(config);
    facts.read_loras(None).expect("no files");
    Some(Model { name: name.to_owned(), facts: Arc::new(facts), language: None })
}

fn run(request: Request, settings: &Settings) -> Result<Prepared, Refusal> {
    match prepare(request, "id".to_owned(), 5, settings, None, &find)? {
        Outcome::Request(prepared) => Ok(*prepared),
        Outcome::Answered(_) | Outcome::Deferred(_) => panic!("it is for a model"),
    }
}

fn completions(model: &str) -> Completions {
    Completions {
        model: model.to_owned(),
        prompt: Prompt::Text("Once".to_owned()),
        sampling: Sampling { temperature: Some(1.0), ..sampling() },
        logprobs: None,
        echo: None,
        has_suffix: false,
        best_of: None,
    }
}

/// What a completion is refused with.
fn refusal(completions: Completions, compat: Compat) -> (u16, String) {
    let refusal = run(Request::Completions(Box::new(completions)), &settings(compat)).expect_err("a refusal");
    text_of(refusal)
}

fn text_of(refusal: Refusal) -> (u16, String) {
    match refusal.detail {
        Detail::Text(text) => (refusal.status, text),
        Detail::Error { message, code, .. } => (refusal.status, format!("{code}: {message}")),
        other => panic!("no text: {other:?}"),
    }
}

#[test]
fn a_completion_becomes_the_inputs_of_its_model() {
    let mut request = completions("llama");
    request.sampling.stream = true;
    request.sampling.stream_options = Some(StreamOptions { include_usage: true, continuous_usage_stats: false });
    request.sampling.priority = Some(3);
    request.logprobs = Some(2);
    let prepared = run(Request::Completions(Box::new(request)), &settings(Compat::OpenAi)).expect("a request");
    assert_eq!((prepared.model.as_str(), prepared.priority, prepared.requests.len()), ("llama", Some(3), 1));
    let plan = &prepared.plan;
    assert_eq!((plan.id.as_str(), plan.created, plan.model.as_str()), ("id", 5, "llama"));
    assert_eq!((plan.stream, plan.include_usage, plan.logprobs, &plan.tools), (true, true, Some(2), &ToolPlan::None));
    assert_eq!(plan.max_tokens, Some(16));
    let parameters = prepared.requests[0].iter().find(|input| input.name == "sampling_parameters").expect("parameters");
    let text = &strings(&parameters.data)[0];
    assert!(text.contains(r#""temperature": 1, "top_p": 1, "max_tokens": 16, "logprobs": 2"#), "{text}");
}

#[test]
fn log_probabilities_are_those_of_models_that_follow_vllm() {
    let request = Completions { logprobs: Some(2), ..completions("alike") };
    let inputs = run(Request::Completions(Box::new(request.clone())), &settings(Compat::OpenAi)).expect("a request");
    assert!(inputs.requests[0].iter().any(|input| input.name == "return_logprobs" && input.data == [1]));
    let text = "logprobs are currently available only for the vLLM backend";
    assert_eq!(refusal(request, Compat::Triton), (400, text.to_owned()));
}

/// contract/openai.md section 1.3: a request with every fault is refused for the first of them, and so on.
#[test]
fn completions_are_checked_in_order() {
    let mut request = Completions {
        model: "none".to_owned(),
        prompt: Prompt::List { is_empty: true },
        has_suffix: true,
        best_of: Some(Some(2)),
        logprobs: Some(1),
        ..completions("mock")
    };
    request.sampling.n = 2;
    request.sampling.has_logit_bias = true;
    request.sampling.stream_options = Some(StreamOptions::default());
    let check = |request: &Completions, text: &str| {
        assert_eq!(refusal(request.clone(), Compat::Triton), (400, text.to_owned()));
        assert_eq!(refusal(request.clone(), Compat::OpenAi), (400, text.to_owned()));
    };
    check(&request, "Unknown model: none");
    request.model = "mock".to_owned();
    check(&request, "suffix is not currently supported");
    request.has_suffix = false;
    check(&request, "prompt must be non-empty");
    request.prompt = Prompt::List { is_empty: false };
    check(&request, "only single string input is supported");
    request.prompt = Prompt::Text("a".to_owned());
    check(&request, "Received n=2, but only single choice (n=1) is currently supported");
    request.sampling.n = 1;
    check(&request, "Received best_of=2, but only single choice (best_of=1) is currently supported");
    request.best_of = Some(None);
    check(&request, "logit bias is not supported");
    request.sampling.has_logit_bias = false;
    check(&request, "logprobs are currently available only for the vLLM backend");
    request.logprobs = Some(0);
    check(&request, "`stream_options` can only be used when `stream` is True");
    request.sampling.stream_options = None;
    assert!(run(Request::Completions(Box::new(request.clone())), &settings(Compat::OpenAi)).is_ok());
    request.model = "llama".to_owned();
    check(&request, "best_of is no longer supported in vLLM backend, removed from vLLM V1 engine");
}

#[test]
fn models_that_generate_no_text_are_told_apart() {
    assert_eq!(refusal(completions("identity"), Compat::Triton), (500, "Unknown backend".to_owned()));
    let (status, text) = refusal(completions("minilm"), Compat::OpenAi);
    assert!(status == 400 && text.starts_with("Model 'minilm' does not generate text"), "{text}");
    let echo = Completions { echo: Some(true), ..completions("llama") };
    let echo = Completions { sampling: Sampling { stream: true, ..sampling() }, ..echo };
    assert_eq!(refusal(echo.clone(), Compat::OpenAi).0, 400);
    assert!(run(Request::Completions(Box::new(echo)), &settings(Compat::Triton)).is_ok());
}

/// contract/openai.md section 3.1: exactly two parts are a name and an adapter.
#[test]
fn the_separator_splits_off_an_adapter() {
    let separated = |compat| Settings { lora_separator: Some("_lora_".to_owned()), ..settings(compat) };
    let run = |name: &str, compat| run(Request::Completions(Box::new(completions(name))), &separated(compat));
    let prepared = run("llama_lora_doll", Compat::OpenAi).expect("a request");
    assert_eq!((prepared.model.as_str(), prepared.plan.model.as_str()), ("llama", "llama_lora_doll"));
    let parameters = prepared.requests[0].iter().find(|input| input.name == "sampling_parameters").expect("parameters");
    assert!(strings(&parameters.data)[0].contains(r#""lora_name": "doll""#));
    let text = |name: &str, compat| text_of(run(name, compat).expect_err("a refusal"));
    let unknown = "Unknown model: llama_lora_doll_lora_x".to_owned();
    assert_eq!(text("llama_lora_doll_lora_x", Compat::OpenAi), (400, unknown));
    let unknown = "Unknown LoRA: sheep; for model: mock_lora_sheep".to_owned();
    assert_eq!(text("mock_lora_sheep", Compat::OpenAi), (400, unknown));
    // Upstream lets any name pass where the list is unknown.
    assert!(run("mock_lora_sheep", Compat::Triton).is_ok());
    let off = Settings { lora_separator: Some(String::new()), ..settings(Compat::OpenAi) };
    let request = Request::Completions(Box::new(completions("llama_lora_doll")));
    assert!(super::prepare(request, String::new(), 0, &off, None, &find).is_err());
}

#[test]
fn ids_have_the_form_of_a_uuid() {
    let uuid = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
    let expected = "cmpl-01234567-89ab-cdef-0123-456789abcdef";
    assert_eq!(id_of(Operation::Chat, Compat::Triton, uuid), expected);
    assert_eq!(id_of(Operation::Chat, Compat::OpenAi, uuid), format!("chat{expected}"));
    assert_eq!(id_of(Operation::Completions, Compat::OpenAi, uuid), expected);
    let small = id_of(Operation::Responses, Compat::OpenAi, 1);
    assert_eq!(small, "resp_00000000-0000-0000-0000-000000000001");
}

fn embeddings(model: &str, input: EmbeddingInput) -> Request {
    let model = model.to_owned();
    Request::Embeddings(Box::new(Embeddings { model, input, dimensions: None, base64: true, user: None }))
}

#[test]
fn every_text_is_a_request_for_an_embedding() {
    let texts = EmbeddingInput::Texts(vec!["a".to_owned(), "b".to_owned()]);
    let prepared = run(embeddings("minilm", texts.clone()), &settings(Compat::OpenAi)).expect("requests");
    let sent: Vec<_> = prepared.requests.iter().map(|inputs| strings(&inputs[0].data)).collect();
    assert_eq!(sent, [["a"], ["b"]]);
    assert_eq!((prepared.plan.base64, prepared.plan.output_name.as_deref()), (true, Some("embedding")));
    let prepared = run(embeddings("llama", texts), &settings(Compat::OpenAi)).expect("requests");
    assert_eq!(strings(&prepared.requests[1][0].data), [r#"{"input": "b", "pooling_params": {}}"#]);
    let tokens = EmbeddingInput::Tokens(vec![1, 2]);
    let prepared = run(embeddings("llama", tokens.clone()), &settings(Compat::Triton)).expect("requests");
    assert_eq!(strings(&prepared.requests[0][0].data), [r#"{"input": [1, 2], "pooling_params": {}}"#]);
    let refused = |request, compat| text_of(run(request, &settings(compat)).expect_err("a refusal"));
    let text = "TRT-LLM backend and Python backend do not support embedding requests".to_owned();
    assert_eq!(refused(embeddings("mock", tokens.clone()), Compat::OpenAi), (400, text.clone()));
    assert_eq!(refused(embeddings("minilm", tokens.clone()), Compat::Triton), (400, text));
    assert!(refused(embeddings("minilm", tokens), Compat::OpenAi).1.contains("embeds texts, not tokens"));
    let none = EmbeddingInput::Texts(Vec::new());
    assert_eq!(refused(embeddings("minilm", none), Compat::OpenAi).0, 400);
    let many = EmbeddingInput::Texts(vec![String::new(); 2049]);
    assert!(refused(embeddings("minilm", many), Compat::OpenAi).1.contains("2049 texts"));
    let mut long = embeddings("minilm", EmbeddingInput::Text("a".to_owned()));
    if let Request::Embeddings(embeddings) = &mut long {
        embeddings.dimensions = Some(12);
    }
    assert!(refused(long, Compat::OpenAi).1.contains("have 384 elements"));
}

#[test]
fn every_document_is_a_request_for_a_score() {
    let documents = vec!["x".to_owned(), "y".to_owned()];
    let (model, query) = ("ranker".to_owned(), "q".to_owned());
    let rerank = Rerank { model, query, documents, top_n: Some(1), return_documents: true };
    let request = Request::Rerank(Box::new(rerank.clone()));
    let prepared = run(request, &settings(Compat::OpenAi)).expect("requests");
    let sent = |prepared: &Prepared| -> Vec<String> {
        prepared.requests.iter().flatten().flat_map(|input| strings(&input.data)).collect()
    };
    assert_eq!(sent(&prepared), ["q", "x", "q", "y"]);
    assert_eq!(prepared.plan.rerank.as_deref(), Some(&rerank));
    let elsewhere = Request::Rerank(Box::new(Rerank { model: "mock".to_owned(), ..rerank }));
    assert_eq!(run(elsewhere, &settings(Compat::OpenAi)).expect_err("a refusal").status, 400);
    let score = |left: &[&str], right: &[&str]| {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let score = Score { model: "ranker".to_owned(), left: texts(left), right: texts(right) };
        run(Request::Score(Box::new(score)), &settings(Compat::OpenAi))
    };
    assert_eq!(sent(&score(&["a"], &["x", "y"]).expect("requests")), ["a", "x", "a", "y"]);
    assert_eq!(sent(&score(&["a", "b"], &["x", "y"]).expect("requests")), ["a", "x", "b", "y"]);
    assert!(score(&["a", "b", "c"], &["x", "y"]).is_err());
    assert!(score(&[], &[]).is_err());
}

/// The query goes into each of the requests, so that a short body could take all memory.
#[test]
fn pairs_of_texts_have_a_bound_together() {
    let refused = |query: usize, documents: usize| {
        let documents = vec!["d".to_owned(); documents];
        let (model, query) = ("ranker".to_owned(), "q".repeat(query));
        let rerank = Rerank { model, query, documents, top_n: None, return_documents: false };
        run(Request::Rerank(Box::new(rerank)), &settings(Compat::OpenAi)).err().map(text_of)
    };
    assert_eq!(refused((1 << 20) - 1, 64), None);
    let (status, text) = refused(1 << 20, 64).expect("a refusal");
    assert_eq!(status, 400);
    assert!(text.starts_with("the pairs of texts have 67108928 bytes, more than 67108864"), "{text}");
}
