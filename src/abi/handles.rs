//! What the opaque pointers of the backend interface point to.
//!
//! Requests and inputs are the server's own values. Backend, model and instance carry what C asks for by pointer:
//! names as C strings, the user's state pointer.

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use crate::abi::ledger;
use crate::backend::{Attributes, InstanceContext, ModelContext};
use crate::memory::Target;
use crate::observe::statistics::Holder;
use crate::request::{OutputTensor, Response, ResponseFactory, Text};
use crate::wire::inference::ModelConfig;

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
    /// JSON of `--backend-config`.
    pub config: String,
    /// Directory that the library was found in.
    pub directory: CString,
    pub execution_policy: AtomicU32,
    pub state: UserState,
}

/// `TRITONBACKEND_BackendAttribute`: open while the plug-in describes itself.
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
    /// What the plug-in made of the configuration while it may change it.
    pub completed: Mutex<Option<ModelConfig>>,
    /// The configuration is fixed.
    pub is_sealed: AtomicBool,
    /// The final configuration as JSON, once it is known.
    pub config: Mutex<ModelConfig>,
}

/// `TRITONBACKEND_ModelInstance`.
pub struct InstanceHandle {
    pub name: CString,
    pub context: InstanceContext,
    pub model: Arc<ModelHandle>,
    pub state: UserState,
}

impl InstanceHandle {
    /// As who it reports its memory: handles that live at the same time lie at different places.
    pub fn holder(&self) -> Holder {
        Holder::Instance(std::ptr::from_ref(self).addr())
    }
}

/// Exposed handles: what C must not use any more when they are gone.
macro_rules! reclaimed {
    ($($handle:ty),*) => {$(
        impl Drop for $handle {
            fn drop(&mut self) {
                ledger::reclaim(self);
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
}

/// `TRITONBACKEND_ResponseFactory`: outlives its request.
pub struct FactoryHandle {
    pub responses: ResponseFactory,
    /// Of the request.
    pub id: Text,
    /// False for requests that enter no statistics.
    pub is_counted: bool,
}

/// `TRITONBACKEND_Output`.
pub struct OutputHandle {
    pub tensor: OutputTensor,
    pub buffer: Option<Target>,
    pub has_buffer: bool,
    /// Where a buffer comes from; the response it belongs to outlives it.
    pub response: *const ResponseHandle,
}
