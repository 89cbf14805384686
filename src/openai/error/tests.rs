//! Bodies of refusals, byte for byte.

use super::*;

fn body(refusal: &Refusal, compat: Compat) -> String {
    let mut out = String::new();
    refusal.body(compat, &mut out);
    out
}

fn wrong(name: &str, msg: &str, input: Json) -> SchemaError {
    SchemaError {
        kind: "missing",
        loc: vec!["body".into(), name.into(), Json::Int(3)],
        msg: msg.into(),
        input,
        ctx: None,
    }
}

#[test]
fn texts_are_a_detail_and_by_default_an_error_beside_it() {
    let refusal = Refusal::client("a \"b\" é");
    assert_eq!(body(&refusal, Compat::Triton), r#"{"detail":"a \"b\" é"}"#);
    assert_eq!(
        body(&refusal, Compat::OpenAi),
        concat!(
            r#"{"detail":"a \"b\" é","error":{"message":"a \"b\" é","#,
            r#""type":"invalid_request_error","param":null,"code":null}}"#
        )
    );
    assert_eq!(refusal.content_type(), "application/json");
}

#[test]
fn each_status_has_the_type_and_code_of_openai() {
    for (status, kind, code) in [
        (400, "invalid_request_error", "null"),
        (401, "authentication_error", "null"),
        (403, "permission_error", "null"),
        (404, "invalid_request_error", "null"),
        (413, "invalid_request_error", "\"content_too_large\""),
        (422, "invalid_request_error", "null"),
        (429, "rate_limit_exceeded", "\"rate_limit_exceeded\""),
        (500, "server_error", "null"),
        (503, "server_error", "\"service_unavailable\""),
    ] {
        let refusal = Refusal { status, detail: Detail::Text("x".to_owned()) };
        let end = format!("\"type\":\"{kind}\",\"param\":null,\"code\":{code}}}}}");
        assert!(body(&refusal, Compat::OpenAi).ends_with(&end), "{status}");
    }
    let unknown = Refusal::model_not_found("m");
    assert_eq!(unknown.status, 404);
    assert!(body(&unknown, Compat::OpenAi).ends_with(r#""param":null,"code":"model_not_found"}}"#));
    assert_eq!(body(&unknown, Compat::Triton), r#"{"detail":"Unknown model: m"}"#);
    assert_eq!(Refusal::unknown_model("m").status, 400);
}

#[test]
fn schemas_name_the_first_member() {
    let errors = vec![wrong("n", "Bad", Json::Float(1.0)), wrong("z", "Bad, too", Json::Null)];
    let refusal = Refusal::schema(errors, Compat::Triton);
    let detail = concat!(
        r#"[{"type":"missing","loc":["body","n",3],"msg":"Bad","input":1.0},"#,
        r#"{"type":"missing","loc":["body","z",3],"msg":"Bad, too","input":null}]"#
    );
    assert_eq!(refusal.status, 422);
    assert_eq!(body(&refusal, Compat::Triton), format!("{{\"detail\":{detail}}}"));
    let error = concat!(
        r#"{"message":"n.3: Bad (the first of 2 errors, see `detail`)","#,
        r#""type":"invalid_request_error","param":"n","code":null}"#
    );
    assert_eq!(body(&refusal, Compat::OpenAi), format!("{{\"detail\":{detail},\"error\":{error}}}"));
}

#[test]
fn reasons_that_only_ctx_has_are_told() {
    let error = SchemaError {
        kind: "json_invalid",
        loc: vec!["body".into(), Json::Int(7)],
        msg: "JSON decode error".to_owned(),
        input: Json::Object(Vec::new()),
        ctx: Some(object([("error", "Expecting value".into())])),
    };
    let refusal = Refusal::schema(vec![error], Compat::OpenAi);
    let text = body(&refusal, Compat::OpenAi);
    assert!(text.contains(r#""message":"7: JSON decode error: Expecting value","#), "{text}");
    assert!(text.contains(r#""param":null"#), "{text}");
}

#[test]
fn what_json_cannot_say_is_a_plain_500_of_upstream() {
    let errors = || vec![wrong("n", "Bad", Json::List(vec![Json::Float(f64::NAN)]))];
    let refusal = Refusal::schema(errors(), Compat::Triton);
    assert_eq!(refusal.status, 500);
    assert_eq!(body(&refusal, Compat::Triton), "Internal Server Error");
    assert_eq!(refusal.content_type(), "text/plain; charset=utf-8");
    let refusal = Refusal::schema(errors(), Compat::OpenAi);
    assert_eq!(refusal.status, 422);
    assert!(body(&refusal, Compat::OpenAi).contains(r#""msg":"Bad","input":[null]}"#));
}

#[test]
fn fixed_refusals_have_the_bytes_of_upstream() {
    let error = |message: &str, kind: &str, code: &str| {
        format!(r#"{{"error":{{"message":"{message}","type":"{kind}","code":"{code}"}}}}"#)
    };
    let detail = |text: &str| format!(r#"{{"detail":"{text}"}}"#);
    let restricted = "This API is restricted, expecting header 'x-key' with valid value";
    let large = "Request size of 11 bytes exceeds the maximum allowed input size of 10 bytes. \
                 Use --http-max-input-size to increase the limit.";
    let length = |text: &str| {
        error(&format!("Invalid Content-Length header: {text}."), "invalid_request_error", "invalid_content_length")
    };
    let cases = [
        (Refusal::restricted("x-key"), 401, error(restricted, "authentication_error", "invalid_auth")),
        (Refusal::too_large(11, 10), 413, error(large, "invalid_request_error", "content_too_large")),
        (Refusal::content_length_not_integer(), 400, length("not an integer")),
        (Refusal::content_length_negative(), 400, length("must be non-negative")),
        (Refusal::path_not_found(), 404, detail("Not Found")),
        (Refusal::method_not_allowed(), 405, detail("Method Not Allowed")),
        (Refusal::not_ready(), 400, detail("Attached inference engine is not ready for inference requests.")),
    ];
    for (refusal, status, expected) in cases {
        assert_eq!(refusal.status, status);
        assert_eq!(body(&refusal, Compat::Triton), expected);
    }
}

#[test]
fn errors_in_streams_are_events() {
    let expected = r#"{"error":{"message":"a\nb","type":"server_error","param":null,"code":500}}"#;
    assert_eq!(error_event("a\nb", 500), expected);
}
