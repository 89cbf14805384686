//! The model repository extension: index, load and unload (contract/http.md section 3, contract/grpc.md section 5,
//! contract/schedulers.md section 10).
//!
//! All of it waits for disks and backends, so it runs on control threads; what a request carries is understood there
//! too, since a file sent along may be large. The answer comes back as mail. A client that left meanwhile changes
//! nothing: what it asked for is done all the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::base::{Management, decode};
use super::health::probe_reply;
use super::outcome::{Outcome, Protocol};
use crate::api::error;
use crate::api::mail::Mail;
use crate::repository::{IndexRow, Lifecycle, Parameter, ParameterValue};
use nereid_memory::{Exhausted, Gather, Pool, Slice};
use nereid_protocol::http1::Response;
use nereid_protocol::json::{Document, GatherSink, Writer};
use nereid_protocol::service::{CallKey, GrpcReply, GrpcStatus, HttpReply, Replies};
use nereid_request::Status;
use nereid_wire::inference as wire;
use nereid_wire::inference::model_repository_parameter::ParameterChoice;

/// A request to the repository, with its body still to be read.
pub(super) enum RepositoryRequest {
    HttpIndex { body: Slice },
    HttpLoad { model: String, body: Slice },
    HttpUnload { model: String, body: Slice },
    HttpActivate { model: String, generation: String },
    GrpcIndex { message: Slice },
    GrpcLoad { message: Slice },
    GrpcUnload { message: Slice },
}

impl RepositoryRequest {
    fn protocol(&self) -> Protocol {
        match self {
            RepositoryRequest::HttpIndex { .. }
            | RepositoryRequest::HttpLoad { .. }
            | RepositoryRequest::HttpUnload { .. }
            | RepositoryRequest::HttpActivate { .. } => Protocol::Http,
            RepositoryRequest::GrpcIndex { .. }
            | RepositoryRequest::GrpcLoad { .. }
            | RepositoryRequest::GrpcUnload { .. } => Protocol::Grpc,
        }
    }

    /// Carries the request out, on a control thread.
    fn carry_out(self, lifecycle: &Arc<Lifecycle>) -> Result<Outcome, Status> {
        match self {
            RepositoryRequest::HttpIndex { body } => lifecycle.index(index_body(&body)?).map(Outcome::Index),
            RepositoryRequest::HttpLoad { model, body } => {
                let pool = body.pool();
                let reading = pool.as_ref().map(|pool| pool.hold(body.len().saturating_mul(2))).transpose()?;
                let parameters = load_body(&body)?;
                // Its files are copied by now, and they are all that the load keeps.
                drop((body, reading));
                let _held = pool.map(|pool| pool.hold(bytes_of(&parameters))).transpose()?;
                lifecycle.load(&model, parameters)?;
                Ok(Outcome::Loaded)
            }
            RepositoryRequest::HttpUnload { model, body } => {
                let unload_dependents = unload_body(&body)?;
                lifecycle.unload(&model, unload_dependents)?;
                Ok(Outcome::Unloaded)
            }
            RepositoryRequest::HttpActivate { model, generation } => {
                lifecycle.activate(&model, &generation)?;
                Ok(Outcome::Loaded)
            }
            RepositoryRequest::GrpcIndex { message } => {
                let request: wire::RepositoryIndexRequest = decode(&message)?;
                not_ours(&request.repository_name)?;
                lifecycle.index(request.ready).map(Outcome::Index)
            }
            RepositoryRequest::GrpcLoad { message } => {
                let pool = message.pool();
                let request: wire::RepositoryModelLoadRequest = decode(&message)?;
                // Its files are copied by now.
                drop(message);
                not_ours(&request.repository_name)?;
                let parameters = request.parameters.into_iter().map(|(name, value)| load_parameter(name, value));
                let parameters = parameters.collect::<Result<Vec<_>, Status>>()?;
                let _held = pool.map(|pool| pool.hold(bytes_of(&parameters))).transpose()?;
                lifecycle.load(&request.model_name, parameters)?;
                Ok(Outcome::Loaded)
            }
            RepositoryRequest::GrpcUnload { message } => {
                let request: wire::RepositoryModelUnloadRequest = decode(&message)?;
                not_ours(&request.repository_name)?;
                let parameters = request.parameters.into_iter();
                let choices = parameters.map(|(name, value)| unload_parameter(&name, value));
                let choices: Vec<bool> = choices.collect::<Result<_, Status>>()?;
                lifecycle.unload(&request.model_name, choices.contains(&true))?;
                Ok(Outcome::Unloaded)
            }
        }
    }
}

/// The call is answered even if the operation panics.
fn guarded(operation: impl FnOnce() -> Result<Outcome, Status>) -> Result<Outcome, Status> {
    catch_unwind(AssertUnwindSafe(operation))
        .unwrap_or_else(|_| Err(Status::internal("the operation on the model repository panicked")))
}

/// There are no named repositories: contract/http.md and contract/grpc.md refuse requests for one.
pub(super) fn not_ours(repository_name: &str) -> Result<(), Status> {
    match repository_name.is_empty() {
        true => Ok(()),
        false => Err(Status::unsupported("'repository_name' specification is not supported")),
    }
}

/// Bytes of the files and texts that come with a request to load.
fn bytes_of(parameters: &[Parameter]) -> usize {
    let bytes = parameters.iter().map(|parameter| match &parameter.value {
        ParameterValue::Text(text) => text.len(),
        ParameterValue::Bytes(bytes) => bytes.len(),
        ParameterValue::Integer(_) | ParameterValue::Boolean(_) | ParameterValue::Double(_) => 0,
    });
    bytes.fold(0, usize::saturating_add)
}

fn parsed(body: &Slice) -> Result<Document, Status> {
    Document::parse(body.clone()).map_err(|error| Status::internal(error.to_string()))
}

/// Whether only ready models are requested; the body is optional.
fn index_body(body: &Slice) -> Result<bool, Status> {
    if body.is_empty() {
        return Ok(false);
    }
    let document = parsed(body)?;
    match document.root().find("ready") {
        None => Ok(false),
        Some(ready) => ready.as_bool().map_err(|_| Status::invalid("Invalid value for 'ready': expected a boolean")),
    }
}

/// `{"parameters": {"config": "…", "file:1/model.onnx": "<base64>"}}`; the body is optional.
fn load_body(body: &Slice) -> Result<Vec<Parameter>, Status> {
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let document = parsed(body)?;
    let Some(parameters) = document.root().find("parameters") else { return Ok(Vec::new()) };
    let internal = |error: nereid_protocol::json::AccessError| Status::internal(error.to_string());
    let mut read = Vec::new();
    // Of a key given twice each occurrence has the first value (contract/http.md section 2).
    for (name, value) in parameters.members_with_first_values().map_err(internal)? {
        let name = String::from_utf8_lossy(&name).into_owned();
        let value = match () {
            () if name == "config" => {
                ParameterValue::Text(String::from_utf8_lossy(&value.as_str().map_err(internal)?).into_owned())
            }
            () if name.starts_with("file:") => {
                let text = value.as_str().map_err(internal)?;
                check_file(&name, text.len())?;
                ParameterValue::Bytes(from_base64(&text)?)
            }
            () => return Err(Status::internal("unexpected error on creating Triton parameter")),
        };
        read.push(Parameter { name, value });
    }
    Ok(read)
}

/// A file may be given by so much text.
fn check_file(name: &str, text_len: usize) -> Result<(), Status> {
    let text = || format!("'{name}' exceeds the maximum allowed data size limit INT_MAX");
    i32::try_from(text_len).map(drop).map_err(|_| Status::invalid(text()))
}

/// Reads base64 as Triton does: what does not belong to it is skipped, and an end that is missing is not missed.
pub(super) fn from_base64(text: &[u8]) -> Result<Vec<u8>, Exhausted> {
    fn room(bytes: usize) -> Result<Vec<u8>, Exhausted> {
        let mut room = Vec::new();
        room.try_reserve_exact(bytes).map_err(|_| Exhausted::of_system(bytes))?;
        Ok(room)
    }
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true);
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut digits = room(text.len())?;
    digits.extend(text.iter().copied().filter(is_digit));
    if digits.len() % 4 == 1 {
        // Six bits are no byte.
        digits.pop();
    }
    let len = base64::decoded_len_estimate(digits.len());
    let mut bytes = room(len)?;
    bytes.resize(len, 0);
    // Nothing is left that could be wrong.
    let read = GeneralPurpose::new(&STANDARD, lenient).decode_slice(digits, &mut bytes).unwrap_or_default();
    bytes.truncate(read);
    Ok(bytes)
}

/// `{"parameters": {"unload_dependents": true}}`; the body is optional, and a value that is no boolean is ignored.
fn unload_body(body: &Slice) -> Result<bool, Status> {
    if body.is_empty() {
        return Ok(false);
    }
    let document = parsed(body)?;
    let Some(parameters) = document.root().find("parameters") else { return Ok(false) };
    parameters.members().map_err(|error| Status::internal(error.to_string()))?;
    Ok(parameters.find("unload_dependents").is_some_and(|value| value.as_bool().unwrap_or(false)))
}

fn load_parameter(name: String, value: wire::ModelRepositoryParameter) -> Result<Parameter, Status> {
    let expected =
        |what: &str| Status::invalid(format!("invalid value type for load parameter '{name}', expected {what}."));
    let value = match (&*name, value.parameter_choice) {
        ("config", Some(ParameterChoice::StringParam(text))) => ParameterValue::Text(text),
        ("config", _) => return Err(expected("string_param")),
        (file, value) if file.starts_with("file:") => match value {
            Some(ParameterChoice::BytesParam(bytes)) => ParameterValue::Bytes(bytes.into()),
            _ => return Err(expected("bytes_param")),
        },
        _ => return Err(Status::invalid(format!("unrecognized load parameter '{name}'."))),
    };
    Ok(Parameter { name, value })
}

fn unload_parameter(name: &str, value: wire::ModelRepositoryParameter) -> Result<bool, Status> {
    match value.parameter_choice {
        _ if name != "unload_dependents" => Ok(false),
        Some(ParameterChoice::BoolParam(value)) => Ok(value),
        _ => Err(Status::invalid(format!("invalid value type for '{name}' parameter, expected bool_param."))),
    }
}

impl Management {
    /// Has a control thread carry the request of a call out.
    pub(super) fn run_on_repository(&mut self, call: CallKey, request: RepositoryRequest, replies: &mut Replies) {
        let protocol = request.protocol();
        let post = Arc::clone(&self.post);
        let begun = self.facts.check_not_exiting().and_then(|()| {
            self.lifecycle.spawn(move |lifecycle| {
                let outcome = guarded(|| request.carry_out(lifecycle));
                post(Mail::Done { call, protocol, outcome });
            })
        });
        if let Err(status) = begun {
            self.done(call, protocol, Err(status), replies);
        }
    }

    /// Answers what a control thread did.
    pub(in crate::api) fn done(
        &mut self,
        call: CallKey,
        protocol: Protocol,
        outcome: Result<Outcome, Status>,
        replies: &mut Replies,
    ) {
        match protocol {
            Protocol::Http => {
                let reply = match outcome {
                    Ok(Outcome::Loaded | Outcome::Unloaded) => Response::empty(200),
                    Ok(Outcome::Index(rows)) => error::reply(200, error::JSON, index_json(&rows, &self.pool)),
                    Ok(Outcome::Regions(outcome)) => self.regions_reply(outcome),
                    Ok(Outcome::Checked(probe, is_ready)) => probe_reply(probe, is_ready, &self.pool),
                    Err(status) => error::http_error(&self.pool, &status, error::JSON),
                };
                replies.push(call, HttpReply::Answer(reply));
            }
            Protocol::Grpc => {
                let framed = outcome.and_then(|outcome| match outcome {
                    Outcome::Loaded => self.frame(&wire::RepositoryModelLoadResponse {}),
                    Outcome::Unloaded => self.frame(&wire::RepositoryModelUnloadResponse {}),
                    Outcome::Index(rows) => self.frame(&index_message(rows)),
                    Outcome::Regions(outcome) => self.regions_message(outcome),
                    Outcome::Checked(probe, is_ready) => self.probe_message(probe, is_ready),
                });
                match framed {
                    Ok(message) => {
                        replies.push(call, GrpcReply::Message(message));
                        replies.push(call, GrpcReply::End(GrpcStatus::ok()));
                    }
                    Err(status) => replies.push(call, GrpcReply::End(error::grpc_status(status))),
                }
            }
        }
    }
}

/// The answer to `/v2/repository/index`.
pub fn index_json(rows: &[IndexRow], pool: &Pool) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_array();
    for row in rows {
        let version = row.version.map(|version| version.to_string()).unwrap_or_default();
        writer.begin_object();
        let members = [("name", &*row.name), ("version", &*version), ("state", row.state), ("reason", &*row.reason)];
        for (key, value) in members.into_iter().filter(|(_, value)| !value.is_empty()) {
            writer.key(key);
            writer.string(value);
        }
        writer.end_object();
    }
    writer.end_array();
    body
}

fn index_message(rows: Vec<IndexRow>) -> wire::RepositoryIndexResponse {
    let models = rows.into_iter().map(|row| wire::repository_index_response::ModelIndex {
        name: row.name,
        version: row.version.map(|version| version.to_string()).unwrap_or_default(),
        state: row.state.to_owned(),
        reason: row.reason,
    });
    wire::RepositoryIndexResponse { models: models.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(text: &str) -> Slice {
        Slice::copy_of(text.as_bytes())
    }

    #[test]
    fn an_operation_that_panics_is_answered() {
        let panicked = guarded(|| panic!("a bug"));
        assert_eq!(panicked.unwrap_err(), Status::internal("the operation on the model repository panicked"));
        assert!(matches!(guarded(|| Ok(Outcome::Loaded)), Ok(Outcome::Loaded)));
    }

    #[test]
    fn base64_is_read_leniently() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("aGVsbG8=", b"hello"),
            ("aGVsbG8", b"hello"),
            ("aGV\nsb G8", b"hello"),
            ("aGVs*bG8==", b"hello"),
            ("aGVsbG9h", b"helloa"),
            ("aGVsb", b"hel"),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
            ("????", b""),
        ] {
            assert_eq!(from_base64(text.as_bytes()).as_deref(), Ok(bytes), "{text}");
        }
    }

    /// contract/http.md section 4, load. Two gibibytes of text are too much for a test.
    #[test]
    fn the_text_of_a_file_has_a_limit() {
        let text = "'file:1/x' exceeds the maximum allowed data size limit INT_MAX";
        for (length, said) in [(0, Ok(())), (0x7fff_ffff, Ok(())), (0x8000_0000, Err(Status::invalid(text)))] {
            assert_eq!(check_file("file:1/x", length), said, "{length}");
        }
    }

    #[test]
    fn bodies_of_loads() {
        assert_eq!(load_body(&slice("")), Ok(vec![]));
        assert_eq!(load_body(&slice("{}")), Ok(vec![]));
        let both = r#"{"parameters":{"config":"{}","file:1/x":"aGk="}}"#;
        let config = Parameter { name: "config".to_owned(), value: ParameterValue::Text("{}".to_owned()) };
        let file = Parameter { name: "file:1/x".to_owned(), value: ParameterValue::Bytes(b"hi".to_vec()) };
        assert_eq!(load_body(&slice(both)), Ok(vec![config, file]));
        for (body, text) in [
            (r#"{"parameters":{"other":"x"}}"#, "unexpected error on creating Triton parameter"),
            (r#"{"parameters":{"config":1}}"#, "attempt to access JSON non-string as string"),
            (r#"{"parameters":{"file:x":{}}}"#, "attempt to access JSON non-string as string"),
            (r#"{"parameters":[]}"#, "attempt to get members for non-object"),
        ] {
            assert_eq!(load_body(&slice(body)), Err(Status::internal(text)), "{body}");
        }
        assert!(load_body(&slice("{")).is_err());
    }

    #[test]
    fn bodies_of_unloads_and_of_the_index() {
        for (body, expected) in [
            ("", false),
            ("{}", false),
            (r#"{"parameters":{"unload_dependents":true}}"#, true),
            (r#"{"parameters":{"unload_dependents":false}}"#, false),
            (r#"{"parameters":{"unload_dependents":1}}"#, false),
        ] {
            assert_eq!(unload_body(&slice(body)), Ok(expected), "{body}");
        }
        assert!(unload_body(&slice("[")).is_err());
        assert_eq!(index_body(&slice("")), Ok(false));
        assert_eq!(index_body(&slice(r#"{"ready":true}"#)), Ok(true));
        let text = "Invalid value for 'ready': expected a boolean";
        assert_eq!(index_body(&slice(r#"{"ready":1}"#)), Err(Status::invalid(text)));
    }

    #[test]
    fn parameters_of_grpc_have_their_types() {
        let value = |choice| wire::ModelRepositoryParameter { parameter_choice: Some(choice) };
        let text = || value(ParameterChoice::StringParam("{}".to_owned()));
        let bytes = || value(ParameterChoice::BytesParam(b"hi".to_vec().into()));
        let given = load_parameter("config".to_owned(), text()).unwrap();
        assert_eq!(given.value, ParameterValue::Text("{}".to_owned()));
        let given = load_parameter("file:1/x".to_owned(), bytes()).unwrap();
        assert_eq!(given.value, ParameterValue::Bytes(b"hi".to_vec()));
        for (name, value, text) in [
            ("config", bytes(), "invalid value type for load parameter 'config', expected string_param."),
            ("file:x", text(), "invalid value type for load parameter 'file:x', expected bytes_param."),
            ("other", text(), "unrecognized load parameter 'other'."),
        ] {
            assert_eq!(load_parameter(name.to_owned(), value), Err(Status::invalid(text)));
        }
        for expected in [true, false] {
            let flag = value(ParameterChoice::BoolParam(expected));
            assert_eq!(unload_parameter("unload_dependents", flag), Ok(expected));
        }
        let error = unload_parameter("unload_dependents", text()).unwrap_err();
        assert_eq!(error.message, "invalid value type for 'unload_dependents' parameter, expected bool_param.");
    }
}
