//! What a recording does not keep: values of headers and of parameters by their names.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use serde::de::IgnoredAny;

use super::message::MessageError;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};

/// In the place of a value.
pub const REDACTED: &str = "<redacted>";

/// A header whose name contains one of these is redacted always.
const HEADER_PARTS: [&str; 17] = [
    "authorization",
    "cookie",
    "api-key",
    "apikey",
    "api_key",
    "token",
    "secret",
    "password",
    "credential",
    "signature",
    "triton-grpc-protocol-",
    "forwarded-client-cert",
    "jwt",
    "oidc",
    "passwd",
    "dpop",
    "session",
];

/// A header or parameter whose name ends with one of these is redacted always.
const KEY_ENDS: [&str; 2] = ["-key", "_key"];

/// A parameter whose name contains one of these is redacted always. Not "token", which counts of tokens contain.
const PARAMETER_PARTS: [&str; 9] =
    ["authorization", "cookie", "api-key", "apikey", "api_key", "secret", "password", "passwd", "credential"];
/// Nor is a parameter of this name or with such an end recorded.
const TOKEN: &str = "token";
const TOKEN_ENDS: [&str; 2] = ["_token", "-token"];

fn is_key(lower: &str) -> bool {
    KEY_ENDS.iter().any(|end| lower.ends_with(end))
}

/// The names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redaction {
    /// In lower case.
    names: Vec<String>,
}

impl Redaction {
    /// `names`: redacted beside those that always are, in any case.
    pub fn new(names: impl IntoIterator<Item = String>) -> Redaction {
        Redaction { names: names.into_iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn is_named(&self, lower: &str) -> bool {
        self.names.iter().any(|name| name == lower)
    }

    pub fn redacts_header(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        self.is_named(&lower) || is_key(&lower) || HEADER_PARTS.iter().any(|part| lower.contains(part))
    }

    pub fn redacts_parameter(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        let is_token = lower == TOKEN || TOKEN_ENDS.iter().any(|end| lower.ends_with(end));
        let has_part = || PARAMETER_PARTS.iter().any(|part| lower.contains(part));
        self.is_named(&lower) || is_token || is_key(&lower) || has_part()
    }

    /// The value of a header as it is kept.
    pub fn header(&self, name: &str, value: &str) -> String {
        if self.redacts_header(name) { REDACTED.to_owned() } else { value.to_owned() }
    }

    /// JSON without the values of redacted members, wherever they are; none if there is nothing to redact.
    pub fn json(&self, text: &[u8]) -> Result<Option<Vec<u8>>, MessageError> {
        serde_json::from_slice::<IgnoredAny>(text).map_err(|error| MessageError::Json(error.to_string()))?;
        // From here on it is known to be JSON.
        let (mut kept, mut copied, mut at) = (Vec::new(), 0, 0);
        while let Some(byte) = text.get(at) {
            if *byte != b'"' {
                at += 1;
                continue;
            }
            let end = end_of_string(text, at);
            let colon = skip_blanks(text, end);
            if text.get(colon) != Some(&b':') {
                at = end;
                continue;
            }
            let name = serde_json::from_slice::<String>(text.get(at..end).unwrap_or_default());
            let value = skip_blanks(text, colon + 1);
            at = value;
            if name.is_ok_and(|name| self.redacts_parameter(&name)) {
                at = end_of_value(text, value);
                kept.extend_from_slice(text.get(copied..value).unwrap_or_default());
                kept.extend_from_slice(format!("\"{REDACTED}\"").as_bytes());
                copied = at;
            }
        }
        if copied == 0 {
            return Ok(None);
        }
        kept.extend_from_slice(text.get(copied..).unwrap_or_default());
        Ok(Some(kept))
    }

    /// A request over gRPC without the values of redacted parameters; none if there is nothing to redact.
    pub fn grpc_request(&self, message: Bytes) -> Result<Option<Vec<u8>>, MessageError> {
        let mut message: ModelInferRequest = decode(message)?;
        let mut has_changed = self.parameters(&mut message.parameters);
        for input in &mut message.inputs {
            has_changed |= self.parameters(&mut input.parameters);
        }
        for output in &mut message.outputs {
            has_changed |= self.parameters(&mut output.parameters);
        }
        Ok(has_changed.then(|| message.encode_to_vec()))
    }

    /// The same of an answer.
    pub fn grpc_answer(&self, message: Bytes) -> Result<Option<Vec<u8>>, MessageError> {
        let mut message: ModelInferResponse = decode(message)?;
        let mut has_changed = self.parameters(&mut message.parameters);
        for output in &mut message.outputs {
            has_changed |= self.parameters(&mut output.parameters);
        }
        Ok(has_changed.then(|| message.encode_to_vec()))
    }

    fn parameters(&self, all: &mut BTreeMap<String, InferParameter>) -> bool {
        let redacted = all.iter_mut().filter(|(name, _)| self.redacts_parameter(name));
        redacted
            .map(|(_, value)| value.parameter_choice = Some(ParameterChoice::StringParam(REDACTED.to_owned())))
            .count()
            > 0
    }
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, MessageError> {
    M::decode(message).map_err(|error| MessageError::Grpc(error.to_string()))
}

/// Behind the quotation mark that ends the string at `at`.
fn end_of_string(text: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(byte) = text.get(end) {
        match byte {
            b'\\' => end += 2,
            b'"' => return end + 1,
            _ => end += 1,
        }
    }
    text.len()
}

fn skip_blanks(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// Behind the value at `at`.
fn end_of_value(text: &[u8], at: usize) -> usize {
    let (mut end, mut depth) = (at, 0usize);
    while let Some(byte) = text.get(end) {
        match byte {
            b'"' => end = end_of_string(text, end),
            b'{' | b'[' => {
                depth += 1;
                end += 1;
            }
            b'}' | b']' if depth > 1 => {
                depth -= 1;
                end += 1;
            }
            b'}' | b']' => return if depth == 1 { end + 1 } else { end },
            b',' if depth == 0 => return end,
            byte if depth == 0 && byte.is_ascii_whitespace() => return end,
            _ => end += 1,
        }
        if depth == 0 && matches!(byte, b'"') {
            return end;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_with_secrets_are_redacted_always() {
        let redaction = Redaction::new(["X-Customer".to_owned()]);
        for name in ["Authorization", "proxy-authorization", "Cookie", "X-API-Key", "triton-grpc-protocol-infer-key"] {
            assert_eq!(redaction.header(name, "v"), REDACTED, "{name}");
        }
        assert_eq!(redaction.header("x-customer", "v"), REDACTED);
        assert_eq!(redaction.header("Inference-Header-Content-Length", "12"), "12");
    }

    #[test]
    fn members_are_redacted_wherever_they_are() {
        let redaction = Redaction::new(["user".to_owned()]);
        let json = |text: &str| redaction.json(text.as_bytes()).unwrap().map(|kept| String::from_utf8(kept).unwrap());
        for (text, kept) in [
            (r#"{"parameters":{"user":"eve","n":1}}"#, r#"{"parameters":{"user":"<redacted>","n":1}}"#),
            (r#"{"a":[{"USER" : {"x":["}",{}]} , "b":2}]}"#, r#"{"a":[{"USER" : "<redacted>" , "b":2}]}"#),
            (r#"{"user":17,"password":null}"#, r#"{"user":"<redacted>","password":"<redacted>"}"#),
            (r#"{"user":-1.5e3}"#, r#"{"user":"<redacted>"}"#),
            (r#"{"user":[1,"]"]}"#, r#"{"user":"<redacted>"}"#),
            (r#"{"\u0075ser":"a\"b"}"#, r#"{"\u0075ser":"<redacted>"}"#),
        ] {
            assert_eq!(json(text).as_deref(), Some(kept), "{text}");
        }
        // Names in the place of values, and parts of names.
        for text in [r#"{"a":"user","users":1,"b":["user"]}"#, r#"{"a":"\"user\":1"}"#, "[]", "7"] {
            assert_eq!(json(text), None, "{text}");
        }
        assert!(redaction.json(b"{\"user\":").is_err());
    }

    #[test]
    fn parameters_of_messages_are_redacted() {
        let redaction = Redaction::new(["user".to_owned()]);
        let mut message = ModelInferRequest { model_name: "m".to_owned(), ..ModelInferRequest::default() };
        assert_eq!(redaction.grpc_request(message.encode_to_vec().into()), Ok(None));
        let secret = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(7)) };
        message.parameters.insert("User".to_owned(), secret.clone());
        message.parameters.insert("other".to_owned(), secret.clone());
        let kept = redaction.grpc_request(message.encode_to_vec().into()).unwrap().unwrap();
        let kept = ModelInferRequest::decode(&*kept).unwrap();
        assert_eq!(kept.parameters["other"], secret);
        assert_eq!(kept.parameters["User"].parameter_choice, Some(ParameterChoice::StringParam(REDACTED.to_owned())));
        assert!(redaction.grpc_answer(Bytes::from_static(b"\xff")).is_err());
    }
}
