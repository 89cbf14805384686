//! Chats: their checks, the messages as a template gets them, and whole requests with a template.

use super::*;
use crate::plan::ToolPlan;
use crate::prepare::checks::{check_chat, tool_plan};

pub(super) fn user(text: &str) -> Message {
    Message::User { content: Content::Text(text.to_owned()), name: None }
}

pub(super) fn chat(model: &str) -> Chat {
    Chat {
        model: model.to_owned(),
        messages: vec![user("Hi")],
        sampling: sampling(),
        logprobs: false,
        top_logprobs: None,
        tools: None,
        tool_choice: None,
        response_format: None,
        template_arguments: Vec::new(),
        reasoning_effort: None,
    }
}

pub(super) fn tool(name: &str) -> Tool {
    Tool { kind: "function".to_owned(), name: name.to_owned(), description: None, parameters: None }
}

fn check(chat: &Chat, settings: &Settings) -> Result<ToolPlan, (u16, String)> {
    let context = Context { settings, inline: None, find: &find };
    let target = context.target(&chat.model).map_err(text_of)?;
    check_chat(&context, &target, chat).map_err(text_of)?;
    Ok(tool_plan(&context, &target, chat))
}

#[test]
fn a_chat_without_a_tokenizer_is_refused_as_upstream_does() {
    for compat in [Compat::OpenAi, Compat::Triton] {
        let refused =
            |model| text_of(run(Request::Chat(Box::new(chat(model))), &settings(compat)).expect_err("a refusal"));
        assert_eq!(refused("llama"), (500, "Unknown tokenizer".to_owned()));
        assert_eq!(refused("none"), (400, "Unknown model: none".to_owned()));
    }
}

#[test]
fn chats_are_checked_in_order() {
    let settings = settings(Compat::OpenAi);
    let mut request = chat("mock");
    request.sampling.n = 2;
    request.sampling.has_logit_bias = true;
    request.sampling.stream_options = Some(StreamOptions::default());
    request.top_logprobs = Some(1);
    request.tools = Some(vec![tool("f")]);
    let check =
        |request: &Chat, text: &str| assert_eq!(super::chats::check(request, &settings), Err((400, text.to_owned())));
    check(&request, "Received n=2, but only single choice (n=1) is currently supported");
    request.sampling.n = 1;
    check(&request, "logit bias is not currently supported");
    request.sampling.has_logit_bias = false;
    check(&request, "logprobs are currently available only for the vLLM backend");
    request.model = "llama".to_owned();
    check(&request, "`top_logprobs` can only be used when `logprobs` is True");
    request.logprobs = true;
    check(&request, "having tools in the request requires --tool-call-parser to be set");
    request.tools = None;
    check(&request, "`stream_options` can only be used when `stream` is True");
    request.sampling.stream = true;
    assert_eq!(super::chats::check(&request, &settings), Ok(ToolPlan::None));
}

/// contract/openai.md section 1.6.
#[test]
fn the_choice_of_tools_is_checked() {
    let without = settings(Compat::OpenAi);
    let with = Settings { tool_parser: Some(ToolParserKind::Mistral), ..settings(Compat::OpenAi) };
    let request = |choice: Option<ToolChoice>, tools: &[&str]| Chat {
        tool_choice: choice,
        tools: Some(tools.iter().map(|name| tool(name)).collect()),
        ..chat("llama")
    };
    let text = |choice, tools: &[&str]| check(&request(choice, tools), &without).expect_err("a refusal").1;
    let required = "\"required\" tool choice requires CreateChatCompletionRequest.tools to be provided";
    assert_eq!(text(Some(ToolChoice::Required), &[]), required);
    let named = || Some(ToolChoice::Named("g".to_owned()));
    assert_eq!(text(named(), &[]), "Named tool choice requires CreateChatCompletionRequest.tools to be provided");
    assert_eq!(text(named(), &["f"]), "Tool 'g' has not been passed in `tools`.");
    let auto = "\"auto\" tool choice requires --tool-call-parser to be set";
    assert_eq!(text(Some(ToolChoice::Auto), &[]), auto);
    let plan = |choice, tools: &[&str], settings| check(&request(choice, tools), settings).expect("a plan");
    assert_eq!(plan(Some(ToolChoice::Required), &["f", "g"], &without), ToolPlan::Forced { name: "f".to_owned() });
    assert_eq!(plan(named(), &["f", "g"], &without), ToolPlan::Forced { name: "g".to_owned() });
    assert_eq!(plan(Some(ToolChoice::None), &["f"], &without), ToolPlan::None);
    let parsed = ToolPlan::Auto { parser: ToolParserKind::Mistral, bytes_max: 512, is_vllm: true };
    assert_eq!(plan(None, &["f"], &with), parsed);
    assert_eq!(plan(None, &[], &with), ToolPlan::None);
    assert_eq!(plan(Some(ToolChoice::None), &["f"], &with), ToolPlan::None);
}

fn converted(message: Message, style: ContentStyle) -> String {
    let values = messages::messages(&[message], style).expect("values");
    crate::form::compact_text(&Json::List(values))
}

/// contract/openai.md section 1.4.
#[test]
fn messages_become_the_values_of_a_template() {
    let parts = || Message::User {
        content: Content::Parts(vec![Part::Text("a".to_owned()), Part::Text("b".to_owned())]),
        name: Some("Ann".to_owned()),
    };
    let list = r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"Ann"}]"#;
    assert_eq!(converted(parts(), ContentStyle::Unchanged), list);
    assert_eq!(converted(parts(), ContentStyle::Parts), list);
    assert_eq!(converted(parts(), ContentStyle::Texts), r#"[{"role":"user","content":"a\nb","name":"Ann"}]"#);
    let system = || Message::Developer { content: "s".to_owned() };
    assert_eq!(converted(system(), ContentStyle::Texts), r#"[{"role":"system","content":"s"}]"#);
    let wrapped = r#"[{"role":"system","content":[{"type":"text","text":"s"}]}]"#;
    assert_eq!(converted(system(), ContentStyle::Parts), wrapped);
    let call = |arguments: &str| Message::Assistant {
        content: None,
        tool_calls: vec![ToolCall {
            id: "1".to_owned(),
            kind: "function".to_owned(),
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
        }],
    };
    let with = concat!(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","#,
        r#""function":{"name":"f","arguments":{"b":1,"c":[2.0]}}}]}]"#
    );
    assert_eq!(converted(call(r#"{"b": 1, "c": [2.0]}"#), ContentStyle::Unchanged), with);
    assert!(converted(call(""), ContentStyle::Unchanged).contains(r#""arguments":{}"#));
    let (status, text) =
        text_of(messages::messages(&[user("a"), call("x")], ContentStyle::Texts).expect_err("a refusal"));
    assert!(status == 400 && text.starts_with("`messages[1].tool_calls[0].function.arguments` must be"), "{text}");
    let answer = Message::Tool { content: "4".to_owned(), tool_call_id: "1".to_owned() };
    assert_eq!(converted(answer, ContentStyle::Texts), r#"[{"role":"tool","content":"4","tool_call_id":"1"}]"#);
    let image = Content::Parts(vec![Part::ImageUrl { url: "http://a".to_owned() }]);
    let refused = messages::messages(&[Message::User { content: image, name: None }], ContentStyle::Texts);
    assert_eq!(refused, Err(Refusal::client("only text message is supported, but got image_url")));
    let tools = crate::form::compact_text(&Json::List(messages::tools(&[tool("f")])));
    let expected = r#"[{"type":"function","function":{"description":null,"name":"f","parameters":null}}]"#;
    assert_eq!(tools, expected);
}
