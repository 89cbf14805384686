//! Which calls the audit log records, and what it records of them: those that change the server for other clients, and
//! attempts that were refused for want of a key.
//!
//! A call is noted when it comes, with its peer and its key, and recorded when its answer is there: for a load that may
//! be minutes later, when its client has left.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use super::access::{Access, KeyName};
use super::clouds::sagemaker;
use super::grpc::methods::{Method, method_of};
use super::http::inspect_page;
use super::openai;
use super::routes::{Category, MemoryKind, RegionAction, Route, TrafficAction, route};
use nereid_memory::Slice;
use nereid_observe::audit::{AuditLog, AuditRecord, Outcome};
use nereid_protocol::grpc::Code;
use nereid_protocol::http1::{self, Head};
use nereid_protocol::http2::Headers;
use nereid_protocol::service::{CallKey, GrpcPlan, GrpcReply, HttpReply, Panicked, Port, Replies, Reply};

/// Fields of a message in which the name of the subject is searched. It is among the first, unless a client adds
/// unknown ones.
const FIELDS_MAX: usize = 64;

/// The recorder of one shard.
pub struct Auditor {
    log: Arc<AuditLog>,
    /// Of the connection that is being served.
    peer: Option<SocketAddr>,
    /// Calls without an answer.
    open: HashMap<CallKey, AuditRecord>,
    /// The metrics port has the inspect page.
    has_page: bool,
}

/// What a call does, and to what.
#[derive(Debug, PartialEq, Eq)]
pub struct Audited {
    pub category: Category,
    pub action: &'static str,
    pub subject: String,
}

/// A request over HTTP, with its body if it has come.
#[derive(Clone, Copy)]
pub struct HttpRequest<'a> {
    pub port: Port,
    pub head: &'a Head,
    pub body: Option<&'a Slice>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The change that a request asks for, if it is one.
fn of_http(port: Port, head: &Head, body: Option<&Slice>, has_page: bool) -> Option<Audited> {
    if port == Port::SageMaker {
        return sagemaker::audited(head, body);
    }
    if port == Port::OpenAi {
        return openai::routes::audited(head);
    }
    if port == Port::Metrics {
        return has_page.then(|| inspect_page::audited(head)).flatten();
    }
    // The port of Vertex AI leads to no route that changes anything.
    let route = route(head.path().as_bytes()).filter(|_| port == Port::Http)?;
    let is_post = head.method() == http1::Method::Post;
    let (action, subject) = match route {
        Route::Load(_, model) => ("load", text(model)),
        Route::Unload(_, model) => ("unload", text(model)),
        Route::Logging => ("log-settings", String::new()),
        Route::TraceSetting(model) => ("trace-settings", text(model.unwrap_or_default())),
        Route::Traffic(model, TrafficAction::Rule) => ("traffic-weights", text(model)),
        Route::Traffic(model, TrafficAction::Promote) => ("traffic-promote", text(model)),
        Route::Traffic(model, TrafficAction::RollBack) => ("traffic-rollback", text(model)),
        Route::Activate(model, _) => ("activate-generation", text(model)),
        Route::SharedMemory(kind, action, name) => (of_regions(kind, action)?, text(name.unwrap_or_default())),
        _ => return None,
    };
    is_post.then_some(Audited { category: route.category(), action, subject })
}

fn of_regions(kind: MemoryKind, action: RegionAction) -> Option<&'static str> {
    match (kind, action) {
        (_, RegionAction::Status) => None,
        (MemoryKind::System, RegionAction::Register) => Some("register-system-memory"),
        (MemoryKind::System, RegionAction::Unregister) => Some("unregister-system-memory"),
        (MemoryKind::Cuda, RegionAction::Register) => Some("register-cuda-memory"),
        (MemoryKind::Cuda, RegionAction::Unregister) => Some("unregister-cuda-memory"),
    }
}

/// The change that an RPC makes, or may make; and the field of its message that names the subject.
fn of_grpc(method: Method) -> Option<(&'static str, Option<u32>)> {
    Some(match method {
        Method::RepositoryModelLoad => ("load", Some(2)),
        Method::RepositoryModelUnload => ("unload", Some(2)),
        Method::LogSettings => ("log-settings", None),
        Method::TraceSetting => ("trace-settings", Some(2)),
        method => {
            let (kind, action) = method.of_regions()?;
            (of_regions(kind, action)?, Some(1))
        }
    })
}

/// A number of protobuf, and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

/// The last text of a field among the first of a message, as a decoder would read it.
fn field(mut message: &[u8], wanted: u32) -> Option<&[u8]> {
    let mut found = None;
    for _ in 0..FIELDS_MAX {
        let Some((tag, rest)) = varint(message) else { break };
        let (value, rest) = match tag & 7 {
            0 => (None, varint(rest)?.1),
            1 => (None, rest.get(8..)?),
            2 => {
                let (len, rest) = varint(rest)?;
                let (value, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                (Some(value), rest)
            }
            5 => (None, rest.get(4..)?),
            _ => break,
        };
        if tag >> 3 == u64::from(wanted) {
            found = value.or(found);
        }
        message = rest;
    }
    found
}

/// `/inference.GRPCInferenceService/Method` without what all have in common.
fn rpc_name(path: &[u8]) -> String {
    text(path.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
}

fn call_of(head: &Head) -> String {
    let method = match head.method() {
        http1::Method::Post => "POST",
        http1::Method::Delete => "DELETE",
        _ => "GET",
    };
    format!("{method} {}", head.path())
}

impl Auditor {
    pub fn new(log: Arc<AuditLog>, has_page: bool) -> Auditor {
        Auditor { log, peer: None, open: HashMap::new(), has_page }
    }

    /// The peer of the calls that come next.
    pub fn set_peer(&mut self, peer: Option<SocketAddr>) {
        self.peer = peer;
    }

    fn entry(&self, protocol: &'static str, call: String, action: &'static str, key: KeyName) -> AuditRecord {
        AuditRecord {
            at: SystemTime::now(),
            peer: self.peer,
            protocol,
            call,
            action,
            subject: String::new(),
            key,
            outcome: Outcome::Unfinished,
            status: Cow::Borrowed(""),
        }
    }

    fn entry_of_http(&self, request: HttpRequest<'_>, access: &Access) -> Option<AuditRecord> {
        let HttpRequest { port, head, body } = request;
        let Audited { category, action, subject } = of_http(port, head, body, self.has_page)?;
        let protocol = match port {
            Port::SageMaker => "sagemaker",
            Port::OpenAi => "openai",
            Port::Metrics => "ui",
            _ => "http",
        };
        let key = access.http.key_of(category, head);
        Some(AuditRecord { subject, ..self.entry(protocol, call_of(head), action, key) })
    }

    /// A request comes.
    pub fn begin_http(&mut self, call: CallKey, request: HttpRequest<'_>, access: &Access) {
        if let Some(entry) = self.entry_of_http(request, access) {
            self.open.insert(call, entry);
        }
    }

    /// A request is refused before its body.
    pub fn refused_http(&self, port: Port, head: &Head, access: &Access, status: u16) {
        if let Some(entry) = self.entry_of_http(HttpRequest { port, head, body: None }, access) {
            self.log.record(AuditRecord { outcome: outcome_of(status), status: status.to_string().into(), ..entry });
        }
    }

    /// The request of a call comes.
    pub fn begin_grpc(&mut self, call: CallKey, plan: &GrpcPlan) {
        let method = Method::from_number(plan.method);
        if let Some((method, (action, _))) = method.and_then(|method| Some((method, of_grpc(method)?))) {
            let entry = self.entry("grpc", format!("{method:?}"), action, plan.key.clone());
            self.open.insert(call, entry);
        }
    }

    /// Its message is here, unpacked.
    pub fn name(&mut self, call: CallKey, method: Method, message: &[u8]) {
        if let Some(entry) = self.open.get_mut(&call)
            && let Some((_, Some(wanted))) = of_grpc(method)
        {
            entry.subject = field(message, wanted).map(text).unwrap_or_default();
        }
    }

    /// A call is refused before its message.
    pub fn refused_grpc(&self, headers: &Headers, code: Code) {
        let path = headers.path().unwrap_or_default();
        if let Some((action, _)) = method_of(path).and_then(of_grpc) {
            let entry = self.entry("grpc", rpc_name(path), action, None);
            self.log.record(AuditRecord { outcome: Outcome::Refused, status: code.name().into(), ..entry });
        }
    }

    /// Records the calls that were answered after the mark.
    pub fn settle(&mut self, replies: &Replies, mark: (usize, usize)) {
        if self.open.is_empty() {
            return;
        }
        let (replies, panicked) = replies.since(mark);
        for panicked in panicked {
            // No work is audited before its call, so a panic is over the call.
            if let Panicked::Call(call) = panicked
                && let Some(entry) = self.open.remove(call)
            {
                self.log.record(AuditRecord { outcome: Outcome::Failed, status: "panic".into(), ..entry });
            }
        }
        for (call, reply) in replies {
            let (outcome, status) = match reply {
                Reply::Http(HttpReply::Answer(response)) => {
                    (outcome_of(response.head.status), Cow::Owned(response.head.status.to_string()))
                }
                Reply::Grpc(GrpcReply::End(status)) if status.code == Code::Ok => {
                    (Outcome::Done, Code::Ok.name().into())
                }
                Reply::Grpc(GrpcReply::End(status)) => (Outcome::Failed, status.code.name().into()),
                _ => continue,
            };
            if let Some(entry) = self.open.remove(call) {
                self.log.record(AuditRecord { outcome, status, ..entry });
            }
        }
    }
}

impl Drop for Auditor {
    /// What was begun is recorded, also if the server does not finish it.
    fn drop(&mut self) {
        for (_, entry) in self.open.drain() {
            self.log.record(entry);
        }
    }
}

fn outcome_of(status: u16) -> Outcome {
    match status {
        200..300 => Outcome::Done,
        // OpenAI's interface has the first for keys, the others the second.
        401 | 403 => Outcome::Refused,
        _ => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_wire::inference as wire;
    use prost::Message;

    #[test]
    fn the_subject_is_found_in_the_message() {
        let mut load = wire::RepositoryModelLoadRequest {
            repository_name: "r".to_owned(),
            model_name: "digits".to_owned(),
            ..Default::default()
        };
        load.parameters.insert("config".to_owned(), wire::ModelRepositoryParameter::default());
        assert_eq!(field(&load.encode_to_vec(), 2), Some(&b"digits"[..]));
        let region = wire::SystemSharedMemoryRegisterRequest {
            name: "region".to_owned(),
            key: "/key".to_owned(),
            offset: 300,
            byte_size: 1 << 40,
        };
        assert_eq!(field(&region.encode_to_vec(), 1), Some(&b"region"[..]));
        assert_eq!(field(b"", 1), None);
        // Every beginning of a message, and every number of a length, is read without a panic.
        let bytes = region.encode_to_vec();
        for end in 0..bytes.len() {
            field(&bytes[..end], 3);
        }
        assert_eq!(field(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, b'x'], 1), None);
        assert_eq!(field(&[0xff; 16], 1), None);
    }

    /// Answers that were there before belong to other rounds, and a call that ends by a panic has none.
    #[test]
    fn a_call_is_recorded_once_by_its_answer_or_by_its_panic() {
        let path = std::env::temp_dir().join(format!("nereid-auditor-{}", std::process::id()));
        let log = Arc::new(AuditLog::start(&path).unwrap());
        let mut auditor = Auditor::new(Arc::clone(&log), false);
        let [before, answered, panicked] = [1, 2, 3].map(CallKey);
        for call in [before, answered, panicked] {
            let entry = auditor.entry("http", format!("call {}", call.0), "load", None);
            auditor.open.insert(call, entry);
        }
        let answer = || HttpReply::Answer(http1::Response::empty(200));
        let mut replies = Replies::default();
        replies.push(before, answer());
        let mark = replies.mark();
        replies.push(answered, answer());
        replies.push_panicked(Panicked::Call(panicked));
        auditor.settle(&replies, mark);
        assert_eq!(auditor.open.keys().collect::<Vec<_>>(), [&before]);
        auditor.settle(&replies, mark);
        drop(auditor);
        assert!(log.flush(std::time::Duration::from_secs(60)));
        let lines = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let shown = |call: u32, outcome: &str, status: &str| {
            let of_call = format!("\"call\":\"call {call}\"");
            let end = format!("\"outcome\":\"{outcome}\",\"status\":\"{status}\"}}");
            lines.lines().filter(|line| line.contains(&of_call) && line.ends_with(&end)).count()
        };
        let shown = [shown(1, "unfinished", ""), shown(2, "done", "200"), shown(3, "failed", "panic")];
        assert_eq!((shown, lines.lines().count()), ([1; 3], 3), "{lines}");
    }

    #[test]
    fn what_only_reads_is_not_recorded() {
        for method in 0..=u8::MAX {
            let Some(method) = Method::from_number(method) else { continue };
            let name = format!("{method:?}");
            let changes = ["Load", "Unload", "Register", "Unregister", "Settings", "Setting"];
            let expected = changes.iter().any(|change| name.ends_with(change));
            assert_eq!(of_grpc(method).is_some(), expected, "{name}");
        }
    }
}
