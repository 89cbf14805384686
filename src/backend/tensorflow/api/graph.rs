//! A graph of operations, and the tensors that it computes.

use std::ffi::{CString, c_void};
use std::ptr::NonNull;

use super::functions::{self, Output};
use super::library::Runtime;
use super::status::{CallStatus, TensorFlowError, created, text_of};
use super::tensor::RANK_MAX;

/// One operation, for those who look for the inputs and outputs of a graph that has no signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// `Placeholder`, `MatMul`, …
    pub operation: String,
}

/// The graph of one session.
pub struct Graph {
    runtime: &'static Runtime,
    at: NonNull<functions::Graph>,
}

impl Graph {
    pub fn new(runtime: &'static Runtime) -> Result<Graph, TensorFlowError> {
        // SAFETY: the function takes nothing and returns a new object or null.
        let at = unsafe { (runtime.functions.TF_NewGraph)() };
        Ok(Graph { runtime, at: created(at)? })
    }

    pub fn as_ptr(&self) -> *mut functions::Graph {
        self.at.as_ptr()
    }

    /// Adds the operations of a serialised `GraphDef`; those that name no device are put on `device`.
    pub fn import(&self, graph_def: &[u8], device: Option<&str>) -> Result<(), TensorFlowError> {
        let functions = &self.runtime.functions;
        let device = device.map(CString::new).transpose();
        let device = device.map_err(|_| TensorFlowError("the name of a device contains a zero byte".to_owned()))?;
        let status = CallStatus::new(self.runtime)?;
        // SAFETY: the bytes are copied into a new buffer.
        let buffer =
            unsafe { (functions.TF_NewBufferFromString)(graph_def.as_ptr().cast::<c_void>(), graph_def.len()) };
        let buffer = created(buffer)?;
        // SAFETY: the function takes nothing and returns a new object or null.
        let options = unsafe { (functions.TF_NewImportGraphDefOptions)() };
        if let Some(options) = NonNull::new(options) {
            if let Some(device) = &device {
                // SAFETY: the options are live and copy the NUL-terminated name.
                unsafe { (functions.TF_ImportGraphDefOptionsSetDefaultDevice)(options.as_ptr(), device.as_ptr()) };
            }
            // SAFETY: graph, buffer, options and status are live; the graph keeps none of the others.
            unsafe {
                (functions.TF_GraphImportGraphDef)(self.as_ptr(), buffer.as_ptr(), options.as_ptr(), status.as_ptr());
            }
            // SAFETY: created by TF_NewImportGraphDefOptions in this call and not used after it.
            unsafe { (functions.TF_DeleteImportGraphDefOptions)(options.as_ptr()) };
        }
        // SAFETY: created by TF_NewBufferFromString in this call; the import copied what it needs.
        unsafe { (functions.TF_DeleteBuffer)(buffer.as_ptr()) };
        created(options)?;
        status.check()
    }

    pub fn operation(&self, name: &str) -> Option<NonNull<functions::Operation>> {
        let name = CString::new(name).ok()?;
        // SAFETY: the graph is live and the name NUL-terminated; the operation lives as long as the graph.
        NonNull::new(unsafe { (self.runtime.functions.TF_GraphOperationByName)(self.as_ptr(), name.as_ptr()) })
    }

    /// The output that a tensor's name means: `<operation>:<index>`, or `<operation>` for the first.
    pub fn output(&self, name: &str) -> Option<Output> {
        let indexed = name.rsplit_once(':').and_then(|(operation, index)| Some((operation, index.parse().ok()?)));
        let (operation, index) = indexed.unwrap_or((name, 0));
        let operation = self.operation(operation)?;
        // SAFETY: the operation belongs to this live graph.
        let count = unsafe { (self.runtime.functions.TF_OperationNumOutputs)(operation.as_ptr()) };
        (0..count).contains(&index).then_some(Output { operation: operation.as_ptr(), index })
    }

    /// The number of an output's element type.
    pub fn element_type(&self, output: Output) -> i32 {
        // SAFETY: outputs are made by `output` of this graph, so that the index was checked.
        unsafe { (self.runtime.functions.TF_OperationOutputType)(output) }
    }

    /// The dimensions of an output as far as they are known, -1 for an open one; `None`: not even their number.
    pub fn dims(&self, output: Output) -> Result<Option<Vec<i64>>, TensorFlowError> {
        let functions = &self.runtime.functions;
        let status = CallStatus::new(self.runtime)?;
        // SAFETY: graph and status are live, and the output is one of this graph.
        let rank = unsafe { (functions.TF_GraphGetTensorNumDims)(self.as_ptr(), output, status.as_ptr()) };
        status.check()?;
        let Some(len) = usize::try_from(rank).ok() else { return Ok(None) };
        if len > RANK_MAX {
            return Err(TensorFlowError(format!("a tensor of the graph has {len} dimensions")));
        }
        let mut dims = vec![-1; len];
        // SAFETY: graph and status are live; the place holds as many dimensions as the library said it writes.
        unsafe {
            (functions.TF_GraphGetTensorShape)(self.as_ptr(), output, dims.as_mut_ptr(), rank, status.as_ptr());
        }
        status.check()?;
        Ok(Some(dims))
    }

    /// All operations, in the order of the graph.
    pub fn nodes(&self) -> Vec<Node> {
        let functions = &self.runtime.functions;
        let mut position = 0;
        let mut nodes = Vec::new();
        loop {
            // SAFETY: the graph is live; the position is the library's own, starting at 0.
            let operation = unsafe { (functions.TF_GraphNextOperation)(self.as_ptr(), &mut position) };
            let Some(operation) = NonNull::new(operation) else { return nodes };
            // SAFETY: the operation lives as long as the graph, and so do its NUL-terminated names.
            let (name, kind) = unsafe {
                let at = operation.as_ptr();
                (text_of((functions.TF_OperationName)(at)), text_of((functions.TF_OperationOpType)(at)))
            };
            nodes.push(Node { name, operation: kind });
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created by TF_NewGraph in `new` and deleted once; the library keeps it for sessions that use it.
        unsafe { (self.runtime.functions.TF_DeleteGraph)(self.at.as_ptr()) }
    }
}
