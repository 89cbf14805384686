//! The virtual functions of TensorRT that are called, by their places in the tables of each major version.
//!
//! TensorRT has no C interface beyond three functions. Its classes are shells: behind their own table lies a pointer to
//! an object of the library with one virtual function for each method, whose order is part of its binary interface and
//! is only extended within a major version. NVIDIA's own Python package is compiled against that order; a test
//! (`api/tests.rs`) lets it drive a library that has each method at its place here.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::ptr::NonNull;

/// The version of a library, from `getInferLibVersion`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: i32,
    pub minor: i32,
    pub patch: i32,
}

impl Version {
    /// From one number: 101601 is 10.16.1. Version 9 and older used thousands.
    pub fn of_number(number: i32) -> Version {
        match number >= 100_000 {
            true => Version { major: number / 10_000, minor: number / 100 % 100, patch: number % 100 },
            false => Version { major: number / 1_000, minor: number / 100 % 10, patch: number % 100 },
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The most dimensions of a tensor.
pub const DIMS_MAX: usize = 8;

/// `nvinfer1::Dims64`. -1 dimensions: not known, or an error.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Dims {
    pub rank: i32,
    pub sizes: [i64; DIMS_MAX],
}

/// `nvinfer1::InterfaceInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InterfaceInfo {
    pub kind: *const c_char,
    pub major: i32,
    pub minor: i32,
}

/// An object with a table of virtual functions.
#[repr(C)]
pub struct Object {
    table: *const *const c_void,
}

/// A shell that the library returns: its table holds destructors, and its methods are those of `implementation`.
#[repr(C)]
pub struct Shell {
    table: *const *const c_void,
    implementation: *mut Object,
}

/// The place of the destructor that also frees the memory, in every table.
const DELETE: usize = 1;

/// The places of the methods of an `IRuntime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeSlots {
    pub deserialize: usize,
    pub set_dla_core: usize,
    pub dla_cores: usize,
    pub allow_host_code: usize,
}

/// The places of the methods of an `ICudaEngine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineSlots {
    pub create_context: usize,
    pub profiles: usize,
    pub shape: usize,
    pub datatype: usize,
    pub location: usize,
    pub is_shape_tensor: usize,
    pub io_mode: usize,
    pub profile_shape: usize,
    pub tensors: usize,
    pub tensor_name: usize,
    pub format: usize,
    pub profile_values: ProfileValues,
}

/// The place of the method that returns the values of shape tensors, and their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileValues {
    Int32(usize),
    Int64(usize),
}

/// The places of the methods of an `IExecutionContext`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextSlots {
    pub set_profile: usize,
    pub set_input_shape: usize,
    pub tensor_shape: usize,
    pub set_address: usize,
    pub infer_shapes: usize,
    pub set_allocator: usize,
    pub enqueue: usize,
}

/// All places of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    pub runtime: RuntimeSlots,
    pub engine: EngineSlots,
    pub context: ContextSlots,
    /// Loggers have an interface number in front of their method, since version 11.
    pub logger_has_version: bool,
}

const TEN: Slots = Slots {
    runtime: RuntimeSlots { deserialize: 3, set_dla_core: 5, dla_cores: 7, allow_host_code: 21 },
    engine: EngineSlots {
        create_context: 5,
        profiles: 10,
        shape: 19,
        datatype: 20,
        location: 21,
        is_shape_tensor: 22,
        io_mode: 23,
        profile_shape: 29,
        tensors: 30,
        tensor_name: 31,
        format: 36,
        profile_values: ProfileValues::Int64(54),
    },
    context: ContextSlots {
        set_profile: 17,
        set_input_shape: 21,
        tensor_shape: 22,
        set_address: 24,
        infer_shapes: 28,
        set_allocator: 32,
        enqueue: 37,
    },
    logger_has_version: false,
};

const ELEVEN: Slots = Slots {
    runtime: RuntimeSlots { deserialize: 3, set_dla_core: 4, dla_cores: 6, allow_host_code: 20 },
    engine: EngineSlots {
        create_context: 5,
        profiles: 8,
        shape: 15,
        datatype: 16,
        location: 17,
        is_shape_tensor: 18,
        io_mode: 19,
        profile_shape: 25,
        tensors: 26,
        tensor_name: 27,
        format: 32,
        profile_values: ProfileValues::Int64(46),
    },
    context: ContextSlots {
        set_profile: 16,
        set_input_shape: 20,
        tensor_shape: 21,
        set_address: 23,
        infer_shapes: 27,
        set_allocator: 31,
        enqueue: 36,
    },
    logger_has_version: true,
};

/// The first version of 10 that returns the values of shape tensors in 64 bits.
const TEN_WITH_LONG_VALUES: (i32, i32) = (10, 11);

/// The places of a version; `None` for a major version whose order is not known here.
pub fn slots(version: Version) -> Option<Slots> {
    match version.major {
        10 if (version.major, version.minor) < TEN_WITH_LONG_VALUES => {
            Some(Slots { engine: EngineSlots { profile_values: ProfileValues::Int32(11), ..TEN.engine }, ..TEN })
        }
        10 => Some(TEN),
        11 => Some(ELEVEN),
        _ => None,
    }
}

/// The object with the methods of a shell.
///
/// # Safety
/// `shell` is an object of the library that is not deleted.
pub unsafe fn implementation(shell: NonNull<Shell>) -> Option<NonNull<Object>> {
    // SAFETY: the shells of all supported versions have this layout.
    NonNull::new(unsafe { shell.as_ref().implementation })
}

/// The virtual function at a place of the object's table.
///
/// # Safety
/// `object` lives, `F` is the type of the function at that place, and its first argument is `object` (behind the place
/// of a result that is returned through memory, which `extern "C"` adds).
pub unsafe fn method<F: Copy>(object: NonNull<Object>, place: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) }
    // SAFETY: the table of a living object holds a function at that place, which has the type `F`.
    unsafe { std::mem::transmute_copy(&*object.as_ref().table.add(place)) }
}

/// Deletes a shell as C++ does.
///
/// # Safety
/// It is an object of the library that nothing uses any more.
pub unsafe fn delete(shell: NonNull<Shell>) {
    // SAFETY: the table of each shell begins with its two destructors.
    let destructor: unsafe extern "C" fn(NonNull<Shell>) = unsafe { method(shell.cast(), DELETE) };
    // SAFETY: the object lives, and is not used afterwards.
    unsafe { destructor(shell) }
}

/// A pointer that the library returned, as an object.
///
/// `createInferRuntime` adds the offset of a base class to null when it fails (seen in 10.16.1, 11.0.0 and 11.4.0), so
/// an address in the first page is none.
pub fn returned(pointer: *mut Shell) -> Option<NonNull<Shell>> {
    NonNull::new(pointer).filter(|pointer| pointer.addr().get() >= 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_one_number() {
        for (number, text) in [(110_400, "11.4.0"), (101_601, "10.16.1"), (100_001, "10.0.1"), (8_601, "8.6.1")] {
            assert_eq!(Version::of_number(number).to_string(), text);
        }
    }

    #[test]
    fn places_are_known_of_two_major_versions() {
        let of = |number| slots(Version::of_number(number));
        assert_eq!(of(101_100), Some(TEN));
        assert_eq!(of(101_001).map(|slots| slots.engine.profile_values), Some(ProfileValues::Int32(11)));
        assert_eq!(of(110_000), Some(ELEVEN));
        assert_eq!((of(8_601), of(120_000)), (None, None));
    }

    #[test]
    fn an_offset_from_null_is_no_object() {
        assert!(
            returned(std::ptr::null_mut()).is_none() && returned(std::ptr::without_provenance_mut(0x228)).is_none()
        );
    }
}
