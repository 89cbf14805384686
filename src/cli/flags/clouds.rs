//! Flags of the ports for SageMaker and Vertex AI.

use super::{Flag, Group, Wish};

const SAGEMAKER: Group = Group("SageMaker");
const VERTEX: Group = Group("Vertex AI");
const NO_SAGEMAKER: &str = "there is no SageMaker port";
const NO_VERTEX: &str = "there is no Vertex AI port";

pub static FLAGS: &[Flag] = &[
    SAGEMAKER.later("allow-sagemaker", "boolean", "Whether to serve SageMaker. Default: false.", |g, v| {
        g.sagemaker.allowed = v.boolean()?;
        Ok(Wish::more_if(g.sagemaker.allowed))
    }),
    SAGEMAKER.idle("sagemaker-port", "integer", "Port of SageMaker. Default: 8080.", NO_SAGEMAKER, |g, v| {
        v.int().map(|given| g.sagemaker.port = given)
    }),
    SAGEMAKER.idle(
        "sagemaker-safe-port-range",
        "<low>-<high>",
        "Ports that the other services must keep to. Default: any.",
        NO_SAGEMAKER,
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
        NO_SAGEMAKER,
        |_, v| v.int().map(|_| ()),
    ),
    VERTEX.later(
        "allow-vertex-ai",
        "boolean",
        "Whether to serve Vertex AI. Default: true if AIP_MODE is PREDICTION, else false.",
        |g, v| {
            g.vertex.allowed = v.boolean()?;
            Ok(Wish::more_if(g.vertex.allowed))
        },
    ),
    VERTEX.idle(
        "vertex-ai-port",
        "integer",
        "Port of Vertex AI. Default: AIP_HTTP_PORT, or 8080.",
        NO_VERTEX,
        |g, v| v.int().map(|given| g.vertex.port = given),
    ),
    VERTEX.idle(
        "vertex-ai-thread-count",
        "integer",
        "Threads of the Vertex AI port. Default: 8.",
        NO_VERTEX,
        |_, v| v.int().map(|_| ()),
    ),
    VERTEX.idle(
        "vertex-ai-default-model",
        "string",
        "Model that the predict route asks. Default: the only one.",
        NO_VERTEX,
        |_, _| Ok(()),
    ),
];
