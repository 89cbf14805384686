//! `TRITONSERVER_Server`: start, stop and health.
//!
//! An application that starts a server owns it through its handle. The pointer that a backend gets from
//! `TRITONBACKEND_ModelServer` is to a value of the same type and accepts the same functions; only its owner may end
//! the server.

use std::ffi::c_char;
use std::sync::Arc;

use super::super::border::{deref, entry, give_shared, null, put, take_shared, utf8};
use super::super::handle_registry;
use super::Error;
use super::options::ServerOptions;
use crate::server::access::Access;
use nereid_observe::log::LogGuard;

/// The highest version that is ready.
const ANY_VERSION: i64 = -1;

pub(super) fn version_of(number: i64) -> Option<i64> {
    Some(number).filter(|number| *number != ANY_VERSION)
}

/// # Safety
/// `options` is live and `server` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerNew(
    server: *mut *const Access,
    options: *const ServerOptions,
) -> *mut Error {
    entry(|| {
        // SAFETY: `options` is NULL or live: this function requires it of its caller.
        let options = unsafe { deref(options, "options")? };
        if server.is_null() {
            return Err(null("server"));
        }
        let access = options.start()?;
        // SAFETY: not null, and by contract writable.
        unsafe { put(server, give_shared(access)) }
    })
}

/// Stops the server if it was not stopped. When that fails the handle stays valid.
///
/// # Safety
/// `server` is live, and unless this fails not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerDelete(server: *const Access) -> *mut Error {
    entry(|| {
        // The log ends with the server, unless it is held for the report below.
        let _log = handle_registry::is_on().then(LogGuard::new);
        // SAFETY: `server` is NULL or live: this function requires it of its caller.
        unsafe { deref(server, "server")? }.end()?;
        // SAFETY: only its owner could end it, and has it from ServerNew.
        drop::<Arc<Access>>(unsafe { take_shared(server, "server")? });
        // Reports what the application and the libraries still hold; objects of other servers are included.
        handle_registry::report(None);
        Ok(())
    })
}

/// # Safety
/// `server` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerStop(server: *const Access) -> *mut Error {
    // SAFETY: `server` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { deref(server, "server")? }.stop())
}

/// # Safety
/// `server` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerSetExitTimeout(server: *const Access, timeout: u32) -> *mut Error {
    // SAFETY: `server` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { deref(server, "server")? }.set_exit_timeout(timeout))
}

/// # Safety
/// `server` is live and `live` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerIsLive(server: *const Access, live: *mut bool) -> *mut Error {
    // SAFETY: `live` is NULL or writable, and `server` is NULL or live: this function requires that of its caller.
    entry(|| unsafe { put(live, deref(server, "server")?.is_live()?) })
}

/// # Safety
/// `server` is live and `ready` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerIsReady(server: *const Access, ready: *mut bool) -> *mut Error {
    // SAFETY: `ready` is NULL or writable, and `server` is NULL or live: this function requires that of its caller.
    entry(|| unsafe { put(ready, deref(server, "server")?.is_ready()?) })
}

/// # Safety
/// `server` is live, `model_name` a C string or NULL, `ready` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerModelIsReady(
    server: *const Access,
    model_name: *const c_char,
    model_version: i64,
    ready: *mut bool,
) -> *mut Error {
    // SAFETY: `server` is NULL or live; `model_name` is NULL or a C string; `ready` is NULL or writable: this function
    // requires that of its caller.
    entry(|| unsafe {
        let (server, name) = (deref(server, "server")?, utf8(model_name, "model_name")?);
        let is_ready = server.is_model_ready(name, version_of(model_version))?;
        put(ready, is_ready)
    })
}
