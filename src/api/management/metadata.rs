//! Metadata of the server and of models, in both protocols.

use std::sync::Arc;

use crate::api::facts::{EXTENSIONS, SERVER_VERSION};
use crate::repository::ModelMap;
use nereid_memory::{Gather, Pool};
use nereid_protocol::json::{GatherSink, Writer};
use nereid_request::{Shape, Status};
use nereid_scheduler::ServedModel;
use nereid_wire::inference::model_metadata_response::TensorMetadata;
use nereid_wire::inference::{ModelMetadataResponse, ServerMetadataResponse};

/// A tensor as metadata shows it: the configured dims, behind -1 where the model batches.
struct TensorFacts<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: Shape,
}

fn facts<'a>(name: &'a str, datatype: &'static str, dims: &[i64], batching: bool) -> TensorFacts<'a> {
    let shape = batching.then_some(-1).into_iter().chain(dims.iter().copied()).collect();
    TensorFacts { name, datatype, shape }
}

/// A model as metadata shows it.
pub struct ModelFacts {
    model: Arc<ServedModel>,
    versions: Vec<String>,
}

impl ModelFacts {
    /// Of one version, or of all that are ready.
    pub fn of(models: &ModelMap, name: &[u8], version: Option<i64>) -> Result<ModelFacts, Status> {
        let model = Arc::clone(models.lookup(name, version)?);
        let versions = match version {
            None => models.ready_versions(&model.name).map(|version| version.to_string()).collect(),
            Some(version) => vec![version.to_string()],
        };
        Ok(ModelFacts { model, versions })
    }

    fn tensors(&self) -> (Vec<TensorFacts<'_>>, Vec<TensorFacts<'_>>) {
        let spec = &self.model.spec;
        let batching = spec.max_batch_size > 0;
        let inputs = spec.inputs.iter().map(|input| facts(&input.name, input.datatype, &input.dims, batching));
        let outputs = spec.outputs.iter().map(|output| facts(&output.name, output.datatype, &output.dims, batching));
        (inputs.collect(), outputs.collect())
    }

    fn platform(&self) -> &str {
        self.model.spec.metadata_platform()
    }

    pub fn to_json(&self, pool: &Pool) -> Gather {
        let mut body = Gather::new();
        let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
        let (inputs, outputs) = self.tensors();
        writer.begin_object();
        writer.key("name");
        writer.string(&self.model.name);
        writer.key("versions");
        writer.begin_array();
        self.versions.iter().for_each(|version| writer.string(version));
        writer.end_array();
        writer.key("platform");
        writer.string(self.platform());
        for (key, tensors) in [("inputs", inputs), ("outputs", outputs)] {
            writer.key(key);
            writer.begin_array();
            for tensor in tensors {
                writer.begin_object();
                writer.key("name");
                writer.string(tensor.name);
                writer.key("datatype");
                writer.string(tensor.datatype);
                writer.key("shape");
                writer.begin_array();
                tensor.shape.iter().for_each(|&dim| writer.int(dim));
                writer.end_array();
                writer.end_object();
            }
            writer.end_array();
        }
        writer.end_object();
        body
    }

    pub fn to_message(&self) -> ModelMetadataResponse {
        let (inputs, outputs) = self.tensors();
        let wire = |tensors: Vec<TensorFacts<'_>>| {
            let wired = tensors.into_iter().map(|tensor| TensorMetadata {
                name: tensor.name.to_owned(),
                datatype: tensor.datatype.to_owned(),
                shape: tensor.shape.to_vec(),
            });
            wired.collect()
        };
        ModelMetadataResponse {
            name: self.model.name.clone(),
            versions: self.versions.clone(),
            platform: self.platform().to_owned(),
            inputs: wire(inputs),
            outputs: wire(outputs),
        }
    }
}

/// The answer to `/v2`.
pub fn server_json(id: &str, pool: &Pool) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key("name");
    writer.string(id);
    writer.key("version");
    writer.string(SERVER_VERSION);
    writer.key("extensions");
    writer.begin_array();
    EXTENSIONS.iter().for_each(|extension| writer.string(extension));
    writer.end_array();
    writer.end_object();
    body
}

/// The answer to the RPC ServerMetadata.
pub fn server_message(id: &str) -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: id.to_owned(),
        version: SERVER_VERSION.to_owned(),
        extensions: EXTENSIONS.map(str::to_owned).to_vec(),
    }
}
