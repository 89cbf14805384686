//! What the opaque pointers of the backend interface point to.
//!
//! Requests and inputs are the server's own values. The handles of backends, models and instances hold what C reads by
//! pointer: names as C strings, the user's state pointer.

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use super::server::{BufferAttributes, Message};
use crate::abi::backend::memory_manager::MemoryManager;
use crate::abi::handle_registry;
use nereid_backend::{Attributes, InstanceContext, ModelContext};
use nereid_gpu::driver::DeviceAddress;
use nereid_gpu::{DeviceBuffer, DeviceTarget, Gpu, Gpus};
use nereid_memory::{Pool, Target};
use nereid_observe::statistics::Holder;
use nereid_request::{Call, MemoryType, OutputShapes, OutputTensor, Request, Response, ResponseFactory, Text};
use nereid_wire::inference::ModelConfig;

/// A pointer that a plug-in stores with one of our objects and gets back.
#[derive(Debug, Default)]
pub struct UserState(AtomicPtr<c_void>);

impl UserState {
    pub fn get(&self) -> *mut c_void {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }

    pub fn set(&self, state: *mut c_void) {
        self.0.store(state, std::sync::atomic::Ordering::Release);
    }
}

pub fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

/// `TRITONBACKEND_Backend`.
#[derive(Debug)]
pub struct BackendHandle {
    pub name: CString,
    /// JSON of `--backend-config`. Plug-ins read it and must not delete it.
    pub config: Message,
    /// Directory that the library was found in.
    pub directory: CString,
    pub execution_policy: AtomicU32,
    pub state: UserState,
    /// `TRITONBACKEND_MemoryManager`.
    pub memory: MemoryManager,
}

impl BackendHandle {
    /// `config` is JSON; the plug-in's allocations come from `pool`, or from the pools of `gpus`.
    pub fn new(name: &str, config: &str, directory: &str, (pool, gpus): (Pool, Arc<Gpus>)) -> BackendHandle {
        BackendHandle {
            name: c_string(name),
            config: Message::lent(config),
            directory: c_string(directory),
            execution_policy: AtomicU32::new(0),
            state: UserState::default(),
            memory: MemoryManager::new(pool, gpus),
        }
    }
}

/// `TRITONBACKEND_BackendAttribute`: writable while the plug-in describes itself.
#[derive(Debug, Default)]
pub struct AttributeHandle {
    pub attributes: Attributes,
}

/// `TRITONBACKEND_Model`.
pub struct ModelHandle {
    pub name: CString,
    pub directory: CString,
    pub context: Arc<ModelContext>,
    pub backend: Arc<BackendHandle>,
    pub state: UserState,
    /// The configuration that the plug-in completed, while it may change it.
    pub completed: Mutex<Option<ModelConfig>>,
    /// Whether the configuration is final.
    pub is_sealed: AtomicBool,
    /// The configuration as JSON, final once it is sealed.
    pub config: Mutex<ModelConfig>,
}

impl ModelHandle {
    /// A model that the plug-in may still complete.
    pub fn new(context: Arc<ModelContext>, backend: Arc<BackendHandle>) -> ModelHandle {
        ModelHandle {
            name: c_string(&context.name),
            directory: c_string(&context.directory.to_string_lossy()),
            backend,
            state: UserState::default(),
            completed: Mutex::new(None),
            is_sealed: AtomicBool::new(false),
            config: Mutex::new(context.config.clone()),
            context,
        }
    }
}

/// `TRITONBACKEND_ModelInstance`.
pub struct InstanceHandle {
    pub name: CString,
    pub context: InstanceContext,
    pub model: Arc<ModelHandle>,
    pub state: UserState,
    /// JSON of the host policy. Plug-ins read it and must not delete it.
    pub host_policy: Message,
    /// The profiles of the instance's group.
    pub profiles: Vec<CString>,
}

impl InstanceHandle {
    pub fn new(context: InstanceContext, model: Arc<ModelHandle>) -> InstanceHandle {
        InstanceHandle {
            name: c_string(&context.name),
            model,
            state: UserState::default(),
            host_policy: Message::lent(&context.host_policy.json()),
            profiles: context.group.profile.iter().map(|profile| c_string(profile)).collect(),
            context,
        }
    }

    /// The key under which it reports its memory: handles that live at the same time have different addresses.
    pub fn holder(&self) -> Holder {
        Holder::Instance(std::ptr::from_ref(self).addr())
    }
}

/// Handles that are exposed, not given, to C: dropping one ends its record, so that a later use by C is reported.
macro_rules! reclaimed {
    ($($handle:ty),*) => {$(
        impl Drop for $handle {
            fn drop(&mut self) {
                handle_registry::reclaim(self);
            }
        }
    )*};
}

reclaimed!(BackendHandle, ModelHandle, InstanceHandle);

/// `TRITONBACKEND_Response`: under construction, owned by the plug-in until it is sent.
pub struct ResponseHandle {
    pub factory: ResponseFactory,
    pub response: Response,
    /// Boxed: plug-ins hold pointers to outputs while others are added.
    #[allow(clippy::vec_box)]
    pub outputs: Vec<Box<OutputHandle>>,
    /// The record of the outputs' shapes that is updated when it is sent.
    pub shapes: Option<Arc<OutputShapes>>,
    /// The devices in which outputs may be allocated.
    pub gpus: Option<Arc<Gpus>>,
}

impl ResponseHandle {
    fn new(factory: ResponseFactory, id: Text) -> ResponseHandle {
        let response = factory.begin(id);
        ResponseHandle { factory, response, outputs: Vec::new(), shapes: None, gpus: None }
    }
}

impl From<&Request> for ResponseHandle {
    fn from(request: &Request) -> ResponseHandle {
        let (shapes, gpus) = (request.output_shapes.clone(), request.gpus.clone());
        ResponseHandle { shapes, gpus, ..ResponseHandle::new(request.responses(), request.id.clone()) }
    }
}

impl From<&FactoryHandle> for ResponseHandle {
    fn from(factory: &FactoryHandle) -> ResponseHandle {
        let (shapes, gpus) = (factory.shapes.clone(), factory.gpus.clone());
        ResponseHandle { shapes, gpus, ..ResponseHandle::new(factory.responses.clone(), factory.id.clone()) }
    }
}

/// `TRITONBACKEND_ResponseFactory`: outlives its request.
pub struct FactoryHandle {
    pub responses: ResponseFactory,
    /// The call of an application's request, which can be cancelled after the request has ended.
    pub call: Option<Arc<dyn Call>>,
    /// The id of the request.
    pub id: Text,
    /// False for requests that enter no statistics.
    pub is_counted: bool,
    /// As in [`ResponseHandle`].
    pub shapes: Option<Arc<OutputShapes>>,
    pub gpus: Option<Arc<Gpus>>,
}

impl FactoryHandle {
    pub fn is_cancelled(&self) -> bool {
        self.responses.is_cancelled() || self.call.as_ref().is_some_and(|call| call.is_cancelled())
    }
}

/// What a plug-in writes an output to.
pub enum OutputMemory {
    Host(Target),
    /// Device memory of the server.
    OnDevice(DeviceBuffer),
    /// Device memory that the receiver of the response named.
    At(DeviceTarget),
}

impl OutputMemory {
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        let on_device = |at: DeviceAddress| std::ptr::with_exposed_provenance_mut(at.0 as usize);
        match self {
            OutputMemory::Host(target) => target.as_mut_ptr().cast(),
            OutputMemory::OnDevice(buffer) => on_device(buffer.address()),
            OutputMemory::At(target) => on_device(target.address()),
        }
    }

    pub fn as_ptr(&self) -> *const c_void {
        let on_device = |at: DeviceAddress| std::ptr::with_exposed_provenance(at.0 as usize);
        match self {
            OutputMemory::Host(target) => target.as_ptr().cast(),
            OutputMemory::OnDevice(buffer) => on_device(buffer.address()),
            OutputMemory::At(target) => on_device(target.address()),
        }
    }

    /// Memory type and its id, numbered as in `TRITONSERVER_MemoryType`.
    pub fn place(&self) -> (u32, i64) {
        let on_device = |gpu: &Gpu| (MemoryType::Gpu as u32, i64::from(gpu.id()));
        match self {
            OutputMemory::Host(target) => target.place(),
            OutputMemory::OnDevice(buffer) => on_device(buffer.gpu()),
            OutputMemory::At(target) => on_device(target.gpu()),
        }
    }

    /// Ends the writing: the bytes become those of the tensor.
    ///
    /// # Safety
    /// All writes of a device to it have completed.
    pub unsafe fn freeze_into(self, tensor: &mut OutputTensor) {
        match self {
            OutputMemory::Host(target) => tensor.data.push(target.freeze()),
            // SAFETY: all writes of the device have completed: this function requires it of its caller.
            OutputMemory::OnDevice(buffer) => tensor.on_device = Some(Box::new(unsafe { buffer.into_slice() })),
            OutputMemory::At(target) => tensor.on_device = Some(Box::new(target.freeze())),
        }
    }
}

/// `TRITONBACKEND_Output`.
pub struct OutputHandle {
    pub tensor: OutputTensor,
    pub buffer: Option<OutputMemory>,
    pub has_buffer: bool,
    /// Attributes of the buffer, which the plug-in may query.
    pub attributes: BufferAttributes,
    /// The response that provides the buffer, and outlives this output.
    pub response: *const ResponseHandle,
}
