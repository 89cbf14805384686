//! The functions of OpenVINO's C interface that the backend calls, looked up by name in the opened library.
//!
//! The table is written by hand: generated bindings cover one release and bring functions that older wheels lack,
//! while the backend needs some fifty functions that have not changed since 2023. Those that later releases added are
//! optional here.

use std::ffi::{c_char, c_void};

use libloading::Library;
use nereid_backend::runtime_search::LibraryError;

use super::KIND;

/// `ov_status_e`; 0 is success.
pub type OvStatus = i32;

pub enum OvCore {}
pub enum OvModel {}
pub enum OvPort {}
pub enum OvCompiledModel {}
pub enum OvInferRequest {}
pub enum OvTensor {}
pub enum OvPrePostProcessor {}
pub enum OvInputInfo {}
pub enum OvInputTensorInfo {}
pub enum OvOutputInfo {}
pub enum OvOutputTensorInfo {}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct OvVersion {
    pub build_number: *const c_char,
    pub description: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct OvShape {
    pub rank: i64,
    pub dims: *mut i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct OvDimension {
    pub min: i64,
    /// -1: without a limit.
    pub max: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct OvPartialShape {
    pub rank: OvDimension,
    pub dims: *mut OvDimension,
}

/// `value` is a text.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OvProperty {
    pub key: *const c_char,
    pub value: *const c_void,
}

macro_rules! functions {
    (
        required { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* }
        optional { $($later:ident: fn($($given:ty),*) $(-> $made:ty)?;)* }
    ) => {
        /// The functions under their names in the library.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub $later: Option<unsafe extern "C" fn($($given),*) $(-> $made)?>,)*
            /// Takes key and value, both texts, behind the device.
            pub ov_core_set_property: unsafe extern "C" fn(*const OvCore, *const c_char, ...) -> OvStatus,
            /// Takes as many texts as it is told behind the result, a key and a value in turn.
            pub ov_core_compile_model: unsafe extern "C" fn(
                *const OvCore, *const OvModel, *const c_char, usize, *mut *mut OvCompiledModel, ...
            ) -> OvStatus,
        }

        impl Functions {
            pub fn of(library: &Library) -> Result<Functions, LibraryError> {
                Ok(Functions {
                    $($name: {
                        const NAME: &str = stringify!($name);
                        // SAFETY: a library with this symbol is OpenVINO, whose headers declare the function so.
                        match unsafe { library.get(NAME) } {
                            Ok(function) => *function,
                            Err(_) => return Err(LibraryError::Foreign { title: KIND.title, symbol: NAME }),
                        }
                    },)*
                    $($later: {
                        // SAFETY: the releases that have the symbol declare the function so.
                        unsafe { library.get(stringify!($later)) }.ok().map(|function| *function)
                    },)*
                    ov_core_set_property: {
                        // SAFETY: declared so, with variadic arguments, by all releases.
                        match unsafe { library.get("ov_core_set_property") } {
                            Ok(function) => *function,
                            Err(_) => {
                                let symbol = "ov_core_set_property";
                                return Err(LibraryError::Foreign { title: KIND.title, symbol });
                            }
                        }
                    },
                    ov_core_compile_model: {
                        // SAFETY: every release declares it so, and all of them end in variadic arguments.
                        match unsafe { library.get("ov_core_compile_model") } {
                            Ok(function) => *function,
                            Err(_) => {
                                let symbol = "ov_core_compile_model";
                                return Err(LibraryError::Foreign { title: KIND.title, symbol });
                            }
                        }
                    },
                })
            }
        }
    };
}

functions! {
    required {
        ov_get_openvino_version: fn(*mut OvVersion) -> OvStatus;
        ov_version_free: fn(*mut OvVersion);
        ov_get_error_info: fn(OvStatus) -> *const c_char;
        ov_free: fn(*const c_char);
        ov_core_create: fn(*mut *mut OvCore) -> OvStatus;
        ov_core_free: fn(*mut OvCore);
        ov_core_get_property: fn(*const OvCore, *const c_char, *const c_char, *mut *mut c_char) -> OvStatus;
        ov_core_read_model: fn(*const OvCore, *const c_char, *const c_char, *mut *mut OvModel) -> OvStatus;
        ov_model_free: fn(*mut OvModel);
        ov_model_inputs_size: fn(*const OvModel, *mut usize) -> OvStatus;
        ov_model_outputs_size: fn(*const OvModel, *mut usize) -> OvStatus;
        ov_model_const_input_by_index: fn(*const OvModel, usize, *mut *mut OvPort) -> OvStatus;
        ov_model_const_output_by_index: fn(*const OvModel, usize, *mut *mut OvPort) -> OvStatus;
        ov_model_reshape_by_port_indexes:
            fn(*const OvModel, *const usize, *const OvPartialShape, usize) -> OvStatus;
        ov_output_const_port_free: fn(*mut OvPort);
        ov_port_get_any_name: fn(*const OvPort, *mut *mut c_char) -> OvStatus;
        ov_port_get_partial_shape: fn(*const OvPort, *mut OvPartialShape) -> OvStatus;
        ov_port_get_element_type: fn(*const OvPort, *mut i32) -> OvStatus;
        ov_partial_shape_free: fn(*mut OvPartialShape);
        ov_preprocess_prepostprocessor_create: fn(*const OvModel, *mut *mut OvPrePostProcessor) -> OvStatus;
        ov_preprocess_prepostprocessor_free: fn(*mut OvPrePostProcessor);
        ov_preprocess_prepostprocessor_build: fn(*const OvPrePostProcessor, *mut *mut OvModel) -> OvStatus;
        ov_preprocess_prepostprocessor_get_input_info_by_index:
            fn(*const OvPrePostProcessor, usize, *mut *mut OvInputInfo) -> OvStatus;
        ov_preprocess_input_info_free: fn(*mut OvInputInfo);
        ov_preprocess_input_info_get_tensor_info: fn(*const OvInputInfo, *mut *mut OvInputTensorInfo) -> OvStatus;
        ov_preprocess_input_tensor_info_free: fn(*mut OvInputTensorInfo);
        ov_preprocess_input_tensor_info_set_element_type: fn(*mut OvInputTensorInfo, i32) -> OvStatus;
        ov_preprocess_prepostprocessor_get_output_info_by_index:
            fn(*const OvPrePostProcessor, usize, *mut *mut OvOutputInfo) -> OvStatus;
        ov_preprocess_output_info_free: fn(*mut OvOutputInfo);
        ov_preprocess_output_info_get_tensor_info: fn(*const OvOutputInfo, *mut *mut OvOutputTensorInfo) -> OvStatus;
        ov_preprocess_output_tensor_info_free: fn(*mut OvOutputTensorInfo);
        ov_preprocess_output_set_element_type: fn(*mut OvOutputTensorInfo, i32) -> OvStatus;
        ov_compiled_model_free: fn(*mut OvCompiledModel);
        ov_compiled_model_inputs_size: fn(*const OvCompiledModel, *mut usize) -> OvStatus;
        ov_compiled_model_outputs_size: fn(*const OvCompiledModel, *mut usize) -> OvStatus;
        ov_compiled_model_output_by_index: fn(*const OvCompiledModel, usize, *mut *mut OvPort) -> OvStatus;
        ov_compiled_model_get_property: fn(*const OvCompiledModel, *const c_char, *mut *mut c_char) -> OvStatus;
        ov_compiled_model_create_infer_request: fn(*const OvCompiledModel, *mut *mut OvInferRequest) -> OvStatus;
        ov_infer_request_free: fn(*mut OvInferRequest);
        ov_infer_request_set_input_tensor_by_index: fn(*mut OvInferRequest, usize, *const OvTensor) -> OvStatus;
        ov_infer_request_set_output_tensor_by_index: fn(*mut OvInferRequest, usize, *const OvTensor) -> OvStatus;
        ov_infer_request_infer: fn(*mut OvInferRequest) -> OvStatus;
        ov_tensor_create: fn(i32, OvShape, *mut *mut OvTensor) -> OvStatus;
        ov_tensor_create_from_host_ptr: fn(i32, OvShape, *mut c_void, *mut *mut OvTensor) -> OvStatus;
        ov_tensor_free: fn(*mut OvTensor);
        ov_tensor_get_shape: fn(*const OvTensor, *mut OvShape) -> OvStatus;
        ov_tensor_get_byte_size: fn(*const OvTensor, *mut usize) -> OvStatus;
        ov_tensor_data: fn(*const OvTensor, *mut *mut c_void) -> OvStatus;
        ov_shape_free: fn(*mut OvShape) -> OvStatus;
    }
    optional {
        ov_core_add_extension: fn(*const OvCore, *const c_char) -> OvStatus;
        ov_get_last_err_msg: fn() -> *const c_char;
        ov_core_set_properties: fn(*const OvCore, *const c_char, usize, *const OvProperty) -> OvStatus;
        ov_core_compile_model_props: fn(
            *const OvCore, *const OvModel, *const c_char, usize, *const OvProperty, *mut *mut OvCompiledModel
        ) -> OvStatus;
    }
}
