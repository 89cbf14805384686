//! What goes beyond Triton's front end: extensions of its three requests, and the operations that it does not have.

use super::*;
use crate::request::{Detokenize, Rerank, ResponseFormat, Responses, Score, Tokenize, TokenizeSource};

const HEAD: &str = r#""model":"m","messages":[{"role":"user","content":"hi"}]"#;

fn responses(body: &str) -> Responses {
    match read(Operation::Responses, body.as_bytes(), true, &OPENAI) {
        Ok(Request::Responses(responses)) => *responses,
        other => panic!("{other:?}"),
    }
}

/// The type, and the way from the body on, of each entry.
fn wrong(operation: Operation, body: &str) -> Vec<String> {
    let Err(refusal) = read(operation, body.as_bytes(), true, &OPENAI) else { panic!("{body} is not refused") };
    let crate::error::Detail::Schema(errors) = refusal.detail else { panic!("{:?}", refusal.detail) };
    let way = |loc: &[Json]| {
        let mut text = String::new();
        Json::List(loc.iter().skip(1).cloned().collect()).compact(&mut text);
        text
    };
    errors.iter().map(|error| format!("{} {}", error.kind, way(&error.loc))).collect()
}

#[test]
fn extensions_are_read_or_passed_over() {
    let body = format!(
        r#"{{{HEAD},"parallel_tool_calls":true,"store":false,"metadata":{{"a":"b"}},"service_tier":"auto",
        "top_k":"5","min_p":0.5,"repetition_penalty":1,"priority":-3,"guided_json":{{"type":"object"}},
        "guided_regex":null,"stop_token_ids":[1],"skip_special_tokens":0,"reasoning_effort":"low",
        "chat_template_kwargs":{{"x":[1]}},
        "stream_options":{{"continuous_usage_stats":true}}}}"#
    );
    let request = chat(&body, &OPENAI);
    let mut extra = String::new();
    Json::Object(request.sampling.extra).compact(&mut extra);
    assert_eq!(
        extra,
        concat!(
            r#"{"top_k":5,"min_p":0.5,"repetition_penalty":1.0,"guided_json":{"type":"object"},"#,
            r#""stop_token_ids":[1],"skip_special_tokens":false}"#
        )
    );
    assert_eq!(request.sampling.priority, Some(-3));
    assert_eq!(request.reasoning_effort.as_deref(), Some("low"));
    assert_eq!(request.template_arguments, vec![("x".to_owned(), Json::List(vec![Json::Int(1)]))]);
    let usage = StreamOptions { include_usage: false, continuous_usage_stats: true };
    assert_eq!(request.sampling.stream_options, Some(usage));
    let (status, text) = answer(Operation::Chat, body.as_bytes(), &TRITON);
    assert_eq!((status, text.matches("extra_forbidden").count()), (422, 14));
}

#[test]
fn unknown_members_and_wrong_extensions_are_told() {
    let body =
        format!(r#"{{{HEAD},"zz":1,"top_k":"x","min_p":NaN,"bad_words":[1],"priority":1.5,"reasoning_effort":1}}"#);
    // The entry of NaN has null in its place.
    assert_eq!(answer(Operation::Chat, body.as_bytes(), &OPENAI).0, 422);
    let expected = [
        r#"string_type ["reasoning_effort"]"#,
        r#"extra_forbidden ["zz"]"#,
        r#"int_parsing ["top_k"]"#,
        r#"finite_number ["min_p"]"#,
        r#"string_type ["bad_words",0]"#,
        r#"int_from_float ["priority"]"#,
    ];
    assert_eq!(wrong(Operation::Chat, &body.replace("NaN", "\"NaN\"")), expected);
    let body = r#"{"model":"m","prompt":"","zz":1,"reasoning_effort":"low"}"#;
    assert_eq!(
        wrong(Operation::Completions, body),
        [r#"extra_forbidden ["zz"]"#, r#"extra_forbidden ["reasoning_effort"]"#]
    );
    assert_eq!(
        wrong(Operation::Embeddings, r#"{"model":"m","input":"a","top_k":1}"#),
        [r#"extra_forbidden ["top_k"]"#]
    );
}

#[test]
fn text_parts_are_joined_and_developers_heard() {
    let body = r#"{"model":"m","messages":[
        {"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
        {"role":"system","content":[{"type":"text","text":"c"}]},
        {"role":"assistant","content":[{"type":"text","text":"d"},{"type":"text","text":"e"}]},
        {"role":"tool","tool_call_id":"i","content":[]}]}"#;
    let expected = vec![
        Message::Developer { content: "a\nb".to_owned() },
        Message::System { content: "c".to_owned() },
        Message::Assistant { content: Some("d\ne".to_owned()), tool_calls: Vec::new() },
        Message::Tool { content: String::new(), tool_call_id: "i".to_owned() },
    ];
    assert_eq!(chat(body, &OPENAI).messages, expected);
    assert_eq!(answer(Operation::Chat, body.as_bytes(), &TRITON).0, 422);
    let image = r#"{"model":"m","messages":[{"role":"system","content":[{"type":"image_url","text":"c"}]}]}"#;
    let first = r#"string_type ["messages",0,"ChatCompletionRequestSystemMessage","content"]"#;
    assert_eq!(wrong(Operation::Chat, image).first().map(String::as_str), Some(first));
    let developer = r#"{"model":"m","messages":[{"role":"developer"}]}"#;
    let last = r#"missing ["messages",0,"ChatCompletionRequestDeveloperMessage","content"]"#;
    assert_eq!(wrong(Operation::Chat, developer).last().map(String::as_str), Some(last));
}

#[test]
fn response_formats_may_be_schemas() {
    let format = |format: &str| chat(&format!("{{{HEAD},\"response_format\":{format}}}"), &OPENAI).response_format;
    assert_eq!(format("{}"), Some(ResponseFormat::Text));
    assert_eq!(format(r#"{"type":"json_object"}"#), Some(ResponseFormat::JsonObject));
    let schema = Some(Json::Object(vec![("a".to_owned(), Json::Int(1))]));
    assert_eq!(
        format(r#"{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"a":1}}}"#),
        Some(ResponseFormat::JsonSchema { name: "n".to_owned(), schema })
    );
    let body = format!(r#"{{{HEAD},"response_format":{{"type":"json_schema"}}}}"#);
    assert_eq!(wrong(Operation::Chat, &body), [r#"missing ["response_format","json_schema"]"#]);
}

#[test]
fn embeddings_may_be_of_several_texts() {
    let input = |input: &str| embeddings(&format!("{{\"model\":\"m\",\"input\":{input}}}"), &OPENAI).input;
    assert_eq!(input("[\"a\",\"\"]"), EmbeddingInput::Texts(vec!["a".to_owned(), String::new()]));
    assert_eq!(input("[[1],[2,3]]"), EmbeddingInput::TokenLists(vec![vec![1], vec![2, 3]]));
    assert_eq!(input("[1,2]"), EmbeddingInput::Tokens(vec![1, 2]));
    assert_eq!(wrong(Operation::Embeddings, r#"{"model":"m","input":[[1],[]]}"#), [r#"too_short ["input",1]"#]);
}

#[test]
fn responses_are_chats() {
    let request = responses(
        r#"{"model":"m","instructions":"be","input":[
            {"role":"user","content":"a"},
            {"type":"message","role":"user","content":[
                {"type":"input_text","text":"b"},{"type":"input_image","image_url":"u"}]},
            {"type":"reasoning","summary":[]},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"c"}]},
            {"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
            {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
            {"type":"function_call_output","call_id":"1","output":"d"}],
        "tools":[{"type":"function","name":"f","description":"e","parameters":{},"strict":true}],
        "tool_choice":{"type":"function","name":"f"},"max_output_tokens":7,"temperature":0.5,"stream":true,
        "text":{"format":{"type":"json_schema","name":"n","schema":{}}},"metadata":{"k":"v"},"store":false,"user":"u",
        "previous_response_id":"r","reasoning":{"effort":"high"},"parallel_tool_calls":false,"top_k":3,"unknown":1}"#,
    );
    let call = |id: &str, name: &str| ToolCall {
        id: id.to_owned(),
        kind: "function".to_owned(),
        name: name.to_owned(),
        arguments: "{}".to_owned(),
    };
    let parts = vec![Part::Text("b".to_owned()), Part::ImageUrl { url: "u".to_owned() }];
    let expected = vec![
        Message::System { content: "be".to_owned() },
        Message::User { content: Content::Text("a".to_owned()), name: None },
        Message::User { content: Content::Parts(parts), name: None },
        Message::Assistant { content: Some("c".to_owned()), tool_calls: vec![call("1", "f"), call("2", "g")] },
        Message::Tool { content: "d".to_owned(), tool_call_id: "1".to_owned() },
    ];
    assert_eq!(request.chat.messages, expected);
    let sampling = Sampling {
        max_completion_tokens: Some(7),
        temperature: Some(0.5),
        top_p: Some(1.0),
        frequency_penalty: Some(0.0),
        presence_penalty: Some(0.0),
        n: 1,
        stream: true,
        user: Some("u".to_owned()),
        extra: vec![("top_k".to_owned(), Json::Int(3))],
        ..Sampling::default()
    };
    assert_eq!(request.chat.sampling, sampling);
    let tool = Tool {
        kind: "function".to_owned(),
        name: "f".to_owned(),
        description: Some("e".to_owned()),
        parameters: Some(Json::Object(Vec::new())),
    };
    assert_eq!(request.chat.tools, Some(vec![tool]));
    assert_eq!(request.chat.tool_choice, Some(ToolChoice::Named("f".to_owned())));
    let schema = Some(Json::Object(Vec::new()));
    let format = ResponseFormat::JsonSchema { name: "n".to_owned(), schema };
    assert_eq!(request.chat.response_format, Some(format));
    assert_eq!(request.chat.reasoning_effort.as_deref(), Some("high"));
    assert_eq!((request.instructions.as_deref(), request.max_output_tokens), (Some("be"), Some(7)));
    assert_eq!((request.parallel_tool_calls, request.store), (false, false));
    assert_eq!(request.previous_response_id.as_deref(), Some("r"));
    assert_eq!(request.tool_choice.get("name").and_then(Json::as_str), Some("f"));
    assert!(request.text.is_some_and(|text| text.get("format").is_some()));
}

#[test]
fn responses_have_their_defaults() {
    let request = responses(r#"{"model":"m","input":"a","tools":null}"#);
    assert_eq!(request.chat.messages, [Message::User { content: Content::Text("a".to_owned()), name: None }]);
    assert_eq!((request.tools, request.tool_choice), (Json::List(Vec::new()), Json::from("auto")));
    assert_eq!(
        (request.parallel_tool_calls, request.store, request.chat.sampling.temperature),
        (true, true, Some(1.0))
    );
    assert_eq!((request.metadata, request.text, request.chat.response_format), (None, None, None));
}

#[test]
fn wrong_responses_are_told() {
    assert_eq!(wrong(Operation::Responses, "{}"), [r#"missing ["model"]"#, r#"missing ["input"]"#]);
    let body = r#"{"model":"m","input":[{"type":"x"},{"role":"x"},{"type":null},{"type":"function_call"}],
        "tools":[{"type":"web_search"}],"tool_choice":"x","temperature":3,"text":1}"#;
    let expected = [
        r#"enum ["input",0,"type"]"#,
        r#"enum ["input",1,"role"]"#,
        r#"enum ["input",2,"type"]"#,
        r#"missing ["input",3,"call_id"]"#,
        r#"missing ["input",3,"name"]"#,
        r#"missing ["input",3,"arguments"]"#,
        r#"less_than_equal ["temperature"]"#,
        r#"model_attributes_type ["text"]"#,
        r#"enum ["tool_choice"]"#,
        r#"enum ["tools",0,"type"]"#,
    ];
    assert_eq!(wrong(Operation::Responses, body), expected);
    assert_eq!(wrong(Operation::Responses, r#"{"model":"m","input":[]}"#), [r#"too_short ["input"]"#]);
}

#[test]
fn rerankings_are_read() {
    let body =
        br#"{"model":"m","query":"q","documents":["a",{"text":"b","x":1}],"top_n":0,"return_documents":false,"u":1}"#;
    let expected = Rerank {
        model: "m".to_owned(),
        query: "q".to_owned(),
        documents: vec!["a".to_owned(), "b".to_owned()],
        top_n: None,
        return_documents: false,
    };
    assert_eq!(read(Operation::Rerank, body, true, &OPENAI), Ok(Request::Rerank(Box::new(expected))));
    let body = r#"{"model":"m","query":1,"documents":[1,{}],"top_n":-1}"#;
    let expected = [
        r#"string_type ["query"]"#,
        r#"string_type ["documents",0]"#,
        r#"missing ["documents",1,"text"]"#,
        r#"greater_than_equal ["top_n"]"#,
    ];
    assert_eq!(wrong(Operation::Rerank, body), expected);
    assert_eq!(wrong(Operation::Rerank, r#"{"model":"m","query":"","documents":[]}"#), [r#"too_short ["documents"]"#]);
}

#[test]
fn scores_are_read_by_either_name() {
    for body in [
        r#"{"model":"m","text_1":"a","text_2":["b","c"]}"#,
        r#"{"model":"m","queries":["a"],"documents":["b",{"text":"c"}]}"#,
    ] {
        let right = vec!["b".to_owned(), "c".to_owned()];
        let expected = Score { model: "m".to_owned(), left: vec!["a".to_owned()], right };
        assert_eq!(read(Operation::Score, body.as_bytes(), true, &OPENAI), Ok(Request::Score(Box::new(expected))));
    }
    assert_eq!(wrong(Operation::Score, r#"{"model":"m","text_1":["a","b"],"text_2":"c"}"#), ["value_error []"]);
    assert_eq!(
        wrong(Operation::Score, r#"{"model":"m","text_2":[]}"#),
        [r#"missing ["text_1"]"#, r#"too_short ["text_2"]"#]
    );
}

#[test]
fn tokens_and_texts_are_read() {
    let expected = Tokenize {
        model: None,
        source: TokenizeSource::Prompt("a".to_owned()),
        add_special_tokens: None,
        return_token_strs: true,
    };
    let body = br#"{"prompt":"a","return_token_strs":true,"x":1}"#;
    assert_eq!(read(Operation::Tokenize, body, true, &OPENAI), Ok(Request::Tokenize(Box::new(expected))));
    let body = br#"{"model":"m","messages":[{"role":"developer","content":"a"}],"add_generation_prompt":false,
        "add_special_tokens":true}"#;
    let messages = vec![Message::Developer { content: "a".to_owned() }];
    let expected = Tokenize {
        model: Some("m".to_owned()),
        source: TokenizeSource::Chat { messages, tools: None, add_generation_prompt: false },
        add_special_tokens: Some(true),
        return_token_strs: false,
    };
    assert_eq!(read(Operation::Tokenize, body, true, &OPENAI), Ok(Request::Tokenize(Box::new(expected))));
    assert_eq!(wrong(Operation::Tokenize, "{}"), [r#"missing ["prompt"]"#]);
    let expected = Detokenize { model: Some("m".to_owned()), tokens: vec![1, 2] };
    let body = br#"{"model":"m","tokens":[1,2]}"#;
    assert_eq!(read(Operation::Detokenize, body, true, &OPENAI), Ok(Request::Detokenize(Box::new(expected))));
    assert_eq!(wrong(Operation::Detokenize, r#"{"tokens":[-1,"x"]}"#).len(), 2);
}
