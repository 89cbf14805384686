//! Questions over gRPC: unary calls, one after the other.

use prost::Message;

use crate::exchange::{call_head, end_of_call, http2_config};
use crate::measurement::{Phase, ServerSide};
use crate::model_info::{ModelInfo, TensorFacts};
use nereid_client::{CallError, Wire};
use nereid_memory::Pool;
use nereid_protocol::grpc::PREFIX_BYTES;
use nereid_protocol::http2::{Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_metadata_response::TensorMetadata;
use nereid_wire::inference::{
    ModelConfig, ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, ServerMetadataRequest, ServerMetadataResponse, StatisticDuration,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse, SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse,
};

/// More than any answer to a question has.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const POOL_BYTES: usize = 256 << 20;

pub struct GrpcMetadataClient {
    wire: Wire,
    authority: String,
    tls: bool,
    headers: Vec<(String, String)>,
    connection: Connection,
}

/// The answer to the one call that is open.
#[derive(Default)]
struct Answer {
    frame: Vec<u8>,
    end: Option<Result<(), String>>,
}

impl Handler for Answer {
    fn headers(&mut self, _stream: StreamId, headers: &Headers, end_stream: bool) {
        if end_stream || headers.status() != Some(b"200") {
            self.end = Some(end_of_call(headers));
        }
    }

    fn data(&mut self, _stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        if self.frame.len() < ANSWER_BYTES_MAX {
            self.frame.extend_from_slice(bytes);
        }
        if end_stream {
            self.end.get_or_insert_with(|| Err("an answer without a gRPC status".to_owned()));
        }
        bytes.len()
    }

    fn trailers(&mut self, _stream: StreamId, headers: &Headers) {
        self.end = Some(end_of_call(headers));
    }

    fn reset(&mut self, _stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        self.end.get_or_insert_with(|| Err(format!("the call was reset: {code}")));
    }
}

impl GrpcMetadataClient {
    pub fn new(wire: Wire, authority: String, tls: bool, headers: Vec<(String, String)>) -> GrpcMetadataClient {
        let connection = Connection::client(http2_config(), Pool::new(POOL_BYTES));
        GrpcMetadataClient { wire, authority, tls, headers, connection }
    }

    fn call<A: Message + Default>(&mut self, method: &str, question: &impl Message) -> Result<A, CallError> {
        let head = call_head(&self.authority, self.tls, method, None, &self.headers);
        let fields = head.iter().map(|(name, value)| (&name[..], &value[..]));
        let broken = |error: &dyn std::fmt::Display| CallError::Connection(error.to_string());
        let stream = self.connection.open(fields, false).map_err(|error| broken(&error))?;
        let message = question.encode_to_vec();
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
        frame.extend_from_slice(&message);
        self.connection.send_bytes(stream, &frame, true).map_err(|error| broken(&error))?;
        let mut answer = Answer::default();
        let mut buffer = vec![0; 64 * 1024];
        while answer.end.is_none() {
            let waiting = self.connection.output();
            let output = waiting.to_vec();
            waiting.clear();
            self.wire.send(&output)?;
            let n = self.wire.receive(&mut buffer)?;
            let received = self.connection.receive(buffer.get(..n).unwrap_or_default(), &mut answer);
            received.map_err(|error| broken(&error))?;
        }
        answer.end.unwrap_or(Ok(())).map_err(CallError::Refused)?;
        let message = answer.frame.get(PREFIX_BYTES..).unwrap_or_default();
        A::decode(message).map_err(|error| CallError::Refused(format!("a broken answer: {error}")))
    }

    pub fn inspect(&mut self, model: &str, version: &str) -> Result<ModelInfo, CallError> {
        let server: ServerMetadataResponse = self.call("ServerMetadata", &ServerMetadataRequest {})?;
        let (name, version) = (model.to_owned(), version.to_owned());
        let request = ModelMetadataRequest { name: name.clone(), version: version.clone() };
        let metadata: ModelMetadataResponse = self.call("ModelMetadata", &request)?;
        // Configurations are an extension of the protocol, which other servers do not have.
        let answer: ModelConfigResponse =
            match self.call("ModelConfig", &ModelConfigRequest { name, version: version.clone() }) {
                Err(CallError::Refused(_)) => ModelConfigResponse::default(),
                answer => answer?,
            };
        Ok(model_info(model, &version, server, metadata, answer.config.unwrap_or_default()))
    }

    pub fn statistics(&mut self, model: &str, version: &str) -> Result<ServerSide, CallError> {
        let request = ModelStatisticsRequest { name: model.to_owned(), version: version.to_owned() };
        let answer: ModelStatisticsResponse = self.call("ModelStatistics", &request)?;
        Ok(server_side(model, version, answer))
    }

    pub fn register(&mut self, region: &str, key: &str, byte_size: u64) -> Result<(), CallError> {
        let (name, key) = (region.to_owned(), key.to_owned());
        let request = SystemSharedMemoryRegisterRequest { name, key, offset: 0, byte_size };
        let answer = self.call::<SystemSharedMemoryRegisterResponse>("SystemSharedMemoryRegister", &request);
        answer.map(drop)
    }

    pub fn unregister(&mut self, region: &str) -> Result<(), CallError> {
        let request = SystemSharedMemoryUnregisterRequest { name: region.to_owned() };
        let answer = self.call::<SystemSharedMemoryUnregisterResponse>("SystemSharedMemoryUnregister", &request);
        answer.map(drop)
    }
}

fn model_info(
    model: &str,
    version: &str,
    server: ServerMetadataResponse,
    metadata: ModelMetadataResponse,
    config: ModelConfig,
) -> ModelInfo {
    let facts = |tensor: TensorMetadata, optional: bool, is_shape_tensor: bool| TensorFacts {
        name: tensor.name,
        datatype: tensor.datatype,
        shape: tensor.shape,
        optional,
        is_shape_tensor,
    };
    let inputs = metadata.inputs.into_iter().map(|tensor| {
        let configured = config.input.iter().find(|input| input.name == tensor.name);
        let (optional, shape) = configured.map_or((false, false), |input| (input.optional, input.is_shape_tensor));
        facts(tensor, optional, shape)
    });
    let outputs = metadata.outputs.into_iter().map(|tensor| {
        let configured = config.output.iter().find(|output| output.name == tensor.name);
        let is_shape_tensor = configured.is_some_and(|output| output.is_shape_tensor);
        facts(tensor, false, is_shape_tensor)
    });
    let (inputs, outputs) = (inputs.collect(), outputs.collect());
    let mut composing: Vec<String> = match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => {
            ensemble.step.iter().map(|step| step.model_name.clone()).collect()
        }
        _ => Vec::new(),
    };
    composing.sort_unstable();
    composing.dedup();
    let chosen = metadata.versions.last().cloned().unwrap_or_default();
    ModelInfo {
        server: server.name,
        server_version: server.version,
        server_build: String::new(),
        model: model.to_owned(),
        version: if version.is_empty() { chosen } else { version.to_owned() },
        platform: metadata.platform,
        max_batch_size: u64::try_from(config.max_batch_size).unwrap_or(0),
        decoupled: config.model_transaction_policy.is_some_and(|policy| policy.decoupled),
        sequences: matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))),
        response_cache: config.response_cache.is_some_and(|cache| cache.enable),
        inputs,
        outputs,
        composing_models: composing,
    }
}

fn server_side(model: &str, version: &str, answer: ModelStatisticsResponse) -> ServerSide {
    let mut sum = ServerSide { model: model.to_owned(), version: version.to_owned(), ..ServerSide::default() };
    for statistics in answer.model_stats {
        let counts = statistics.inference_stats.unwrap_or_default();
        let phase = |duration: Option<StatisticDuration>| {
            duration.map_or_else(Phase::default, |duration| Phase { count: duration.count, ns: duration.ns })
        };
        sum.add(&ServerSide {
            inferences: statistics.inference_count,
            executions: statistics.execution_count,
            success: phase(counts.success),
            fail: phase(counts.fail),
            queue: phase(counts.queue),
            compute_input: phase(counts.compute_input),
            compute_infer: phase(counts.compute_infer),
            compute_output: phase(counts.compute_output),
            cache_hit: phase(counts.cache_hit),
            cache_miss: phase(counts.cache_miss),
            ..ServerSide::default()
        });
    }
    sum
}
