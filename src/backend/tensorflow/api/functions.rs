//! The functions of the C interface that are used, under their own names (tensorflow/c/c_api.h, tf_tensor.h,
//! tf_tstring.h, tf_status.h, tf_buffer.h).
//!
//! They are spread over two libraries: sessions and graphs in `libtensorflow_cc.so`, tensors, strings, statuses and
//! buffers in `libtensorflow_framework.so`. A symbol is searched in the one that is given first and in those it needs.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

macro_rules! opaque {
    ($($name:ident),*) => { $(
        #[repr(C)]
        pub struct $name([u8; 0]);
    )* };
}

opaque!(Status, Graph, Operation, Session, SessionOptions, ImportGraphDefOptions, Tensor, LibraryHandle);

/// `TF_Buffer`.
#[repr(C)]
pub struct Buffer {
    pub data: *const c_void,
    pub length: usize,
    pub deallocate: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

/// `TF_Output`: an output of an operation. As an input of a run it names the tensor that is fed.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    pub operation: *mut Operation,
    pub index: c_int,
}

/// `TF_TString`: one element of a string tensor, which only the library's functions interpret.
#[repr(C, align(8))]
pub struct StringElement([u8; 24]);

pub type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// All of them, or the name of the first one that is missing.
            pub fn resolve(library: &Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        // SAFETY: a symbol of this name has this type in every library that is TensorFlow: its C
                        // interface does not change incompatibly.
                        let found = unsafe { library.get::<Function>(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}

functions! {
    TF_Version: fn() -> *const c_char;
    TF_NewStatus: fn() -> *mut Status;
    TF_DeleteStatus: fn(*mut Status);
    TF_GetCode: fn(*const Status) -> c_int;
    TF_Message: fn(*const Status) -> *const c_char;
    TF_NewBuffer: fn() -> *mut Buffer;
    TF_NewBufferFromString: fn(*const c_void, usize) -> *mut Buffer;
    TF_DeleteBuffer: fn(*mut Buffer);
    TF_NewSessionOptions: fn() -> *mut SessionOptions;
    TF_DeleteSessionOptions: fn(*mut SessionOptions);
    TF_SetConfig: fn(*mut SessionOptions, *const c_void, usize, *mut Status);
    TF_NewGraph: fn() -> *mut Graph;
    TF_DeleteGraph: fn(*mut Graph);
    TF_NewImportGraphDefOptions: fn() -> *mut ImportGraphDefOptions;
    TF_DeleteImportGraphDefOptions: fn(*mut ImportGraphDefOptions);
    TF_ImportGraphDefOptionsSetDefaultDevice: fn(*mut ImportGraphDefOptions, *const c_char);
    TF_GraphImportGraphDef: fn(*mut Graph, *const Buffer, *const ImportGraphDefOptions, *mut Status);
    TF_GraphOperationByName: fn(*mut Graph, *const c_char) -> *mut Operation;
    TF_GraphNextOperation: fn(*mut Graph, *mut usize) -> *mut Operation;
    TF_GraphGetTensorNumDims: fn(*mut Graph, Output, *mut Status) -> c_int;
    TF_GraphGetTensorShape: fn(*mut Graph, Output, *mut i64, c_int, *mut Status);
    TF_OperationName: fn(*mut Operation) -> *const c_char;
    TF_OperationOpType: fn(*mut Operation) -> *const c_char;
    TF_OperationNumOutputs: fn(*mut Operation) -> c_int;
    TF_OperationOutputType: fn(Output) -> c_int;
    TF_NewSession: fn(*mut Graph, *const SessionOptions, *mut Status) -> *mut Session;
    TF_LoadSessionFromSavedModel: fn(
        *const SessionOptions, *const Buffer, *const c_char, *const *const c_char, c_int, *mut Graph, *mut Buffer,
        *mut Status
    ) -> *mut Session;
    TF_CloseSession: fn(*mut Session, *mut Status);
    TF_DeleteSession: fn(*mut Session, *mut Status);
    TF_SessionRun: fn(
        *mut Session, *const Buffer, *const Output, *const *mut Tensor, c_int, *const Output, *mut *mut Tensor, c_int,
        *const *const Operation, c_int, *mut Buffer, *mut Status
    );
    TF_LoadLibrary: fn(*const c_char, *mut Status) -> *mut LibraryHandle;
    TF_NewTensor: fn(c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void) -> *mut Tensor;
    TF_DeleteTensor: fn(*mut Tensor);
    TF_TensorType: fn(*const Tensor) -> c_int;
    TF_NumDims: fn(*const Tensor) -> c_int;
    TF_Dim: fn(*const Tensor, c_int) -> i64;
    TF_TensorByteSize: fn(*const Tensor) -> usize;
    TF_TensorData: fn(*const Tensor) -> *mut c_void;
    TF_StringInit: fn(*mut StringElement);
    TF_StringCopy: fn(*mut StringElement, *const c_char, usize);
    TF_StringGetDataPointer: fn(*const StringElement) -> *const c_char;
    TF_StringGetSize: fn(*const StringElement) -> usize;
    TF_StringDealloc: fn(*mut StringElement);
    TF_SessionListDevices: fn(*mut Session, *mut Status) -> *mut DeviceList;
    TF_DeleteDeviceList: fn(*mut DeviceList);
    TF_DeviceListCount: fn(*const DeviceList) -> c_int;
    TF_DeviceListName: fn(*const DeviceList, c_int, *mut Status) -> *const c_char;
}

opaque!(DeviceList);
