//! The configuration of a model: its `config.pbtxt`, checked and completed, and the resolved [`ModelSpec`] that the
//! server works with.
//!
//! The steps of a configuration, in the order in which `repository` calls them:
//!
//! ```text
//! layout (directory) ─► text | json (file, override) ─► support (what this build honours) ─► normalize (defaults)
//!    ─► validate (poll) ─► complete (what the backend learned) ─► normalize, validate (load) ─► ModelSpec
//! ```
//!
//! Every step is a pure function of its arguments, except `layout` and the labels, which read directories and files.
//! The messages that an operator sees are those of contract/model_config.md, letter for letter; this crate uses only
//! the generated messages.

use std::sync::OnceLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage as _};
use thiserror::Error;

use nereid_wire::CONFIGURATION;
use nereid_wire::inference::ModelConfig;

pub mod complete;
pub mod datatype;
pub mod json;
pub mod labels;
pub mod layout;
pub mod normalize;
pub mod provenance;
pub mod shape_match;
pub mod spec;
mod states;
pub mod support;
mod supported_gpus;
pub mod text;
pub mod validate;
pub mod version_policy;
pub mod warmup;

pub use spec::{Instance, InstanceKind, ModelSpec, TensorSpec, tensors_max};
pub use states::{ignored_states, states};
pub use supported_gpus::SupportedGpus;
pub use version_policy::VersionPolicy;

/// Why a configuration is refused; the API turns the kind into a status code.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    #[error("{message}")]
    Invalid { message: String },
    #[error("{message}")]
    NotFound { message: String },
    #[error("{message}")]
    Unsupported { message: String },
    #[error("{message}")]
    Internal { message: String },
}

impl Error {
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::Invalid { message: message.into() }
    }

    pub fn internal(message: impl Into<String>) -> Error {
        Error::Internal { message: message.into() }
    }

    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::Unsupported { message: message.into() }
    }

    pub fn not_found(message: impl Into<String>) -> Error {
        Error::NotFound { message: message.into() }
    }
}

/// The descriptor of `inference.ModelConfig`.
pub fn descriptor() -> &'static MessageDescriptor {
    static DESCRIPTOR: OnceLock<MessageDescriptor> = OnceLock::new();
    DESCRIPTOR.get_or_init(|| {
        DescriptorPool::decode(CONFIGURATION)
            .ok()
            .and_then(|pool| pool.get_message_by_name("inference.ModelConfig"))
            .expect("the descriptors were generated with this binary")
    })
}

/// Parses the text of a `config.pbtxt`; `file` is its name in errors.
pub fn parse(file: &str, input: &[u8]) -> Result<text::Document, text::ParseError> {
    text::parse(file, input, descriptor())
}

/// The same with every error of the text.
pub fn parse_all(file: &str, input: &[u8]) -> Result<text::Document, Vec<text::ParseError>> {
    text::parse_all(file, input, descriptor())
}

/// The same message by reflection.
pub fn to_dynamic(config: &ModelConfig) -> Result<DynamicMessage, Error> {
    let mut message = DynamicMessage::new(descriptor().clone());
    message.transcode_from(config).map_err(|error| Error::internal(format!("model configuration: {error}")))?;
    Ok(message)
}

/// The same message as a Rust type. Fails for a message of another type.
pub fn from_dynamic(message: &DynamicMessage) -> Result<ModelConfig, Error> {
    if message.descriptor().full_name() != descriptor().full_name() {
        return Err(Error::internal(format!("{} is not a model configuration", message.descriptor().full_name())));
    }
    message.transcode_to().map_err(|error| Error::internal(format!("model configuration: {error}")))
}
