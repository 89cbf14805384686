//! A cache library behind the trait of the response cache.
//!
//! An error of the library loses a hit, never a request. Only the first of a series of errors is logged, so that a
//! cache that fails under load does not fill the log.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tracing::error;

use super::entry::ENTRY_BYTES_MAX;
use super::{AllocatorHandle, EntryHandle};
use crate::abi::border::{give, take};
use crate::abi::foreign::{Library, call, locate};
use crate::abi::guard::ForeignCode;
use crate::abi::library_ranges;
use crate::abi::server::Error;
use nereid_model_config::ModelSpec;
use nereid_request::{Code, Status};
use nereid_scheduler::cache::{Entry, Inserted, Key, Store};

type Initialize = unsafe extern "C-unwind" fn(*mut *mut c_void, *const c_char) -> *mut Error;
type Finalize = unsafe extern "C-unwind" fn(*mut c_void) -> *mut Error;
type Access =
    unsafe extern "C-unwind" fn(*mut c_void, *const c_char, *mut EntryHandle, *mut AllocatorHandle) -> *mut Error;

/// How long a request may wait for a thread to call the library, as for Redis.
const LOOKUP_WAIT_MAX_NS: u64 = 100_000_000;
/// Threads that may be inside the library at the same time.
const THREADS_MAX: usize = 4;

/// A response cache that a library implements.
struct LibraryCache {
    name: String,
    finalize: Finalize,
    insert: Access,
    lookup: Access,
    /// None once it is closed.
    cache: RwLock<Option<Pointer>>,
    /// The last lookup failed.
    lookups_fail: AtomicBool,
    /// The last insertion did.
    insertions_fail: AtomicBool,
    _library: Library,
}

/// The library's pointer to its cache.
#[derive(Clone, Copy)]
struct Pointer(*mut c_void);

// SAFETY: the interface has caches called from several threads at the same time.
unsafe impl Send for Pointer {}
// SAFETY: the interface has caches called from several threads at the same time.
unsafe impl Sync for Pointer {}

/// The required exports.
pub const REQUIRED: [&str; 4] =
    ["TRITONCACHE_CacheInitialize", "TRITONCACHE_CacheFinalize", "TRITONCACHE_CacheLookup", "TRITONCACHE_CacheInsert"];

/// The library of the cache `name`, which is `file` or has its usual name; nothing is opened.
pub fn find(name: &str, file: Option<&str>, directory: &Path) -> Result<PathBuf, Status> {
    let file = file.map_or_else(|| format!("libtritoncache_{name}.so"), str::to_owned);
    let absent = || Status::invalid(format!("unable to find '{file}' for cache. Searched: {}", directory.display()));
    locate(directory, name, &file).ok_or_else(absent)
}

/// Opens the library of the cache `name`, which is `file` or has its usual name and lies in the folder of that name in
/// `directory`, and creates a cache with these settings.
pub fn open(
    name: &str,
    file: Option<&str>,
    directory: &Path,
    settings: &BTreeMap<&str, &str>,
) -> Result<Box<dyn Store>, Status> {
    let library = Library::open(&find(name, file, directory)?)?;
    let [initialize, finalize, lookup, insert] = REQUIRED;
    // SAFETY: the interface defines these functions with these types.
    let (initialize, finalize, lookup, insert) = unsafe {
        (
            library.require::<Initialize>(initialize)?,
            library.require::<Finalize>(finalize)?,
            library.require::<Access>(lookup)?,
            library.require::<Access>(insert)?,
        )
    };
    library_ranges::register(format!("cache '{name}'"), lookup as *const c_void);
    let config = serde_json::to_string(settings).map_err(|error| Status::internal(error.to_string()))?;
    let config = CString::new(config).map_err(|error| Status::invalid(error.to_string()))?;
    let mut cache = null_mut();
    // SAFETY: both pointers live through the call.
    call(&work(name, "TRITONCACHE_CacheInitialize"), || unsafe { initialize(&raw mut cache, config.as_ptr()) })?;
    if cache.is_null() {
        return Err(Status::internal(format!("the cache library '{}' made no cache", library.path.display())));
    }
    Ok(Box::new(LibraryCache {
        name: name.to_owned(),
        finalize,
        insert,
        lookup,
        cache: RwLock::new(Some(Pointer(cache))),
        lookups_fail: AtomicBool::new(false),
        insertions_fail: AtomicBool::new(false),
        _library: library,
    }))
}

fn work<'a>(name: &'a str, call: &'static str) -> ForeignCode<'a> {
    ForeignCode { kind: "cache", name, call, ..ForeignCode::default() }
}

/// The library's key of a response: all 128 bits of the hash, with a prefix against the keys of other programs.
fn name_of(key: Key) -> CString {
    CString::new(format!("nereid:{}:{}", key.hash, key.seal)).unwrap_or_default()
}

impl LibraryCache {
    /// Calls the library with an entry, and returns the entry after the call.
    fn call_library(
        &self,
        export: &'static str,
        function: Access,
        key: Key,
        entry: EntryHandle,
    ) -> (EntryHandle, Result<(), Status>) {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Pointer(cache)) = *cache else {
            return (entry, Err(Status::unavailable("the cache is closed")));
        };
        let key = name_of(key);
        let entry = give(entry);
        let allocator = give(AllocatorHandle::new(entry));
        // SAFETY: the handles and the key live through the call; the library made the cache and has not finalised it.
        let outcome = call(&work(&self.name, export), || unsafe { function(cache, key.as_ptr(), entry, allocator) });
        // SAFETY: both were given to C above, and by the interface's rules the library keeps neither.
        let (entry, _allocator) = unsafe { (take(entry, "entry"), take(allocator, "allocator")) };
        (entry.map_or_else(|_| EntryHandle::looking_up(), |entry| *entry), outcome)
    }

    /// Logs an error of the library when a series of errors begins, and clears the flag when it ends.
    fn note_outcome(&self, doing: &str, fails: &AtomicBool, failure: Option<&Status>) {
        let was_failing = match failure {
            // The usual case writes nothing.
            None if !fails.load(Ordering::Relaxed) => return,
            _ => fails.swap(failure.is_some(), Ordering::Relaxed),
        };
        if let (Some(status), false) = (failure, was_failing) {
            error!("the cache '{}' failed to {doing}: {status}", self.name);
        }
    }
}

impl Store for LibraryCache {
    fn lookup(&self, key: Key, spec: &ModelSpec) -> Option<Arc<Entry>> {
        let (entry, outcome) =
            self.call_library("TRITONCACHE_CacheLookup", self.lookup, key, EntryHandle::looking_up());
        match outcome {
            Err(status) if status.code == Code::NotFound => {
                self.note_outcome("look up", &self.lookups_fail, None);
                return None;
            }
            Err(status) => {
                self.note_outcome("look up", &self.lookups_fail, Some(&status));
                return None;
            }
            Ok(()) => {}
        }
        let pieces = entry.found();
        let found = match pieces.as_deref() {
            Some([bytes]) => Entry::decode(bytes, spec).filter(|entry| entry.seal == key.seal),
            _ => None,
        };
        let failure = found.is_none().then(|| Status::internal("what it found is no entry that was inserted"));
        self.note_outcome("look up", &self.lookups_fail, failure.as_ref());
        found
    }

    /// A library replaces no entry: one under the same key that does not fit stays until the library evicts it.
    fn insert(&self, key: Key, entry: Arc<Entry>, replaces: bool) -> Inserted {
        let Some(bytes) = entry.encode().filter(|bytes| bytes.len() <= ENTRY_BYTES_MAX) else {
            return Inserted::Refused;
        };
        let entry = EntryHandle::inserting(vec![bytes]);
        let (entry, outcome) = self.call_library("TRITONCACHE_CacheInsert", self.insert, key, entry);
        let (inserted, failure) = match outcome {
            Ok(()) if entry.is_copied() => (Inserted::Kept, None),
            Ok(()) => (Inserted::Refused, Some(Status::internal("it took an entry without copying it"))),
            Err(status) if status.code == Code::AlreadyExists && replaces => (Inserted::Refused, None),
            Err(status) if status.code == Code::AlreadyExists => (Inserted::Present, None),
            Err(status) => (Inserted::Refused, Some(status)),
        };
        self.note_outcome("insert", &self.insertions_fail, failure.as_ref());
        inserted
    }

    fn is_quick(&self) -> bool {
        false
    }

    fn wait_max_ns(&self) -> u64 {
        LOOKUP_WAIT_MAX_NS
    }

    fn thread_count(&self) -> usize {
        THREADS_MAX
    }

    fn close(&self) {
        // Waits for the calls that are inside the library.
        let cache = self.cache.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Pointer(cache)) = cache else { return };
        // SAFETY: the cache came from this library, and no call uses it any more.
        let outcome = call(&work(&self.name, "TRITONCACHE_CacheFinalize"), || unsafe { (self.finalize)(cache) });
        if let Err(status) = outcome {
            error!("the cache '{}' failed to finalize: {status}", self.name);
        }
    }
}

impl Drop for LibraryCache {
    fn drop(&mut self) {
        self.close();
    }
}
