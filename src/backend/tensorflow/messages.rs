//! The parts of TensorFlow's messages that are read and written here. Fields that are not declared are skipped.
//!
//! Field numbers are those of tensorflow/core/protobuf/{saved_model,meta_graph,saver,config,rewriter_config}.proto and
//! tensorflow/core/framework/{tensor_shape,attr_value}.proto.

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct SavedModel {
    #[prost(message, repeated, tag = "2")]
    pub meta_graphs: Vec<MetaGraphDef>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MetaGraphDef {
    #[prost(message, optional, tag = "1")]
    pub meta_info: Option<MetaInfo>,
    #[prost(message, optional, tag = "3")]
    pub saver: Option<SaverDef>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub signatures: BTreeMap<String, SignatureDef>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MetaInfo {
    #[prost(string, repeated, tag = "4")]
    pub tags: Vec<String>,
}

/// How variables are saved and restored.
#[derive(Clone, PartialEq, Message)]
pub struct SaverDef {
    /// Empty in a model that was saved without variables.
    #[prost(string, tag = "3")]
    pub restore_operation: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SignatureDef {
    #[prost(btree_map = "string, message", tag = "1")]
    pub inputs: BTreeMap<String, TensorInfo>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub outputs: BTreeMap<String, TensorInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorInfo {
    /// Empty for a tensor that is not dense.
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "2")]
    pub dtype: i32,
    #[prost(message, optional, tag = "3")]
    pub shape: Option<TensorShape>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub dims: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub is_rank_unknown: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

/// The options of a run.
#[derive(Clone, PartialEq, Message)]
pub struct RunOptions {
    /// The number of a pool of the session; -1: the calling thread.
    #[prost(int32, tag = "3")]
    pub inter_op_thread_pool: i32,
}

/// The options of a session.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigProto {
    #[prost(btree_map = "string, int32", tag = "1")]
    pub device_count: BTreeMap<String, i32>,
    #[prost(int32, tag = "2")]
    pub intra_op_parallelism_threads: i32,
    #[prost(int32, tag = "5")]
    pub inter_op_parallelism_threads: i32,
    #[prost(message, optional, tag = "6")]
    pub gpu_options: Option<GpuOptions>,
    #[prost(bool, tag = "7")]
    pub allow_soft_placement: bool,
    #[prost(bool, tag = "9")]
    pub use_per_session_threads: bool,
    #[prost(message, optional, tag = "10")]
    pub graph_options: Option<GraphOptions>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GpuOptions {
    #[prost(double, tag = "1")]
    pub per_process_gpu_memory_fraction: f64,
    #[prost(bool, tag = "4")]
    pub allow_growth: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct GraphOptions {
    #[prost(message, optional, tag = "3")]
    pub optimizer_options: Option<OptimizerOptions>,
    #[prost(message, optional, tag = "10")]
    pub rewrite_options: Option<RewriterConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OptimizerOptions {
    /// -1 off, 0 default, 1 and 2 on.
    #[prost(int32, tag = "5")]
    pub global_jit_level: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct RewriterConfig {
    #[prost(int32, tag = "12")]
    pub meta_optimizer_iterations: i32,
    #[prost(int32, tag = "23")]
    pub auto_mixed_precision: i32,
    #[prost(string, repeated, tag = "100")]
    pub optimizers: Vec<String>,
    #[prost(message, repeated, tag = "200")]
    pub custom_optimizers: Vec<CustomGraphOptimizer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CustomGraphOptimizer {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub parameters: BTreeMap<String, AttrValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttrValue {
    #[prost(oneof = "AttrChoice", tags = "2, 3, 5")]
    pub value: Option<AttrChoice>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AttrChoice {
    #[prost(bytes, tag = "2")]
    Text(Vec<u8>),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(bool, tag = "5")]
    Bool(bool),
}
