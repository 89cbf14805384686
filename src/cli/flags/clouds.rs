//! Flags of the ports for SageMaker and Vertex AI.

use super::http::SHARDS;
use super::{Flag, Group};

const SAGEMAKER: Group = Group("SageMaker");
const VERTEX: Group = Group("Vertex AI");

pub static FLAGS: &[Flag] = &[
    SAGEMAKER.set("allow-sagemaker", "boolean", "Whether to serve SageMaker. Default: false.", |g, v| {
        v.boolean().map(|given| g.options.sagemaker.allowed = given)
    }),
    SAGEMAKER.set("sagemaker-port", "integer", "Port of SageMaker. Default: 8080.", |g, v| {
        v.int().map(|given| g.options.sagemaker.port = given)
    }),
    SAGEMAKER.set(
        "sagemaker-safe-port-range",
        "<low>-<high>",
        "Ports that the other services must keep to, where SageMaker is served. Default: any.",
        |g, v| {
            let (low, high) = v.pair('-')?;
            g.safe_ports = Some((v.part(&low).int()?, v.part(&high).int()?));
            Ok(())
        },
    ),
    SAGEMAKER.idle(
        "sagemaker-thread-count",
        "integer",
        "Threads of the SageMaker port. Default: 8.",
        SHARDS,
        |_, v| v.int().map(|_| ()),
    ),
    VERTEX.set(
        "allow-vertex-ai",
        "boolean",
        "Whether to serve Vertex AI. Default: true if AIP_MODE is PREDICTION, else false.",
        |g, v| v.boolean().map(|given| g.options.vertex.allowed = given),
    ),
    VERTEX.set("vertex-ai-port", "integer", "Port of Vertex AI. Default: AIP_HTTP_PORT, or 8080.", |g, v| {
        v.int().map(|given| g.options.vertex.port = given)
    }),
    VERTEX.idle("vertex-ai-thread-count", "integer", "Threads of the Vertex AI port. Default: 8.", SHARDS, |_, v| {
        v.int().map(|_| ())
    }),
    VERTEX.set("vertex-ai-default-model", "string", "Model of the predict route. Default: the only one.", |g, v| {
        g.options.vertex_default_model = v.text();
        Ok(())
    }),
];
