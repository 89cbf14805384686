//! Bounds of what one shard keeps.

/// Plans of HTTP heads. The oldest gives way.
pub const HTTP_PLANS_MAX: usize = 256;
/// Bytes of a head that gets a plan.
pub const HTTP_HEAD_BYTES_MAX: usize = 4096;
/// Texts of JSON that one plan has. The oldest gives way.
pub const JSON_TEXTS_MAX: usize = 4;
/// Bytes of such a text.
pub const JSON_TEXT_BYTES_MAX: usize = 4096;

/// Heads of gRPC requests, a power of two. Two that fall into one place take turns.
pub const GRPC_REQUESTS_MAX: usize = 64;
/// Bytes of such a head.
pub const GRPC_REQUEST_BYTES_MAX: usize = 2048;
/// Inputs of a gRPC request whose head is kept.
pub const GRPC_REQUEST_INPUTS_MAX: usize = 32;

/// Models of which the JSON of an answer is kept. The oldest gives way.
pub const HTTP_ANSWERS_MAX: usize = 16;
/// Bytes of such JSON.
pub const HTTP_ANSWER_BYTES_MAX: usize = 4096;

/// Heads of gRPC answers. The oldest gives way.
pub const GRPC_ANSWERS_MAX: usize = 8;
/// Bytes of such a head.
pub const GRPC_ANSWER_BYTES_MAX: usize = 4096;
/// Outputs and parameters of a gRPC answer whose head is kept: more are not worth it.
pub const GRPC_ANSWER_OUTPUTS_MAX: usize = 16;
pub const GRPC_ANSWER_PARAMETERS_MAX: usize = 16;
