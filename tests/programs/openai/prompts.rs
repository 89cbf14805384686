//! From messages to prompts: templates, their bounds, and what is wrong with messages (contract/openai.md sections 1.4
//! and 3.5).

use serde_json::{Value, json};

use super::frontend::{CHAT, COMPLETIONS, Frontend, Tokenizer, chat, completion, has_run, repository, with};
use nereid_test_support::http::request;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::run_to_end;
use nereid_test_support::variant::{ALL, each};

const MOCK: &str = "openai_mock";
const TRITON: &str = "--openai-compat=triton";

/// The prompt that the model got for these messages.
fn prompt(frontend: &Frontend, messages: Value, more: Value) -> String {
    let answer = frontend.asked(CHAT, &with(&json!({"model": MOCK, "messages": messages}), more));
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    let said: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    said["inputs"]["text_input"]["data"][0].as_str().expect("a prompt").to_owned()
}

#[test]
fn every_kind_of_message_reaches_the_template() {
    if has_run() {
        return;
    }
    let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
    let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag()]) else { return };
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":[1.0,\"\\u00e9\"]}"}});
    let messages = json!([
        {"role": "system", "content": "<<inputs>>"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "it rains", "tool_call_id": "c1"},
        {"role": "assistant", "content": "so it does"},
        {"role": "function", "name": "g", "content": "old"},
        {"role": "user", "name": "Ada", "content": "now?"},
    ]);
    let expected = "<s><system><<inputs>></system><user>one\ntwo</user><assistant>[{\"id\": \"c1\", \"type\": \
                    \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1.0, \"\u{e9}\"]}}}]\
                    </assistant><tool>it rains</tool><assistant>so it does</assistant><function>old</function>\
                    <user>now?</user><assistant>";
    assert_eq!(prompt(&frontend, messages, json!({})), expected);
    // Tools are shown with all their members.
    let tools = json!([{"type": "function", "function": {"name": "f", "strict": true}}]);
    let user = json!([{"role": "user", "content": "<<inputs>>"}]);
    let shown = prompt(&frontend, user, json!({"tools": tools, "tool_choice": "none"}));
    let text = "<tools>[{\"type\": \"function\", \"function\": {\"description\": null, \"name\": \"f\", \
                \"parameters\": null}}]</tools>";
    assert!(shown.contains(text), "{shown}");
    // Arguments that are no JSON.
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}});
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]);
    let answer = frontend.post(CHAT, &json!({"model": MOCK, "messages": messages}));
    assert_eq!(answer.status, 400, "{}", answer.text());
    let answer = frontend.asked(CHAT, &json!({"model": MOCK, "messages": [{"role": "system", "content": "alone"}]}));
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    frontend.stop();
    // Triton's front end gives parts to the template as they are.
    let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag(), TRITON]) else { return };
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "<<inputs>>"}]}]);
    let expected = "<s><user>[{'type': 'text', 'text': '<<inputs>>'}]</user><assistant>";
    assert_eq!(prompt(&frontend, parts, json!({})), expected);
    frontend.stop();
}

/// Long conversations are prepared beside the shard, which serves others meanwhile.
#[test]
fn long_conversations_are_prepared_aside() {
    each(&ALL, |variant| {
        let (repository, tokenizer) = (repository(&[MOCK]), Tokenizer::new());
        let Some(frontend) = Frontend::start_as(variant, &repository, &[&tokenizer.flag()]) else { return };
        let mut messages = vec![json!({"role": "user", "content": "word ".repeat(100)}); 10_000];
        messages.push(json!({"role": "user", "content": "<<reply at the end>>"}));
        let body = json!({"model": MOCK, "messages": messages});
        // One client waits for its answer, the others leave.
        let bytes = request("POST", CHAT, &[], body.to_string().as_bytes());
        for _ in 0..3 {
            frontend.peer().send(&bytes);
        }
        let answer = frontend.asked(CHAT, &body);
        assert_eq!(answer["choices"][0]["message"]["content"], "at the end");
        assert_eq!(answer["usage"]["prompt_tokens"], 1_000_000 + 3 + 1, "{}", answer["usage"]);
        frontend.stop();
    });
}

#[test]
fn without_a_tokenizer_or_a_template_there_is_no_chat() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    let Some(frontend) = Frontend::start(&repository, &[TRITON]) else { return };
    let answer = frontend.post(CHAT, &chat(MOCK, "x"));
    assert_eq!((answer.status, answer.text().as_str()), (500, "{\"detail\":\"Unknown tokenizer\"}"));
    let answer = frontend.post(CHAT, &chat("absent", "x"));
    assert_eq!((answer.status, answer.text().as_str()), (400, "{\"detail\":\"Unknown model: absent\"}"));
    assert_eq!(frontend.says(MOCK, "<<reply still>>"), "still");
    frontend.stop();

    let tokenizer = Tokenizer::with(&json!({"bos_token": "<s>"}));
    let Some(frontend) = Frontend::start(&repository, &[TRITON, &tokenizer.flag()]) else { return };
    let answer = frontend.post(CHAT, &chat(MOCK, "x"));
    let text = "Cannot use chat template functions because tokenizer.chat_template is not set";
    assert!(answer.json()["detail"].as_str().is_some_and(|detail| detail.starts_with(text)), "{}", answer.text());
    assert_eq!(answer.status, 500);
    frontend.stop();

    // A file replaces what the folder has, or has not.
    let file = tokenizer.file("mine.jinja", "{% for message in messages %}[{{ message.content }}]{% endfor %}");
    let flags = [TRITON, &tokenizer.flag(), &format!("--chat-template={}", file.display())];
    let Some(frontend) = Frontend::start(&repository, &flags) else { return };
    assert_eq!(prompt(&frontend, json!([{"role": "user", "content": "<<inputs>>"}]), json!({})), "[<<inputs>>]");
    frontend.stop();
}

#[test]
fn templates_of_a_folder_have_their_order() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    let named = json!([
        {"name": "default", "template": "default{{ messages[0].content }}{{ bos_token }}"},
        {"name": "tool_use", "template": "tools{{ messages[0].content }}"},
    ]);
    let tokenizer = Tokenizer::with(&json!({"chat_template": named, "bos_token": {"content": "<b>"}}));
    let Some(frontend) = Frontend::start(&repository, &[TRITON, &tokenizer.flag()]) else { return };
    let user = json!([{"role": "user", "content": "<<inputs>>"}]);
    assert_eq!(prompt(&frontend, user.clone(), json!({})), "default<<inputs>><b>");
    let tools = json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"});
    assert_eq!(prompt(&frontend, user.clone(), tools), "tools<<inputs>>");
    frontend.stop();
    tokenizer.file("chat_template.jinja", "beside{{ messages[0].content }}");
    let Some(frontend) = Frontend::start(&repository, &[TRITON, &tokenizer.flag()]) else { return };
    assert_eq!(prompt(&frontend, user, json!({})), "beside<<inputs>>");
    frontend.stop();
}

#[test]
fn templates_fail_with_their_text_and_within_bounds() {
    if has_run() {
        return;
    }
    let repository = repository(&[MOCK]);
    for (template, expected) in [
        ("{{ raise_exception('only users, please') }}", Some("only users, please")),
        ("{{ messages[0].content.absent.member }}", None),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", None),
        ("{% set n = namespace(t='xx') %}{% for a in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}", None),
        ("{% for a in range(99999) %}{{ messages[0].content }}{{ 'x' * 100000 }}{% endfor %}", None),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", None),
    ] {
        let tokenizer = Tokenizer::with(&json!({"chat_template": template}));
        let Some(frontend) = Frontend::start(&repository, &[&tokenizer.flag()]) else { return };
        let answer = frontend.post(CHAT, &with(&chat(MOCK, "x"), json!({"stream": true})));
        assert!((400..=500).contains(&answer.status), "{template}: {} {}", answer.status, answer.text());
        if let Some(expected) = expected {
            assert_eq!((answer.status, &answer.json()["detail"]), (500, &json!(expected)));
        }
        assert_eq!(frontend.asked(COMPLETIONS, &completion(MOCK, "<<reply x>>"))["choices"][0]["text"], "x");
        assert!(frontend.server.resident_kib() < 1_500_000, "{template}: {} KiB", frontend.server.resident_kib());
        frontend.stop();
    }
}

#[test]
fn a_tokenizer_that_cannot_be_read_stops_the_start() {
    if has_run() {
        return;
    }
    let repository = Repository::new();
    let model_repository = format!("--model-repository={}", repository.path().display());
    let broken = Tokenizer::with(&json!({"chat_template": "{% for %}"}));
    let no_json = Tokenizer::new();
    no_json.file("tokenizer_config.json", "{");
    let absent = format!("--tokenizer={}", repository.path().join("absent").display());
    for flag in [no_json.flag(), absent] {
        let (status, out, err) = run_to_end(&[&model_repository, "--openai-port=0", "--allow-http=false", &flag]);
        assert_eq!(status.code(), Some(1), "{flag}: {out}{err}");
        assert!(format!("{out}{err}").contains("tokenizer"), "{out}{err}");
    }
    drop(broken);
}
