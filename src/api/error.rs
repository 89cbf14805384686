//! Converts errors to codes of HTTP and gRPC, in this one place (contract/http.md section 2, contract/grpc.md section
//! 3).

use nereid_memory::{Gather, Pool};
use nereid_protocol::grpc;
use nereid_protocol::grpc::TooLarge;
use nereid_protocol::http1::{Response, ResponseHead};
use nereid_protocol::json::{GatherSink, Writer};
use nereid_protocol::service::GrpcStatus;
use nereid_request::{Code, RefusalReason, Status};

/// The error of a call whose answer does not fit into a gRPC message.
pub fn too_large(error: TooLarge) -> Status {
    Status::invalid(error.to_string())
}

/// The refusal of inference over gRPC while the server is exiting.
pub fn grpc_stopping() -> Status {
    let reason = RefusalReason::Exiting;
    Status::refused(reason, "GRPC server is shutting down and has stopped accepting new requests.")
}

/// The refusal of JSON that is longer than `--http-max-input-size`.
pub fn json_too_long(length: u64, most: usize) -> Status {
    Status::invalid(format!(
        "request JSON size of {length} bytes exceeds the maximum allowed input size of {most} bytes. Use \
         --http-max-input-size to increase the limit."
    ))
}

pub const JSON: Option<&str> = Some("application/json");

pub fn http_status(code: Code) -> u16 {
    match code {
        Code::Internal => 500,
        Code::NotFound => 404,
        Code::Unavailable => 503,
        Code::Unsupported => 501,
        Code::Unknown | Code::InvalidArg | Code::AlreadyExists | Code::Cancelled => 400,
    }
}

pub fn grpc_code(code: Code) -> grpc::Code {
    match code {
        Code::Unknown => grpc::Code::Unknown,
        Code::Internal => grpc::Code::Internal,
        Code::NotFound => grpc::Code::NotFound,
        Code::InvalidArg => grpc::Code::InvalidArgument,
        Code::Unavailable => grpc::Code::Unavailable,
        Code::Unsupported => grpc::Code::Unimplemented,
        Code::AlreadyExists => grpc::Code::AlreadyExists,
        Code::Cancelled => grpc::Code::Cancelled,
    }
}

pub fn grpc_status(status: Status) -> GrpcStatus {
    GrpcStatus { refusal: status.refusal, ..GrpcStatus::new(grpc_code(status.code), status.message) }
}

/// `{"error":"…"}` with the status of `error`. Whether it is labelled as JSON depends on where it arose
/// (contract/http.md section 1).
pub fn http_error(pool: &Pool, error: &Status, content_type: Option<&'static str>) -> Response {
    let mut response = error_body(pool, http_status(error.code), &error.message, content_type);
    response.head.refusal = error.refusal;
    response
}

pub fn error_body(pool: &Pool, status: u16, message: &str, content_type: Option<&'static str>) -> Response {
    reply(status, content_type, json(pool, message))
}

/// `{"error":"…"}`.
pub fn json(pool: &Pool, message: &str) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key("error");
    writer.string(message);
    writer.end_object();
    body
}

/// An answer without further header fields; without a type it goes out as `text/plain`.
pub fn reply(status: u16, content_type: Option<&'static str>, body: Gather) -> Response {
    let mut head = ResponseHead::new(status);
    if let Some(content_type) = content_type {
        head = head.content_type(content_type);
    }
    Response::new(head, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of contract/http.md section 2 and contract/grpc.md section 3.
    #[test]
    fn every_code_has_its_status_in_both_protocols() {
        for (code, http, grpc, number) in [
            (Code::Unknown, 400, grpc::Code::Unknown, 2),
            (Code::Internal, 500, grpc::Code::Internal, 13),
            (Code::NotFound, 404, grpc::Code::NotFound, 5),
            (Code::InvalidArg, 400, grpc::Code::InvalidArgument, 3),
            (Code::Unavailable, 503, grpc::Code::Unavailable, 14),
            (Code::Unsupported, 501, grpc::Code::Unimplemented, 12),
            (Code::AlreadyExists, 400, grpc::Code::AlreadyExists, 6),
            (Code::Cancelled, 400, grpc::Code::Cancelled, 1),
        ] {
            assert_eq!((http_status(code), grpc_code(code)), (http, grpc), "{code:?}");
            assert_eq!(grpc as u32, number, "{code:?}");
        }
    }
}
