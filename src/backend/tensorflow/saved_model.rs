//! What a SavedModel says of itself: its graphs by their tags, and the inputs and outputs of its signatures.

use std::path::Path;

use prost::Message;

use super::messages::{MetaGraphDef, SavedModel, SignatureDef, TensorInfo};
use nereid_request::Status;

/// The tag and the signature of models that are meant to be served.
const DEFAULT_TAG: &str = "serve";
const DEFAULT_SIGNATURE: &str = "serving_default";
/// Signatures that are no functions of the model.
const HIDDEN_SIGNATURES: [&str; 2] = ["__saved_model_init_op", "__saved_model_train_op"];
/// The size limit of a protocol buffer: the library does not read a larger file.
const FILE_BYTES_MAX: u64 = 1 << 31;

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTensor {
    /// The name that configurations use.
    pub name: String,
    /// The name in the graph, `<operation>:<index>`; empty for a tensor that is not dense.
    pub tensor: String,
    /// The number of the element type.
    pub element_type: i32,
    /// The whole shape, -1 for open dimensions; `None`: not even their number is known.
    pub dims: Option<Vec<i64>>,
}

impl ModelTensor {
    /// The shape as it counts for batching and for checks: of a tensor of rank 0 or of unknown rank there is none.
    pub fn ranked(&self) -> Option<&[i64]> {
        self.dims.as_deref().filter(|dims| !dims.is_empty())
    }
}

/// The inputs and outputs of one function of the model, by their names in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signature {
    pub inputs: Vec<ModelTensor>,
    pub outputs: Vec<ModelTensor>,
}

/// All tags of the graph that is meant by `TF_GRAPH_TAG`, or without one of the graph for serving, or of the only one.
/// The library finds a graph only by all of its tags.
pub fn tags(directory: &Path, wanted: Option<&str>) -> Vec<String> {
    let tag = wanted.unwrap_or(DEFAULT_TAG);
    // Of a file that is not read here, or is broken, the library says what is wrong with it.
    let graphs = read(directory).unwrap_or_default().meta_graphs;
    let tags_of = |graph: &MetaGraphDef| graph.meta_info.as_ref().map(|info| info.tags.clone()).unwrap_or_default();
    let all: Vec<Vec<String>> = graphs.iter().map(tags_of).collect();
    let exact = || all.iter().find(|tags| tags.as_slice() == [tag]);
    let with_others = || all.iter().find(|tags| tags.iter().any(|known| known == tag));
    let only = || if let ([only], None) = (all.as_slice(), wanted) { Some(only) } else { None };
    exact().or_else(with_others).or_else(only).cloned().unwrap_or_else(|| vec![tag.to_owned()])
}

fn read(directory: &Path) -> Option<SavedModel> {
    let file = directory.join("saved_model.pb");
    let is_readable = file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() < FILE_BYTES_MAX);
    let bytes = if is_readable { std::fs::read(file).ok()? } else { return None };
    SavedModel::decode(&bytes[..]).ok()
}

/// Whether values of variables were saved with the graph. The library loads a model without them, and every request
/// that needs one fails.
pub fn has_saved_variables(meta_graph: &[u8]) -> bool {
    let saver = MetaGraphDef::decode(meta_graph).ok().and_then(|graph| graph.saver);
    saver.is_some_and(|saver| !saver.restore_operation.is_empty())
}

/// The signature that is meant by `TF_SIGNATURE_DEF`, or without one the one for serving, or the only one.
pub fn signature(model: &str, meta_graph: &[u8], wanted: Option<&str>) -> Result<Signature, Status> {
    let graph = MetaGraphDef::decode(meta_graph);
    let graph =
        graph.map_err(|error| Status::internal(format!("the signatures of model '{model}' are broken: {error}")))?;
    let named = || graph.signatures.iter().filter(|(name, _)| !HIDDEN_SIGNATURES.contains(&name.as_str()));
    let name = wanted.unwrap_or(DEFAULT_SIGNATURE);
    let found = named().find(|(known, _)| known.as_str() == name);
    let only = || {
        let mut all = named();
        all.next().filter(|_| wanted.is_none() && all.next().is_none())
    };
    let (chosen, signature) = found.or_else(only).ok_or_else(|| {
        let known: Vec<String> = named().map(|(name, _)| format!("'{name}'")).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Status::internal(format!(
            "unable to load model '{model}', expected '{name}' signature; the model has: {known}. Name one with the \
             parameter TF_SIGNATURE_DEF"
        ))
    })?;
    if chosen != name {
        tracing::warn!(
            "unable to find default serving signature '{name}', using signature '{chosen}' of model '{model}'"
        );
    }
    Ok(described(signature))
}

fn described(signature: &SignatureDef) -> Signature {
    let tensor = |(name, info): (&String, &TensorInfo)| {
        let dims = info.shape.as_ref().filter(|shape| !shape.is_rank_unknown);
        let dims = dims.map(|shape| shape.dims.iter().map(|dim| dim.size.max(-1)).collect());
        ModelTensor { name: name.clone(), tensor: info.name.clone(), element_type: info.dtype, dims }
    };
    Signature {
        inputs: signature.inputs.iter().map(tensor).collect(),
        outputs: signature.outputs.iter().map(tensor).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::folder;
    use nereid_backend::scratch::Scratch;

    fn meta_graph(file: &str, at: usize) -> Vec<u8> {
        let model = read(&folder().join(format!("{file}.savedmodel"))).unwrap();
        model.meta_graphs[at].encode_to_vec()
    }

    #[test]
    fn a_graph_is_chosen_by_its_tags() {
        let chosen = |file: &str, wanted| tags(&folder().join(format!("{file}.savedmodel")), wanted);
        assert_eq!(chosen("signatures", None), ["serve"]);
        assert_eq!(chosen("signatures", Some("half")), ["half"]);
        assert_eq!(chosen("signatures", Some("none")), ["none"], "the library reports it");
        assert_eq!(chosen("only", None), ["mine", "cpu"], "the only one there is");
        assert_eq!(chosen("only", Some("cpu")), ["mine", "cpu"]);
        assert_eq!(chosen("only", Some("serve")), ["serve"]);
        assert_eq!(chosen("absent", None), ["serve"]);
        let scratch = Scratch::new("saved-model-broken");
        scratch.write("saved_model.pb", &[0xff; 64]);
        assert_eq!(tags(&scratch.path(""), Some("x")), ["x"]);
    }

    #[test]
    fn a_signature_is_chosen_by_its_name() {
        let signature_of = |file, at, wanted| signature("m", &meta_graph(file, at), wanted);
        let default = signature_of("add_sub", 0, None).unwrap();
        let names: Vec<&str> = default.inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!(names, ["INPUT0", "INPUT1"]);
        assert_eq!(default.outputs[0].dims, Some(vec![-1, 4]));
        assert!(default.inputs[0].tensor.contains(':'), "{}", default.inputs[0].tensor);
        let triple = signature_of("signatures", 0, Some("triple")).unwrap();
        assert_eq!((triple.outputs[0].name.as_str(), triple.outputs[0].tensor.as_str()), ("RESULT", "triple:0"));
        assert_eq!(signature_of("only", 0, None).unwrap().inputs.len(), 1, "the only one there is");
        let error = signature_of("signatures", 0, None).unwrap_err();
        assert_eq!(
            error.message,
            "unable to load model 'm', expected 'serving_default' signature; the model has: 'double', 'triple'. Name \
             one with the parameter TF_SIGNATURE_DEF"
        );
        let error = signature_of("add_sub", 0, Some("other")).unwrap_err();
        assert!(
            error.message.starts_with("unable to load model 'm', expected 'other' signature; the model has: 'serving")
        );
        assert!(signature("m", &[0xff; 9], None).is_err());
    }

    #[test]
    fn unknown_ranks_and_scalars_are_told_apart() {
        let scalar = signature("m", &meta_graph("scalar", 0), None).unwrap();
        let dims = |name: &str| scalar.inputs.iter().find(|input| input.name == name).unwrap().dims.clone();
        assert_eq!((dims("VALUE"), dims("FACTOR")), (Some(vec![]), None));
        assert!(scalar.inputs.iter().all(|input| input.ranked().is_none()));
    }
}
