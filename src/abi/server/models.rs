//! `TRITONSERVER_Server`: documents about its models, loads and unloads.
//!
//! Documents and errors are those that clients get over HTTP for the same request.

use std::ffi::{c_char, c_void};

use super::super::border::{deref, entry, put, put_if_requested, utf8};
use super::life::version_of;
use super::parameters::{Parameter, listed};
use super::{Error, Message};
use crate::server::access::Access;
use nereid_request::Status;

/// `TRITONSERVER_ModelBatchFlag`.
const BATCH_UNKNOWN: u32 = 1;
const BATCH_FIRST_DIM: u32 = 2;

/// `TRITONSERVER_ModelTxnPropertyFlag`.
const TXN_ONE_TO_ONE: u32 = 1;
const TXN_DECOUPLED: u32 = 2;

/// `TRITONSERVER_ModelIndexFlag`.
const INDEX_READY: u32 = 1;

/// # Safety
/// `server` is live, `model_name` a C string or NULL, `flags` writable, `voidp` writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerModelBatchProperties(
    server: *const Access,
    model_name: *const c_char,
    model_version: i64,
    flags: *mut u32,
    voidp: *mut *mut c_void,
) -> *mut Error {
    // SAFETY: `voidp` and `flags` are NULL or writable; `server` is NULL or live; `model_name` is NULL or a C string:
    // this function requires that of its caller.
    entry(|| unsafe {
        put_if_requested(voidp, std::ptr::null_mut());
        let (server, name) = (deref(server, "server")?, utf8(model_name, "model_name")?);
        let model = server.model(name, version_of(model_version))?;
        put(flags, if model.spec.max_batch_size > 0 { BATCH_FIRST_DIM } else { BATCH_UNKNOWN })
    })
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL, `txn_flags` writable, `voidp` writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerModelTransactionProperties(
    server: *const Access,
    model_name: *const c_char,
    model_version: i64,
    txn_flags: *mut u32,
    voidp: *mut *mut c_void,
) -> *mut Error {
    // SAFETY: `voidp` and `txn_flags` are NULL or writable; `server` is NULL or live; `model_name` is NULL or a C
    // string: this function requires that of its caller.
    entry(|| unsafe {
        put_if_requested(voidp, std::ptr::null_mut());
        let (server, name) = (deref(server, "server")?, utf8(model_name, "model_name")?);
        let model = server.model(name, version_of(model_version))?;
        put(txn_flags, if model.spec.decoupled { TXN_DECOUPLED } else { TXN_ONE_TO_ONE })
    })
}

/// # Safety
/// `server` is live and `server_metadata` writable; the caller owns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerMetadata(
    server: *const Access,
    server_metadata: *mut *mut Message,
) -> *mut Error {
    // SAFETY: `server` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { write_document(server_metadata, || deref(server, "server")?.metadata()) })
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL, `model_metadata` writable; the caller owns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerModelMetadata(
    server: *const Access,
    model_name: *const c_char,
    model_version: i64,
    model_metadata: *mut *mut Message,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe {
        write_document(model_metadata, || {
            let (server, name) = (deref(server, "server")?, utf8(model_name, "model_name")?);
            server.model_metadata(name, version_of(model_version))
        })
    })
}

/// An empty name means all models.
///
/// # Safety
/// `server` is live, `model_name` a C string or NULL, `model_stats` writable; the caller owns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerModelStatistics(
    server: *const Access,
    model_name: *const c_char,
    model_version: i64,
    model_stats: *mut *mut Message,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe {
        write_document(model_stats, || {
            let (server, name) = (deref(server, "server")?, utf8(model_name, "model_name")?);
            server.model_statistics(name, version_of(model_version))
        })
    })
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL, `model_config` writable; the caller owns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerModelConfig(
    server: *const Access,
    model_name: *const c_char,
    model_version: i64,
    config_version: u32,
    model_config: *mut *mut Message,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe {
        write_document(model_config, || {
            let (server, name) = (deref(server, "server")?, utf8(model_name, "model_name")?);
            server.model_config(name, version_of(model_version), config_version)
        })
    })
}

/// # Safety
/// `server` is live and `model_index` writable; the caller owns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerModelIndex(
    server: *const Access,
    flags: u32,
    model_index: *mut *mut Message,
) -> *mut Error {
    // SAFETY: `server` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { write_document(model_index, || deref(server, "server")?.index(flags & INDEX_READY != 0)) })
}

/// Gives out a document as a message.
///
/// # Safety
/// `message` is NULL or writable.
unsafe fn write_document(
    message: *mut *mut Message,
    document: impl FnOnce() -> Result<String, Status>,
) -> Result<(), Status> {
    // Checked first: a message without a place to put it would never be deleted. SAFETY: by contract NULL or writable,
    // so that a NULL may stand there.
    unsafe { put(message, std::ptr::null_mut())? };
    let json = document()?;
    // SAFETY: `message` is NULL or writable: this function requires it of its caller.
    unsafe { put(message, Message::into_raw(&json)) }
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerLoadModel(server: *const Access, model_name: *const c_char) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe { deref(server, "server")?.load(utf8(model_name, "model_name")?, Vec::new()) })
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL, `parameters` readable for `parameter_count` live parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerLoadModelWithParameters(
    server: *const Access,
    model_name: *const c_char,
    parameters: *const *const Parameter,
    parameter_count: u64,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe {
        let (server, name) = (deref(server, "server")?, utf8(model_name, "model_name")?);
        if parameters.is_null() && parameter_count > 0 {
            return Err(Status::invalid("load parameters are not provided while parameter count is non-zero"));
        }
        let given = listed(parameters, count_of(parameter_count)?, "parameters")?;
        let given = given.into_iter().map(|parameter| parameter.of_load()).collect::<Result<_, _>>()?;
        server.load(name, given)
    })
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerUnloadModel(
    server: *const Access,
    model_name: *const c_char,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe { deref(server, "server")?.unload(utf8(model_name, "model_name")?, false) })
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerUnloadModelAndDependents(
    server: *const Access,
    model_name: *const c_char,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `model_name` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe { deref(server, "server")?.unload(utf8(model_name, "model_name")?, true) })
}

/// `name_mapping`: directories of the repository, each with the name of the model that it holds.
///
/// # Safety
/// `server` is live, `repository_path` a C string or NULL, `name_mapping` readable for `mapping_count` live parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerRegisterModelRepository(
    server: *const Access,
    repository_path: *const c_char,
    name_mapping: *const *const Parameter,
    mapping_count: u32,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `repository_path` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe {
        let (server, path) = (deref(server, "server")?, utf8(repository_path, "repository_path")?);
        if name_mapping.is_null() && mapping_count > 0 {
            return Err(Status::invalid("model mappings are not provided while mapping count is non-zero"));
        }
        let mapping = listed(name_mapping, count_of(u64::from(mapping_count))?, "name_mapping")?;
        let mapping = mapping.into_iter().map(named_directory).collect::<Result<Vec<_>, _>>()?;
        server.register_repository(path, &mapping)
    })
}

/// A directory, and the name under which it is served.
fn named_directory(parameter: &Parameter) -> Result<(String, String), Status> {
    let directory = parameter.name()?;
    let name = parameter.string().ok_or_else(|| {
        Status::invalid(format!("Mapped model name must be a string, found another type for {directory}"))
    });
    Ok((directory.to_owned(), name??.to_owned()))
}

/// # Safety
/// `server` is live, `repository_path` a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerUnregisterModelRepository(
    server: *const Access,
    repository_path: *const c_char,
) -> *mut Error {
    // SAFETY: `server` is NULL or live, and `repository_path` is NULL or a C string: this function requires that of its
    // caller.
    entry(|| unsafe { deref(server, "server")?.unregister_repository(utf8(repository_path, "repository_path")?) })
}

/// # Safety
/// `server` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerPollModelRepository(server: *const Access) -> *mut Error {
    // SAFETY: `server` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { deref(server, "server")? }.poll())
}

/// Parameters of one call; more would be a mistake.
const PARAMETERS_MAX: u64 = 1 << 20;

fn count_of(count: u64) -> Result<usize, Status> {
    match count <= PARAMETERS_MAX {
        true => Ok(count as usize),
        false => Err(Status::invalid(format!("{count} parameters exceed the limit of {PARAMETERS_MAX}"))),
    }
}
