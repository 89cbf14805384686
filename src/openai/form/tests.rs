//! Models of every convention, by configurations as users write them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::error::Detail;
use crate::json::Json;

const VLLM: &str = r#"
    name: "llama" backend: "vllm" max_batch_size: 0 model_transaction_policy { decoupled: true }
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "return_finish_reason" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "return_logprobs" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "embedding_request" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
"#;

const TENSORRT_LLM: &str = r#"
    name: "bls" backend: "python" max_batch_size: 4
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
    input { name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }
    input { name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
    input { name: "top_k" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    input { name: "seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }
    input { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "guided_decoding_guide_type" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "guided_decoding_guide" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "lora_task_id" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }
    input { name: "lora_weights" data_type: TYPE_FP16 dims: [ -1, -1 ] optional: true }
    input { name: "lora_config" data_type: TYPE_INT32 dims: [ -1, 3 ] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
"#;

const LLM_API: &str = r#"
    name: "tensorrt_llm" backend: "python" max_batch_size: 0
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "sampling_param_max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    input { name: "sampling_param_stop" data_type: TYPE_STRING dims: [ -1 ] optional: true }
    input { name: "sampling_param_seed" data_type: TYPE_INT64 dims: [ 1 ] optional: true }
    input { name: "sampling_param_exclude_input_from_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }
"#;

pub(crate) fn facts(config: &str) -> ModelFacts {
    facts_in(config, None)
}

fn facts_in(config: &str, folder: Option<&Path>) -> ModelFacts {
    let document = nereid_model_config::parse("config.pbtxt", config.as_bytes()).expect("a configuration");
    let config = nereid_model_config::from_dynamic(&document.message).expect("its message");
    ModelFacts::of(&ModelSpec::new(config).expect("a model"), folder)
}

/// With the defaults of a chat.
pub(crate) fn sampling() -> Sampling {
    Sampling {
        temperature: Some(0.7),
        top_p: Some(1.0),
        frequency_penalty: Some(0.0),
        presence_penalty: Some(0.0),
        n: 1,
        ..Sampling::default()
    }
}

fn generation(sampling: &Sampling) -> Generation<'_> {
    Generation {
        prompt: "Hé",
        sampling,
        is_chat: true,
        max_tokens: 16,
        logprobs: None,
        echo: None,
        guide: None,
        lora: None,
    }
}

fn inputs(facts: &ModelFacts, generation: &Generation<'_>) -> Vec<Input> {
    facts.inputs(generation, None, Compat::OpenAi).expect("inputs")
}

/// An input as text: its datatype, shape and elements.
fn show(inputs: &[Input], name: &str) -> String {
    let Some(input) = inputs.iter().find(|input| input.name == name) else { return String::new() };
    let data = &input.data[..];
    let elements = match input.datatype {
        DataType::Bytes => format!("{:?}", strings(data)),
        DataType::Fp32 => format!("{:?}", f32::from_le_bytes(data.try_into().expect("4 bytes"))),
        _ => format!("{data:?}"),
    };
    format!("{} {:?} {elements}", input.datatype.name(), &input.shape[..])
}

pub(crate) fn strings(mut data: &[u8]) -> Vec<String> {
    let mut strings = Vec::new();
    while !data.is_empty() {
        let (length, rest) = data.split_at(4);
        let length = u32::from_le_bytes(length.try_into().expect("4 bytes"));
        let (text, rest) = rest.split_at(usize::try_from(length).expect("a length"));
        strings.push(String::from_utf8(text.to_vec()).expect("a text"));
        data = rest;
    }
    strings
}

fn names(inputs: &[Input]) -> Vec<&str> {
    inputs.iter().map(|input| input.name.as_str()).collect()
}

/// A folder that is gone with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nereid-openai-form-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, bytes).expect("a file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&u16::try_from(header.len()).expect("a header").to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// contract/openai.md section 3.2, with the text that its example shows.
#[test]
fn vllm_has_its_parameters_in_a_text_of_json() {
    let facts = facts(VLLM);
    let sampling = sampling();
    let inputs = inputs(&facts, &generation(&sampling));
    let expected = [
        "text_input",
        "stream",
        "exclude_input_in_output",
        "sampling_parameters",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "return_logprobs",
        "return_finish_reason",
    ];
    assert_eq!(names(&inputs), expected);
    assert_eq!(show(&inputs, "text_input"), r#"BYTES [1] ["Hé"]"#);
    assert_eq!(show(&inputs, "stream"), "BOOL [1] [0]");
    assert_eq!(show(&inputs, "exclude_input_in_output"), "BOOL [1] [1]");
    let text = concat!(
        r#"{"frequency_penalty": 0, "ignore_eos": false, "n": 1, "presence_penalty": 0, "temperature": 0.7, "#,
        r#""top_p": 1, "max_tokens": 16}"#
    );
    let element = inputs.iter().find(|input| input.name == "sampling_parameters").expect("parameters");
    assert_eq!(strings(&element.data), [text]);
    assert!(facts.output_form(None, Compat::OpenAi).has_finish_reason);
    let triton = facts.inputs(&generation(&sampling), None, Compat::Triton).expect("inputs");
    assert_eq!(names(&triton), expected[..7]);
    assert!(!facts.output_form(None, Compat::Triton).has_finish_reason);
}

#[test]
fn the_parameters_of_vllm_have_the_order_and_the_texts_of_python() {
    let sampling = Sampling {
        temperature: Some(1.0),
        top_p: None,
        presence_penalty: Some(1e-7),
        seed: Some(-3),
        stop: Some(vec!["é\"\n".into(), "😀".into()]),
        min_tokens: Some(2),
        ignore_eos: true,
        extra: vec![
            ("top_k".into(), Json::Int(5)),
            ("seed".into(), Json::Int(9)),
            ("min_p".into(), Json::Null),
            ("guided_regex".into(), Json::Text("a+".into())),
            ("guided_whitespace_pattern".into(), Json::Text(" ".into())),
        ],
        ..sampling()
    };
    let generation = Generation { logprobs: Some(2), lora: Some("sheep"), ..generation(&sampling) };
    let expected = concat!(
        r#"{"frequency_penalty": 0, "ignore_eos": true, "min_tokens": 2, "n": 1, "presence_penalty": 1e-07, "#,
        r#""seed": -3, "stop": ["\u00e9\"\n", "\ud83d\ude00"], "temperature": 1.0, "max_tokens": 16, "logprobs": 2, "#,
        r#""lora_name": "sheep", "top_k": 5, "#,
        r#""structured_outputs": "{\"regex\": \"a+\", \"whitespace_pattern\": \" \"}"}"#
    );
    assert_eq!(super::sampling::text(&generation, Compat::OpenAi), expected);
    let triton = super::sampling::text(&generation, Compat::Triton);
    assert!(triton.ends_with(r#""lora_name": "sheep"}"#), "{triton}");
    let guide = Guide::Schema(r#"{"type":"object"}"#.into());
    let text = super::sampling::text(&Generation { guide: Some(&guide), ..generation }, Compat::Triton);
    assert!(text.ends_with(r#""structured_outputs": "{\"json\": \"{\\\"type\\\":\\\"object\\\"}\"}"}"#), "{text}");
    let completion = Generation { is_chat: false, ..generation };
    assert!(super::sampling::text(&completion, Compat::OpenAi).contains(r#""temperature": 1, "#));
}

/// contract/openai.md section 3.3. Inputs that the configuration lacks are left out.
#[test]
fn tensorrt_llm_has_an_input_for_each_parameter() {
    let facts = facts(TENSORRT_LLM);
    let sampling = Sampling {
        stream: true,
        stop: Some(vec!["a".into(), "b".into()]),
        seed: Some(7),
        extra: vec![("top_k".into(), Json::Int(5)), ("lora_config".into(), Json::Int(1))],
        ..sampling()
    };
    let inputs = inputs(&facts, &generation(&sampling));
    let expected = ["text_input", "stream", "max_tokens", "stop_words", "seed", "temperature", "top_k"];
    assert_eq!(names(&inputs), expected);
    assert_eq!(show(&inputs, "text_input"), r#"BYTES [1, 1] ["Hé"]"#);
    assert_eq!(show(&inputs, "stream"), "BOOL [1, 1] [1]");
    assert_eq!(show(&inputs, "max_tokens"), "INT32 [1, 1] [16, 0, 0, 0]");
    assert_eq!(show(&inputs, "stop_words"), r#"BYTES [1, 2] ["a", "b"]"#);
    assert_eq!(show(&inputs, "seed"), "UINT64 [1, 1] [7, 0, 0, 0, 0, 0, 0, 0]");
    assert_eq!(show(&inputs, "temperature"), "FP32 [1, 1] 0.7");
    let triton = facts.inputs(&generation(&sampling), None, Compat::Triton).expect("inputs");
    assert_eq!(names(&triton), expected[..6]);
    let echo = Generation { echo: Some(false), ..generation(&sampling) };
    let echoed = facts.inputs(&echo, None, Compat::OpenAi).expect("inputs");
    assert_eq!(show(&echoed, "exclude_input_in_output"), "BOOL [1, 1] [1]");
    let guide = Guide::Schema("{}".into());
    let guided = facts.inputs(&Generation { guide: Some(&guide), ..echo }, None, Compat::OpenAi).expect("inputs");
    assert_eq!(show(&guided, "guided_decoding_guide_type"), r#"BYTES [1, 1] ["json_schema"]"#);
    assert_eq!(show(&guided, "guided_decoding_guide"), r#"BYTES [1, 1] ["{}"]"#);
}

#[test]
fn integers_that_an_input_cannot_hold_are_refused() {
    let facts = facts(TENSORRT_LLM);
    let sampling = Sampling { seed: Some(-1), ..sampling() };
    let refusal = |generation: &Generation<'_>, compat| facts.inputs(generation, None, compat).expect_err("a refusal");
    let triton = refusal(&generation(&sampling), Compat::Triton);
    assert_eq!(triton, Refusal::server("Python integer -1 out of bounds for uint64"));
    let own = refusal(&generation(&sampling), Compat::OpenAi);
    assert_eq!(own.status, 400);
    assert!(matches!(own.detail, Detail::Text(text) if text.starts_with("`seed` is -1, but model 'bls' takes UINT64")));
    let large = Generation { max_tokens: 3_000_000_000, ..generation(&sampling) };
    let text = Refusal::server("Python integer 3000000000 out of bounds for int32");
    assert_eq!(refusal(&large, Compat::Triton), text);
}

#[test]
fn the_llm_api_has_names_of_its_own() {
    let facts = facts(LLM_API);
    let sampling = Sampling { seed: Some(-1), stop: Some(vec!["a".into(), "b".into()]), ..sampling() };
    let inputs = inputs(&facts, &generation(&sampling));
    assert_eq!(show(&inputs, "text_input"), r#"BYTES [1] ["Hé"]"#);
    assert_eq!(show(&inputs, "streaming"), "BOOL [1] [0]");
    assert_eq!(show(&inputs, "sampling_param_max_tokens"), "INT32 [1] [16, 0, 0, 0]");
    assert_eq!(show(&inputs, "sampling_param_stop"), r#"BYTES [2] ["a", "b"]"#);
    assert_eq!(show(&inputs, "sampling_param_seed"), "INT64 [1] [255, 255, 255, 255, 255, 255, 255, 255]");
    assert_eq!(show(&inputs, "sampling_param_exclude_input_from_output"), "BOOL [1] [1]");
    assert!(facts.output_form(None, Compat::Triton).is_cumulative);
}

#[test]
fn the_convention_is_that_of_the_configuration_the_flag_or_the_backend() {
    let with = |config: &str, form: &str| {
        let parameter = format!("parameters {{ key: 'openai_form' value {{ string_value: '{form}' }} }}");
        facts(&format!("{config}{parameter}"))
    };
    assert_eq!(facts(VLLM).form(None), Form::Vllm);
    assert_eq!(facts(VLLM).form(Some(Form::TensorRtLlm)), Form::TensorRtLlm);
    assert_eq!(facts(TENSORRT_LLM).form(None), Form::TensorRtLlm);
    assert_eq!(facts(LLM_API).form(Some(Form::TensorRtLlm)), Form::LlmApi);
    assert_eq!(facts(LLM_API).form(Some(Form::Vllm)), Form::Vllm);
    assert_eq!(with(LLM_API, "tensorrtllm").form(Some(Form::Vllm)), Form::TensorRtLlm);
    let python = VLLM.replace("backend: \"vllm\"", "backend: \"python\"");
    assert_eq!(facts(&python).form(None), Form::Vllm);
    assert_eq!(facts(&python).backend(), "python");
    let ensemble = TENSORRT_LLM.replace("backend: \"python\"", "platform: \"ensemble\"");
    assert_eq!(facts(&ensemble).backend(), "ensemble");
    let mistaken = with(TENSORRT_LLM, "trtllm");
    assert_eq!(mistaken.form(None), Form::TensorRtLlm);
    assert!(mistaken.warnings()[0].contains("'trtllm'"), "{:?}", mistaken.warnings());
}

const EMBEDDER: &str = r#"
    name: "minilm" platform: "ensemble" max_batch_size: 32
    input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] }
"#;

#[test]
fn models_of_embeddings_and_of_scores_are_known_by_their_tensors() {
    let embedder = facts(EMBEDDER);
    assert!(embedder.is_embedding() && !embedder.is_generative() && !embedder.is_rerank());
    assert_eq!((embedder.embedding_length(), embedder.output_name()), (Some(384), Some("embedding")));
    let inputs = embedder.embedding_input("a").expect("its form").expect("inputs");
    assert_eq!(show(&inputs, "text"), r#"BYTES [1, 1] ["a"]"#);
    let scalar = facts(&EMBEDDER.replace("384", "1"));
    assert!(!scalar.is_embedding() && !scalar.is_rerank());
    let two = r#"input { name: "bias" data_type: TYPE_FP32 dims: [ 1 ] }"#;
    assert!(!facts(&format!("{EMBEDDER}{two}")).is_embedding());
    let pair = facts(&EMBEDDER.replace("384", "1").replace("TYPE_STRING dims: [ 1 ]", "TYPE_STRING dims: [ 2 ]"));
    assert!(pair.is_rerank());
    let inputs = pair.rerank_input("q", "d").expect("its form").expect("inputs");
    assert_eq!(show(&inputs, "text"), r#"BYTES [1, 2] ["q", "d"]"#);
    let ranker = facts(
        r#"
        name: "ranker" backend: "python" max_batch_size: 0
        input { name: "document" data_type: TYPE_STRING dims: [ 1 ] }
        input { name: "query" data_type: TYPE_STRING dims: [ 1 ] }
        output { name: "score" data_type: TYPE_FP32 dims: [ 1 ] }
        "#,
    );
    let inputs = ranker.rerank_input("q", "d").expect("its form").expect("inputs");
    assert_eq!(
        (show(&inputs, "query"), show(&inputs, "document")),
        (r#"BYTES [1] ["q"]"#.into(), r#"BYTES [1] ["d"]"#.into())
    );
    assert!(facts(VLLM).is_embedding() && facts(VLLM).is_generative());
    assert!(!facts(TENSORRT_LLM).is_embedding());
}

#[test]
fn vllm_embeds_by_a_text_of_json() {
    let inputs = facts(VLLM).embedding_request(Json::Text("é".into()), Some(8)).expect("inputs");
    assert_eq!(names(&inputs), ["embedding_request", "return_num_input_tokens", "return_num_output_tokens"]);
    let text = r#"{"input": "\u00e9", "pooling_params": {"dimensions": [8]}}"#;
    assert_eq!(strings(&inputs[0].data), [text]);
    let tokens = Json::List(vec![Json::Int(1), Json::Int(2)]);
    let inputs = facts(VLLM).embedding_request(tokens, None).expect("inputs");
    assert_eq!(strings(&inputs[0].data), [r#"{"input": [1, 2], "pooling_params": {}}"#]);
}

#[test]
fn a_tokenizer_is_inside_the_models_folder() {
    let folder = Folder::new();
    folder.write("llama/words/tokenizer.json", "{}");
    folder.write("llama/tokenizer/tokenizer.json", "{}");
    let model = folder.0.join("llama");
    let with = |value: &str| {
        let parameter = format!("parameters {{ key: 'openai_tokenizer' value {{ string_value: '{value}' }} }}");
        facts_in(&format!("{VLLM}{parameter}"), Some(&model))
    };
    assert_eq!(with("words").tokenizer_folder(), Some(&*model.join("words")));
    assert_eq!(facts_in(VLLM, Some(&model)).tokenizer_folder(), Some(&*model.join("tokenizer")));
    for outside in ["../llama/words", "/etc", "none"] {
        let facts = with(outside);
        assert_eq!((facts.tokenizer_folder(), facts.warnings().len()), (None, 1), "{outside}");
    }
}

/// contract/openai.md section 3.6.
#[test]
fn vllm_lists_the_adapters_of_its_files() {
    let folder = Folder::new();
    let model = folder.0.join("llama");
    let loras = || {
        let mut facts = facts_in(VLLM, Some(&model));
        facts.read_loras(None).expect("a list");
        facts
    };
    folder.write("llama/2/model.json", r#"{"enable_lora": "false"}"#);
    assert!(loras().loras().names().is_empty() && !loras().loras().allows("doll"));
    folder.write("llama/10/model.json", r#"{"enable_lora": "True"}"#);
    assert!(loras().loras().allows("anything"), "the list is unknown");
    assert!(loras().warnings()[0].contains("multi_lora.json"));
    folder.write("llama/10/multi_lora.json", r#"{"doll": "/d", "sheep": "/s"}"#);
    assert_eq!(loras().loras().names(), ["doll", "sheep"]);
    assert!(loras().loras().allows("sheep") && !loras().loras().allows("cow"));
    let mut absent = facts(VLLM);
    absent.read_loras(None).expect("a list");
    assert!(absent.loras().allows("anything"));
}

#[test]
fn adapters_of_tensorrt_llm_bring_their_weights_until_they_are_known() {
    let folder = Folder::new();
    folder.write("bls/1/multi_lora.json", r#"{"a": "loras/a", "b": "loras/a"}"#);
    let weights = [0, 60, 0, 64];
    let header = "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 1), }\n";
    folder.write("loras/a/model.lora_weights.npy", npy(header, &weights));
    let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 3), }\n";
    folder.write("loras/a/model.lora_config.npy", npy(header, &[0; 12]));
    let mut facts = facts_in(TENSORRT_LLM, Some(&folder.0.join("bls")));
    facts.read_loras(None).expect("a list");
    let sampling = sampling();
    let request = Generation { lora: Some("b"), ..generation(&sampling) };
    let first = inputs(&facts, &request);
    assert_eq!(show(&first, "lora_task_id"), "UINT64 [1, 1] [2, 0, 0, 0, 0, 0, 0, 0]");
    assert_eq!(show(&first, "lora_weights"), "FP16 [1, 2, 1] [0, 60, 0, 64]");
    assert_eq!(show(&first, "lora_config"), format!("INT32 [1, 1, 3] {:?}", [0; 12]));
    assert!(facts.needs_weights("b", Form::TensorRtLlm));
    facts.confirm_lora("b");
    assert!(!names(&inputs(&facts, &request)).contains(&"lora_weights"));
    facts.forget_lora("b");
    assert!(names(&inputs(&facts, &request)).contains(&"lora_weights"));
}

#[test]
fn adapters_outside_the_repository_or_incomplete_are_refused() {
    let folder = Folder::new();
    let read = |path: &str| {
        folder.write("repository/bls/1/multi_lora.json", format!(r#"{{"a": "{path}"}}"#));
        let mut facts = facts_in(TENSORRT_LLM, Some(&folder.0.join("repository/bls")));
        facts.read_loras(None).map(|()| facts.warnings().join("")).map_err(|error| error.to_string())
    };
    folder.write("outside/model.lora_weights.npy", "");
    folder.write("repository/half/model.lora_weights.npy", "");
    let text = "LoRA path '/etc' for 'a' must be a relative path inside its model repository";
    assert!(read("/etc").is_ok_and(|warning| warning.ends_with(text)));
    let text = "LoRA path 'bls/../../outside' for 'a' must be inside its model repository";
    assert!(read("bls/../../outside").is_ok_and(|warning| warning.ends_with(text)));
    std::os::unix::fs::symlink(folder.0.join("outside"), folder.0.join("repository/link")).expect("a link");
    assert!(read("link").is_ok_and(|warning| warning.ends_with("must be inside its model repository")));
    let text = "LoRA directory 'none' not found for 'a' in its model repository";
    assert_eq!(read("none"), Err(text.to_owned()));
    let text = "LoRA file 'model.lora_config.npy' not found for 'a' at path: half";
    assert_eq!(read("half"), Err(text.to_owned()));
}

#[test]
fn arrays_are_read_as_far_as_their_header_is_sound() {
    let read = |file: &[u8]| npy::read_from(&mut &file[..], u64::try_from(file.len()).expect("a length"));
    let header = "{'shape': (2,), 'fortran_order': True, 'descr': '<u2'}";
    let array = read(&npy(header, &[1, 2, 3, 4])).expect("an array");
    assert_eq!((&array.shape[..], &array.data[..]), (&[2][..], &[1, 2, 3, 4][..]));
    assert_eq!(array.datatype(DataType::Bf16), DataType::Bf16);
    assert_eq!(array.datatype(DataType::Fp16), DataType::Int16);
    let mut second = b"\x93NUMPY\x02\x00".to_vec();
    let header = "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": ()}";
    second.extend_from_slice(&u32::try_from(header.len()).expect("a header").to_le_bytes());
    second.extend_from_slice(header.as_bytes());
    second.extend_from_slice(&[0; 4]);
    assert!(read(&second).is_ok_and(|array| array.shape.is_empty() && array.data.len() == 4));
    for end in 0..second.len() {
        assert!(read(&second[..end]).is_err(), "{end}");
    }
    let bad = [
        "{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4",
        "[]",
    ];
    for header in bad {
        assert!(read(&npy(header, &[0; 8])).is_err(), "{header}");
    }
}
