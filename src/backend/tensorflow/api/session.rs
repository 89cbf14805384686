//! A session: a graph with its variables, which runs.

use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use smallvec::SmallVec;

use super::functions::{self, Output};
use super::graph::{Graph, Node};
use super::library::Runtime;
use super::status::{CallStatus, TensorFlowError, created, text_of};
use super::tensor::Tensor;
use crate::own_threads::OwnThreads;

/// A tensor of a session's graph that is fed or fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    output: Output,
    /// The graph that it belongs to.
    graph: *mut functions::Graph,
}

// SAFETY: the pointers are only compared, or passed to the library together with the graph that owns the operation.
unsafe impl Send for Port {}
// SAFETY: a port has no state that could change.
unsafe impl Sync for Port {}

/// One session and its graph. Any number of threads may run it at a time.
pub struct Session {
    runtime: &'static Runtime,
    at: NonNull<functions::Session>,
    graph: Graph,
    /// Given back when the library has ended them.
    _own_threads: Option<OwnThreads>,
}

// SAFETY: sessions and graphs are not tied to a thread; both are locked inside the library (c_api.h).
unsafe impl Send for Session {}
// SAFETY: runs and queries of one session may be called by several threads at a time (c_api.h).
unsafe impl Sync for Session {}

impl Session {
    /// Loads the graph of a SavedModel that has exactly these tags, and its variables. Returns its serialised
    /// `MetaGraphDef` too. `config` is a serialised `ConfigProto`.
    pub fn from_saved_model(
        runtime: &'static Runtime,
        config: &[u8],
        directory: &Path,
        tags: &[String],
        own_threads: Option<OwnThreads>,
    ) -> Result<(Session, Vec<u8>), TensorFlowError> {
        let functions = &runtime.functions;
        let zero = |_| TensorFlowError("a tag or the path of the model contains a zero byte".to_owned());
        let directory = CString::new(directory.as_os_str().as_bytes()).map_err(zero)?;
        let tags: Vec<CString> =
            tags.iter().map(|tag| CString::new(tag.as_str()).map_err(zero)).collect::<Result<_, _>>()?;
        let tags: Vec<_> = tags.iter().map(|tag| tag.as_ptr()).collect();
        let options = Options::new(runtime, config)?;
        let graph = Graph::new(runtime)?;
        let status = CallStatus::new(runtime)?;
        // SAFETY: the function takes nothing and returns a new, empty buffer or null.
        let described = created(unsafe { (functions.TF_NewBuffer)() })?;
        // SAFETY: all objects are live and the texts NUL-terminated; the library fills the buffer and keeps the graph.
        let session = unsafe {
            (functions.TF_LoadSessionFromSavedModel)(
                options.at.as_ptr(),
                ptr::null(),
                directory.as_ptr(),
                tags.as_ptr(),
                count_of(tags.len())?,
                graph.as_ptr(),
                described.as_ptr(),
                status.as_ptr(),
            )
        };
        // SAFETY: the buffer is live and has `length` bytes at `data`, unless that is null.
        let meta_graph = unsafe { copy_of(described.as_ref()) };
        // SAFETY: created by TF_NewBuffer in this call; its content was copied.
        unsafe { (functions.TF_DeleteBuffer)(described.as_ptr()) };
        status.check()?;
        Ok((Session { runtime, at: created(session)?, graph, _own_threads: own_threads }, meta_graph))
    }

    /// A session of a graph without variables' values. `device` is where operations without one are put.
    pub fn from_graph_def(
        runtime: &'static Runtime,
        config: &[u8],
        graph_def: &[u8],
        device: Option<&str>,
        own_threads: Option<OwnThreads>,
    ) -> Result<Session, TensorFlowError> {
        let options = Options::new(runtime, config)?;
        let graph = Graph::new(runtime)?;
        graph.import(graph_def, device)?;
        let status = CallStatus::new(runtime)?;
        // SAFETY: graph, options and status are live; the session refers to the graph, which `Session` keeps.
        let session =
            unsafe { (runtime.functions.TF_NewSession)(graph.as_ptr(), options.at.as_ptr(), status.as_ptr()) };
        status.check()?;
        Ok(Session { runtime, at: created(session)?, graph, _own_threads: own_threads })
    }

    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// The tensor of this name, `<operation>:<index>`.
    pub fn port(&self, name: &str) -> Option<Port> {
        self.graph.output(name).map(|output| Port { output, graph: self.graph.as_ptr() })
    }

    pub fn nodes(&self) -> Vec<Node> {
        self.graph.nodes()
    }

    /// The number of the tensor's element type.
    pub fn element_type(&self, port: Port) -> Result<i32, TensorFlowError> {
        Ok(self.graph.element_type(self.own(port)?))
    }

    /// See [`Graph::dims`].
    pub fn dims(&self, port: Port) -> Result<Option<Vec<i64>>, TensorFlowError> {
        self.graph.dims(self.own(port)?)
    }

    /// Whether one of the session's devices has this ending: `GPU:0`.
    pub fn has_device(&self, ending: &str) -> Result<bool, TensorFlowError> {
        let functions = &self.runtime.functions;
        let status = CallStatus::new(self.runtime)?;
        // SAFETY: session and status are live; a new list is returned, or null with an error.
        let list = unsafe { (functions.TF_SessionListDevices)(self.at.as_ptr(), status.as_ptr()) };
        status.check()?;
        let list = created(list)?;
        // SAFETY: the list is live until it is deleted in this call; names belong to it and end with a NUL.
        let found = unsafe {
            let count = (functions.TF_DeviceListCount)(list.as_ptr());
            let name = |index| text_of((functions.TF_DeviceListName)(list.as_ptr(), index, status.as_ptr()));
            let found = (0..count).any(|index| name(index).ends_with(ending));
            (functions.TF_DeleteDeviceList)(list.as_ptr());
            found
        };
        Ok(found)
    }

    /// Feeds tensors, computes `fetches` and returns them in their order. `options` are serialised `RunOptions`.
    pub fn run(
        &self,
        options: &[u8],
        feeds: &[(Port, Tensor)],
        fetches: &[Port],
    ) -> Result<Vec<Tensor>, TensorFlowError> {
        self.call(options, feeds, fetches, &[])
    }

    /// Runs operations without inputs for their effects. `None`: the graph has no operation of that name.
    pub fn run_operations(&self, names: &[String]) -> Result<(), TensorFlowError> {
        let found = |name: &String| {
            let operation = self.graph.operation(name).map(|operation| operation.as_ptr().cast_const());
            operation.ok_or_else(|| TensorFlowError(format!("the graph has no operation '{name}'")))
        };
        let targets: Vec<_> = names.iter().map(found).collect::<Result<_, _>>()?;
        if targets.is_empty() {
            return Ok(());
        }
        self.call(&[], &[], &[], &targets).map(|_| ())
    }

    fn call(
        &self,
        options: &[u8],
        feeds: &[(Port, Tensor)],
        fetches: &[Port],
        targets: &[*const functions::Operation],
    ) -> Result<Vec<Tensor>, TensorFlowError> {
        let fed: SmallVec<[Output; 8]> = feeds.iter().map(|(port, _)| self.own(*port)).collect::<Result<_, _>>()?;
        let values: SmallVec<[*mut functions::Tensor; 8]> = feeds.iter().map(|(_, tensor)| tensor.as_ptr()).collect();
        let fetched: SmallVec<[Output; 8]> = fetches.iter().map(|port| self.own(*port)).collect::<Result<_, _>>()?;
        let mut results: SmallVec<[*mut functions::Tensor; 8]> = SmallVec::from_elem(ptr::null_mut(), fetched.len());
        let status = CallStatus::new(self.runtime)?;
        let options = functions::Buffer { data: options.as_ptr().cast(), length: options.len(), deallocate: None };
        // SAFETY: the session is live; the options live during the call, which parses them; every array has the given
        // length; operations belong to the session's graph, as `own` and `operation` ensure; fed tensors are shared
        // with the library, which counts its own references.
        unsafe {
            (self.runtime.functions.TF_SessionRun)(
                self.at.as_ptr(),
                &raw const options,
                fed.as_ptr(),
                values.as_ptr(),
                count_of(fed.len())?,
                fetched.as_ptr(),
                results.as_mut_ptr(),
                count_of(fetched.len())?,
                targets.as_ptr(),
                count_of(targets.len())?,
                ptr::null_mut(),
                status.as_ptr(),
            );
        }
        // SAFETY: what the library wrote are new tensors, which have no other owner.
        let results =
            results.into_iter().map(|at| NonNull::new(at).map(|at| unsafe { Tensor::owned(self.runtime, at) }));
        let results: Option<Vec<Tensor>> = results.collect();
        status.check()?;
        results.ok_or_else(|| TensorFlowError("TensorFlow did not return a tensor that was fetched".to_owned()))
    }

    fn own(&self, port: Port) -> Result<Output, TensorFlowError> {
        match port.graph == self.graph.as_ptr() {
            true => Ok(port.output),
            false => Err(TensorFlowError("a tensor of another session was used".to_owned())),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Ok(status) = CallStatus::new(self.runtime) {
            // SAFETY: the session is live and nothing runs it any more, because this is its only owner.
            unsafe { (self.runtime.functions.TF_CloseSession)(self.at.as_ptr(), status.as_ptr()) };
            // SAFETY: closed above and not used again; its memory is released even if the status has an error.
            unsafe { (self.runtime.functions.TF_DeleteSession)(self.at.as_ptr(), status.as_ptr()) };
        }
    }
}

/// Options of a session that is being made.
struct Options {
    runtime: &'static Runtime,
    at: NonNull<functions::SessionOptions>,
}

impl Options {
    fn new(runtime: &'static Runtime, config: &[u8]) -> Result<Options, TensorFlowError> {
        // SAFETY: the function takes nothing and returns a new object or null.
        let options = Options { runtime, at: created(unsafe { (runtime.functions.TF_NewSessionOptions)() })? };
        let status = CallStatus::new(runtime)?;
        let (at, len) = (config.as_ptr().cast::<c_void>(), config.len());
        // SAFETY: options and status are live; the library parses a copy of the bytes.
        unsafe { (runtime.functions.TF_SetConfig)(options.at.as_ptr(), at, len, status.as_ptr()) };
        status.check()?;
        Ok(options)
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: created by TF_NewSessionOptions in `new` and deleted once; sessions copy what they need.
        unsafe { (self.runtime.functions.TF_DeleteSessionOptions)(self.at.as_ptr()) }
    }
}

fn count_of(len: usize) -> Result<c_int, TensorFlowError> {
    c_int::try_from(len).map_err(|_| TensorFlowError(format!("{len} tensors are too many for one call")))
}

/// # Safety
/// `data` is null or has `length` readable bytes.
unsafe fn copy_of(buffer: &functions::Buffer) -> Vec<u8> {
    if buffer.data.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, so the caller promises these bytes.
    unsafe { std::slice::from_raw_parts(buffer.data.cast::<u8>(), buffer.length) }.to_vec()
}
