//! Questions over gRPC: unary calls, one after the other, over HTTP/2 or through a ring of shared memory.

use prost::Message;

use super::http2_calls::Http2Calls;
use super::ring_calls::RingCalls;
use crate::measurement::{Phase, ServerSide};
use crate::model_info::{ModelInfo, TensorFacts};
use nereid_client::CallError;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_metadata_response::TensorMetadata;
use nereid_wire::inference::{
    ModelConfig, ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, ServerMetadataRequest, ServerMetadataResponse, StatisticDuration,
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryRegisterResponse, SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse,
};

/// What carries the calls.
pub enum Calls {
    Http2(Box<Http2Calls>),
    Ring(Box<RingCalls>),
}

pub struct GrpcMetadataClient {
    calls: Calls,
}

impl GrpcMetadataClient {
    pub fn new(calls: Calls) -> GrpcMetadataClient {
        GrpcMetadataClient { calls }
    }

    fn call<A: Message + Default>(&mut self, method: &str, question: &impl Message) -> Result<A, CallError> {
        let question = question.encode_to_vec();
        let answer = match &mut self.calls {
            Calls::Http2(calls) => calls.call(method, &question)?,
            Calls::Ring(calls) => calls.call(method, &question)?,
        };
        A::decode(&*answer).map_err(|error| CallError::Refused(format!("a broken answer: {error}")))
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
