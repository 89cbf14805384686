//! `NEREID_Frontend*`: ports of a server that an application owns.

use std::ffi::c_char;

use super::border::{deref, entry, give, null, put, take, utf8};
use super::server::Error;
use crate::server::access::Access;
use crate::server::frontend::{Frontend, Kind, Value};
use crate::server::options::Restriction;
use nereid_request::Status;

/// `NEREID_FrontendKind`.
const KINDS: [Kind; 3] = [Kind::Http, Kind::Grpc, Kind::Metrics];

/// # Safety
/// `server` is live and `frontend` writable; the caller owns the front end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendNew(
    frontend: *mut *mut Frontend,
    server: *const Access,
    kind: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `server` is NULL or live: this function requires it of its caller.
        let access = unsafe { deref(server, "server")? };
        if frontend.is_null() {
            return Err(null("frontend"));
        }
        let kind = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind).copied());
        let kind = kind.ok_or_else(|| Status::invalid("unknown kind of a front end"))?;
        let made = Frontend::new(access, kind)?;
        // SAFETY: not null, and by contract writable.
        unsafe { put(frontend, give(made)) }
    })
}

/// # Safety
/// `frontend` is live and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendDelete(frontend: *mut Frontend) -> *mut Error {
    // SAFETY: `frontend` is NULL or an object that the caller gives back: this function requires it of its caller.
    entry(|| unsafe { take(frontend, "frontend") }.map(drop))
}

/// # Safety
/// `frontend` is live, the texts are C strings or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendSetString(
    frontend: *mut Frontend,
    name: *const c_char,
    value: *const c_char,
) -> *mut Error {
    // SAFETY: `frontend` is NULL or live, the texts are NULL or C strings: this function requires that of its caller.
    entry(|| unsafe { deref(frontend, "frontend")?.set(utf8(name, "name")?, Value::Text(utf8(value, "value")?)) })
}

/// # Safety
/// `frontend` is live, `name` a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendSetInt(frontend: *mut Frontend, name: *const c_char, value: i64) -> *mut Error {
    // SAFETY: `frontend` is NULL or live, `name` is NULL or a C string: this function requires that of its caller.
    entry(|| unsafe { deref(frontend, "frontend")?.set(utf8(name, "name")?, Value::Int(value)) })
}

/// # Safety
/// `frontend` is live, `name` a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendSetBool(
    frontend: *mut Frontend,
    name: *const c_char,
    value: bool,
) -> *mut Error {
    // SAFETY: `frontend` is NULL or live, `name` is NULL or a C string: this function requires that of its caller.
    entry(|| unsafe { deref(frontend, "frontend")?.set(utf8(name, "name")?, Value::Bool(value)) })
}

/// # Safety
/// `frontend` is live, the texts are C strings or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendRestrict(
    frontend: *mut Frontend,
    feature: *const c_char,
    key: *const c_char,
    value: *const c_char,
) -> *mut Error {
    // SAFETY: `frontend` is NULL or live, the texts are NULL or C strings: this function requires that of its caller.
    entry(|| unsafe {
        let frontend = deref(frontend, "frontend")?;
        let (group, key, value) = (utf8(feature, "feature")?, utf8(key, "key")?, utf8(value, "value")?);
        frontend.restrict(Restriction { group: group.to_owned(), key: key.to_owned(), value: value.to_owned() })
    })
}

/// # Safety
/// `frontend` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendStart(frontend: *mut Frontend) -> *mut Error {
    // SAFETY: `frontend` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { deref(frontend, "frontend")? }.start())
}

/// # Safety
/// `frontend` is live and `port` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendPort(frontend: *mut Frontend, port: *mut u32) -> *mut Error {
    // SAFETY: `frontend` is NULL or live, and `port` is NULL or writable: this function requires that of its caller.
    entry(|| unsafe {
        let frontend = deref(frontend, "frontend")?;
        if port.is_null() {
            return Err(null("port"));
        }
        put(port, u32::from(frontend.port()?))
    })
}

/// # Safety
/// `frontend` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn NEREID_FrontendStop(frontend: *mut Frontend) -> *mut Error {
    // SAFETY: `frontend` is NULL or live: this function requires it of its caller.
    entry(|| unsafe { deref(frontend, "frontend")? }.stop())
}
