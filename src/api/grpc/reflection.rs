//! gRPC server reflection: clients without .proto files query what the server offers. Versions v1 and v1alpha of gRPC's
//! own protocol differ in the name of their package only. Triton does not have it.
//!
//! Everything is answered from the descriptors that the build made. Requests are small and answers are not, so they are
//! answered a few at a time, and not before the client has taken what came before.

pub mod stream;

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, FileDescriptor, MessageDescriptor};

use crate::api::calls::Calls;
use crate::api::calls::work::Work;
use crate::api::error;
use crate::api::error::too_large;
use crate::api::load_reports::streams as load_streams;
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::grpc::{self, Code, Encoder, Message, Mode};
use nereid_protocol::service::{GrpcPlan, GrpcReply, GrpcStatus, Replies, Token};
use nereid_request::Status;
use nereid_wire::reflection::server_reflection_request::MessageRequest as Ask;
use nereid_wire::reflection::server_reflection_response::MessageResponse as Answer;
use nereid_wire::reflection::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};
use stream::ReflectionStream;

/// The number of the method, beside those of the inference service. It is in none of the groups that can be restricted.
pub const METHOD: u8 = u8::MAX;
const PATHS: [&[u8]; 2] = [
    b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Requests of one stream that wait for their answers, and their bytes.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES_MAX: usize = 1 << 20;
/// What a short message takes.
const BLOCK_BYTES: usize = 256;

/// How much a request that waits is counted for.
fn held(message: &Slice) -> usize {
    message.len().max(BLOCK_BYTES)
}
/// Answers in one turn.
const ANSWERS_AT_ONCE: usize = 2;
/// How the call takes its requests, if it is one.
pub fn plan(path: &[u8]) -> Option<GrpcPlan> {
    PATHS.contains(&path).then(|| {
        let mut plan = GrpcPlan::new(METHOD, Mode::Collect);
        plan.streaming = true;
        plan
    })
}

/// A request of a stream is there.
pub fn message(calls: &mut Calls, token: Token, message: Message, replies: &mut Replies) {
    let Some(reflection) = calls.reflection(token) else { return };
    let problem = match message {
        Message::Collected(_) if reflection.waiting.len() >= WAITING_MAX => {
            let text = format!("more than {WAITING_MAX} requests of the stream wait for their answers");
            GrpcStatus::new(Code::ResourceExhausted, text)
        }
        Message::Collected(message) if reflection.waiting_bytes.saturating_add(held(&message)) > WAITING_BYTES_MAX => {
            let text = format!("more than {WAITING_BYTES_MAX} bytes of requests wait for their answers");
            GrpcStatus::new(Code::ResourceExhausted, text)
        }
        Message::Collected(message) => {
            reflection.waiting_bytes += held(&message);
            reflection.waiting.push_back(message);
            return list(calls, token);
        }
        Message::Compressed(..) | Message::Infer(_) => {
            let text = "reflection does not take compressed messages";
            error::grpc_status(Status::unsupported(text))
        }
    };
    end_stream(calls, token, problem, replies);
}

/// No request follows.
pub fn half_closed(calls: &mut Calls, token: Token) {
    if let Some(reflection) = calls.reflection(token) {
        reflection.half_closed = true;
    }
    list(calls, token);
}

/// All but so many bytes of answers are out.
pub fn unsent(calls: &mut Calls, token: Token, unsent: usize) {
    let Some(reflection) = calls.reflection(token) else { return };
    reflection.taken_bytes = reflection.answered_bytes.saturating_sub(unsent as u64);
    list(calls, token);
}

/// Has the stream looked at before the turn ends, if there is anything to do.
fn list(calls: &mut Calls, token: Token) {
    let Some(reflection) = calls.reflection(token) else { return };
    let has_work = reflection.half_closed || !reflection.waiting.is_empty();
    if has_work && !reflection.is_held_back() && !std::mem::replace(&mut reflection.is_listed, true) {
        calls.revisit(token.0);
    }
}

fn end_stream(calls: &mut Calls, token: Token, status: GrpcStatus, replies: &mut Replies) {
    if let Some(Work::Reflection(reflection)) = calls.end_work(token.0) {
        replies.push(reflection.call, GrpcReply::End(status));
    }
}

/// The part of one shard's service that answers requests of such streams.
pub struct Reflector {
    pool: Pool,
    encoder: Encoder,
    /// The server has the service of load reports.
    reports_load: bool,
}

impl Reflector {
    pub fn new(pool: Pool, reports_load: bool) -> Reflector {
        Reflector { pool, encoder: Encoder::new(), reports_load }
    }

    /// Answers the next requests.
    pub fn go_on(&mut self, calls: &mut Calls, key: u64, mut reflection: Box<ReflectionStream>, replies: &mut Replies) {
        let token = Token(key);
        reflection.is_listed = false;
        let mut end = None;
        for _ in 0..ANSWERS_AT_ONCE {
            if reflection.is_held_back() {
                break;
            }
            let Some(message) = reflection.waiting.pop_front() else {
                end = reflection.half_closed.then(GrpcStatus::ok);
                break;
            };
            reflection.waiting_bytes = reflection.waiting_bytes.saturating_sub(held(&message));
            let request = grpc::decode::<ServerReflectionRequest>(message);
            let framed = match request {
                Ok(request) => {
                    let mut framed = Gather::new();
                    let framing = self.encoder.message(&answer(request, self.reports_load), &self.pool, &mut framed);
                    framing.map(|()| framed).map_err(too_large)
                }
                Err(_) => Err(Status::internal("Unable to parse request")),
            };
            match framed {
                Ok(framed) => {
                    reflection.answered_bytes = reflection.answered_bytes.saturating_add(framed.len() as u64);
                    replies.push(reflection.call, GrpcReply::Message(framed));
                }
                Err(status) => {
                    end = Some(error::grpc_status(status));
                    break;
                }
            }
        }
        if let Some(place) = calls.work_mut(key) {
            *place = Work::Reflection(reflection);
        }
        match end {
            Some(status) => end_stream(calls, token, status, replies),
            None => list(calls, token),
        }
    }
}

/// The descriptors that reflection serves.
struct Index {
    pool: DescriptorPool,
    /// Full names of everything that has one, and the file that declares it.
    symbols: HashMap<String, FileDescriptor>,
    services: Vec<String>,
    /// Each file with all that it needs, itself first; encoded.
    files: BTreeMap<String, Vec<bytes::Bytes>>,
}

/// Built for the first request.
fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| Index::new(DescriptorPool::decode(nereid_wire::DESCRIPTORS).unwrap_or_default()))
}

impl Index {
    fn new(pool: DescriptorPool) -> Index {
        let mut symbols = HashMap::new();
        let mut note = |name: &str, file: FileDescriptor| drop(symbols.insert(name.to_owned(), file));
        for message in pool.all_messages() {
            note(message.full_name(), message.parent_file());
            message.fields().for_each(|field| note(field.full_name(), message.parent_file()));
            message.oneofs().for_each(|oneof| note(oneof.full_name(), message.parent_file()));
        }
        for declared in pool.all_enums() {
            note(declared.full_name(), declared.parent_file());
            declared.values().for_each(|value| note(value.full_name(), declared.parent_file()));
        }
        for service in pool.services() {
            note(service.full_name(), service.parent_file());
            service.methods().for_each(|method| note(method.full_name(), service.parent_file()));
        }
        let services = pool.services().map(|service| service.full_name().to_owned()).collect();
        let files = pool.files().map(|file| (file.name().to_owned(), with_dependencies(file))).collect();
        Index { symbols, services, files, pool }
    }

    fn file(&self, name: &str) -> Option<Answer> {
        let file_descriptor_proto = self.files.get(name)?.clone();
        Some(Answer::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto }))
    }

    fn message(&self, name: &str) -> Option<MessageDescriptor> {
        self.pool.get_message_by_name(name)
    }
}

fn with_dependencies(file: FileDescriptor) -> Vec<bytes::Bytes> {
    let mut found = vec![file];
    let mut at = 0;
    while let Some(file) = found.get(at).cloned() {
        for needed in file.dependencies() {
            if !found.contains(&needed) {
                found.push(needed);
            }
        }
        at += 1;
    }
    found.iter().map(|file| file.encode_to_vec().into()).collect()
}

fn answer(request: ServerReflectionRequest, reports_load: bool) -> ServerReflectionResponse {
    let index = index();
    let answer = match &request.message_request {
        Some(Ask::ListServices(_)) => {
            let served = index.services.iter().filter(|name| reports_load || *name != load_streams::SERVICE);
            let service = served.map(|name| ServiceResponse { name: name.clone() }).collect();
            Ok(Answer::ListServicesResponse(ListServiceResponse { service }))
        }
        Some(Ask::FileByFilename(name)) => index.file(name).ok_or_else(|| format!("File not found: {name}")),
        Some(Ask::FileContainingSymbol(symbol)) => {
            let file = index.symbols.get(symbol).and_then(|file| index.file(file.name()));
            file.ok_or_else(|| format!("Symbol not found: {symbol}"))
        }
        // There are no extensions.
        Some(Ask::FileContainingExtension(asked)) => {
            Err(format!("Extension not found: {} of {}", asked.extension_number, asked.containing_type))
        }
        Some(Ask::AllExtensionNumbersOfType(name)) => match index.message(name) {
            Some(message) => Ok(Answer::AllExtensionNumbersResponse(ExtensionNumberResponse {
                base_type_name: message.full_name().to_owned(),
                extension_number: Vec::new(),
            })),
            None => Err(format!("Type not found: {name}")),
        },
        None => Ok(failed(Code::InvalidArgument, "the request asks for nothing".to_owned())),
    };
    let answer = answer.unwrap_or_else(|text| failed(Code::NotFound, text));
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(answer),
    }
}

fn failed(code: Code, error_message: String) -> Answer {
    Answer::ErrorResponse(ErrorResponse { error_code: code as i32, error_message })
}

#[cfg(test)]
mod tests;
