//! Requests that a template and a tokenizer have a part in.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::chats::{chat, tool, user};
use super::*;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
    {% if tools %}{{ tools | tojson }}{% endif %}{{ reasoning_effort }}\
    {% if add_generation_prompt %}<assistant>{% endif %}";
const ENDLESS: &str = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}}"#;

/// The language of a folder that is gone once it is loaded.
fn language(template: Option<&str>) -> Arc<Language> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder: PathBuf = std::env::temp_dir().join(format!("nereid-openai-prepare-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let mut config = vec![("model_max_length".to_owned(), Json::Int(4))];
    config.extend(template.map(|template| ("chat_template".to_owned(), Json::Text(template.to_owned()))));
    let config = crate::form::compact_text(&Json::Object(config));
    fs::write(folder.join("tokenizer_config.json"), config).expect("a file");
    fs::write(folder.join("tokenizer.json"), TOKENIZER).expect("a file");
    let tokenizer = Tokenizer::load(&folder, 1 << 20).expect("a tokenizer");
    let templates = Templates::load(&folder, None).expect("templates");
    fs::remove_dir_all(&folder).expect("the folder is there");
    Arc::new(Language { tokenizer: Some(tokenizer), templates })
}

fn with(template: &str, compat: Compat) -> Settings {
    Settings { language: Some(language(Some(template))), ..settings(compat) }
}

fn prompt(chat: Chat, settings: &Settings) -> String {
    let prepared = run(Request::Chat(Box::new(chat)), settings).expect("a request");
    input(&prepared, "text_input")
}

fn input(prepared: &Prepared, name: &str) -> String {
    let input = prepared.requests[0].iter().find(|input| input.name == name);
    input.map(|input| strings(&input.data).concat()).unwrap_or_default()
}

fn refused(chat: Chat, settings: &Settings) -> (u16, String) {
    text_of(run(Request::Chat(Box::new(chat)), settings).expect_err("a refusal"))
}

#[test]
fn a_chat_becomes_a_prompt() {
    let mut request = chat("mock");
    request.messages.insert(0, Message::Developer { content: "s".to_owned() });
    request.tools = Some(vec![tool("f")]);
    request.tool_choice = Some(ToolChoice::None);
    request.reasoning_effort = Some("low".to_owned());
    let tools = r#"[{"type": "function", "function": {"description": null, "name": "f", "parameters": null}}]"#;
    let expected = format!("<system>s<user>Hi{tools}low<assistant>");
    assert_eq!(prompt(request, &with(TEMPLATE, Compat::OpenAi)), expected);
    let parts = Content::Parts(vec![Part::Text("a".to_owned()), Part::Text("b".to_owned())]);
    let parts = Chat { messages: vec![Message::User { content: parts, name: None }], ..chat("mock") };
    assert_eq!(prompt(parts.clone(), &with(TEMPLATE, Compat::OpenAi)), "<user>a\nb<assistant>");
    assert!(prompt(parts, &with(TEMPLATE, Compat::Triton)).starts_with("<user>[{'type': 'text'"));
}

#[test]
fn templates_that_fail_are_a_fault_of_the_server() {
    for compat in [Compat::OpenAi, Compat::Triton] {
        let failing = with("{{ raise_exception('roles must alternate') }}", compat);
        let (status, text) = refused(chat("mock"), &failing);
        assert!(status == 500 && text.contains("roles must alternate"), "{text}");
        let (status, text) = refused(chat("mock"), &Settings { language: Some(language(None)), ..settings(compat) });
        assert!(status == 500 && text.to_lowercase().contains("cannot use chat template"), "{text}");
    }
}

/// On a shard, what is too much is put off instead of refused.
#[test]
fn renderings_are_bounded() {
    let endless = with(ENDLESS, Compat::OpenAi);
    let (status, text) = refused(chat("mock"), &endless);
    assert!(status == 400 && text.contains("; send"), "{text}");
    assert_eq!(refused(chat("mock"), &with(ENDLESS, Compat::Triton)).0, 500);
    let request = Request::Chat(Box::new(chat("mock")));
    let inline = RenderBounds { steps_max: 1000, ..bounds() };
    let outcome = super::prepare(request.clone(), String::new(), 0, &endless, Some(&inline), &find);
    assert!(matches!(outcome, Ok(Outcome::Deferred(deferred)) if deferred == request));
    let short = with(TEMPLATE, Compat::OpenAi);
    let outcome = super::prepare(request, String::new(), 0, &short, Some(&inline), &find);
    assert!(matches!(outcome, Ok(Outcome::Request(_))));
}

#[test]
fn forced_tools_and_formats_guide_the_text() {
    let openai = with(TEMPLATE, Compat::OpenAi);
    let prepared = |chat: &Chat, settings: &Settings| run(Request::Chat(Box::new(chat.clone())), settings);
    let mut forced = chat("llama");
    forced.tools = Some(vec![tool("f")]);
    forced.tool_choice = Some(ToolChoice::Required);
    for settings in [&openai, &with(TEMPLATE, Compat::Triton)] {
        let prepared = prepared(&forced, settings).expect("a request");
        let text = input(&prepared, "sampling_parameters");
        let guide = r#""structured_outputs": "{\"json\": \"{\\\"type\\\":\\\"object\\\"}\"}""#;
        assert!(text.contains(guide), "{text}");
        assert_eq!(prepared.plan.tools, ToolPlan::Forced { name: "f".to_owned() });
    }
    let schema = Json::Object(vec![("type".to_owned(), Json::Text("string".to_owned()))]);
    let format = ResponseFormat::JsonSchema { name: "s".to_owned(), schema: Some(schema) };
    let mut held = Chat { response_format: Some(format), ..chat("llama") };
    let text = input(&prepared(&held, &openai).expect("a request"), "sampling_parameters");
    assert!(text.contains(r#"{\\\"type\\\":\\\"string\\\"}"#), "{text}");
    held.model = "mock".to_owned();
    assert!(refused(held.clone(), &openai).1.contains("cannot hold its text to one"));
    assert!(prepared(&held, &with(TEMPLATE, Compat::Triton)).is_ok());
    held.response_format = Some(ResponseFormat::JsonObject);
    assert!(prepared(&held, &openai).is_ok());
}

#[test]
fn prompts_are_counted_and_must_fit() {
    let counting = Settings { counts_tokens: true, ..with(TEMPLATE, Compat::OpenAi) };
    let completion = |prompt: &str, max_tokens| {
        let mut request = Completions { prompt: Prompt::Text(prompt.to_owned()), ..completions("mock") };
        request.sampling.max_tokens = max_tokens;
        run(Request::Completions(Box::new(request)), &counting)
    };
    assert_eq!(completion("a b a", None).expect("a request").plan.prompt_tokens, Some(3));
    assert_eq!(completion("a b a b", None).expect("it just fits").plan.prompt_tokens, Some(4));
    let (status, text) = text_of(completion("a b a", Some(2)).expect_err("a refusal"));
    let start = "context_length_exceeded: This model's maximum context length is 4 tokens. However, you requested 5";
    assert!(status == 400 && text.starts_with(start), "{text}");
    let (_, text) = text_of(completion("a b a b a", None).expect_err("a refusal"));
    assert!(text.contains("However, your prompt has 5 tokens."), "{text}");
    let small = RenderBounds { bytes_max: 2, ..bounds() };
    let request = Request::Completions(Box::new(completions("mock")));
    let outcome = super::prepare(request, String::new(), 0, &counting, Some(&small), &find);
    assert!(matches!(outcome, Ok(Outcome::Deferred(_))));
}

#[test]
fn texts_are_tokenized_without_a_model() {
    let settings = with(TEMPLATE, Compat::OpenAi);
    let answer = |request| match super::prepare(request, String::new(), 0, &settings, None, &find) {
        Ok(Outcome::Answered(body)) => body,
        Ok(_) => panic!("no model has a part in it"),
        Err(refusal) => format!("{:?}", text_of(refusal)),
    };
    let tokenize = |model: Option<&str>, source, return_token_strs| {
        let model = model.map(str::to_owned);
        Request::Tokenize(Box::new(Tokenize { model, source, add_special_tokens: None, return_token_strs }))
    };
    let prompt = || TokenizeSource::Prompt("a b".to_owned());
    let expected = r#"{"count":2,"max_model_len":4,"tokens":[0,1],"token_strs":["a","b"]}"#;
    assert_eq!(answer(tokenize(None, prompt(), true)), expected);
    assert_eq!(answer(tokenize(Some("none"), prompt(), true)), r#"(400, "Unknown model: none")"#);
    let messages = vec![user("a")];
    let source = TokenizeSource::Chat { messages, tools: None, add_generation_prompt: false };
    // `<`, `user`, `>` and `a`; Whitespace keeps signs together.
    let expected = r#"{"count":4,"max_model_len":4,"tokens":[2,2,2,0],"token_strs":null}"#;
    assert_eq!(answer(tokenize(Some("mock"), source, false)), expected);
    let detokenize =
        |tokens: &[i64]| Request::Detokenize(Box::new(Detokenize { model: None, tokens: tokens.to_vec() }));
    assert_eq!(answer(detokenize(&[1, 0])), r#"{"prompt":"b a"}"#);
    assert!(answer(detokenize(&[-1])).starts_with("(400"));
}

#[test]
fn a_response_is_a_chat_without_a_memory() {
    let settings = with(TEMPLATE, Compat::OpenAi);
    let mut responses = Responses {
        chat: chat("mock"),
        instructions: None,
        metadata: None,
        max_output_tokens: None,
        tools: Json::List(Vec::new()),
        tool_choice: Json::Text("auto".to_owned()),
        text: None,
        parallel_tool_calls: true,
        store: true,
        previous_response_id: Some("resp_1".to_owned()),
    };
    let refusal = run(Request::Responses(Box::new(responses.clone())), &settings).expect_err("a refusal");
    assert!(text_of(refusal).1.contains("stores no responses"));
    responses.previous_response_id = None;
    let prepared = run(Request::Responses(Box::new(responses)), &settings).expect("a request");
    assert_eq!(prepared.plan.operation, Operation::Responses);
    assert!(prepared.plan.responses.is_some_and(|responses| responses.chat.messages.is_empty()));
}
