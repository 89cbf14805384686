//! Shared memory that clients have registered: one registry for the process, which all shards read.
//!
//! A region has uses: requests that read from it or write to it. As long as there is one, an unregistered region stays
//! listed and may be used by others; the last use takes it off the list. Its pages may stay mapped longer: every slice
//! that points into them holds them (a model may still read inputs of a request that it has answered). A lookup holds
//! the lock for a moment and never waits for a system call: a background thread of the registry maps and unmaps.

pub(crate) mod faults;
mod job_thread;
mod lent;
mod mapping;
mod uses;
mod window;

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Segment;

pub use self::job_thread::{JobThread, Refused};
pub use self::lent::{LENT_PREFIX, LentRegion};
use self::mapping::Mapping;
pub use self::uses::{Unregistered, Uses};
pub use self::window::{Window, WindowError, range_in};

/// Regions that are registered, or still mapped, at a time. Each is a mapping of its own, of which a process has 65530
/// unless its host is configured otherwise.
pub const REGIONS_MAX: usize = 16_384;
/// Bytes of a name or a key: an object's name has at most 255.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Regions that are listed before the lock is released and taken again.
const LISTED_AT_ONCE: usize = 64;

/// The prefix of the names of the server's own objects.
const RESERVED: &str = "triton_python_backend_shm_region_";

/// Why a region cannot be registered; the texts are those of contract/http.md section 4, as far as they do not name the
/// region.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("a name or a key has more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    #[error("invalid shm key")]
    InvalidKey,
    #[error("reserved prefix")]
    ReservedKey,
    #[error("already in manager")]
    Exists,
    #[error("cannot be opened")]
    Unopenable,
    #[error("invalid args")]
    InvalidArgs,
    #[error("unable to process address space{0}")]
    Unmappable(String),
    #[error("more than {REGIONS_MAX} shared memory regions")]
    TooMany,
    #[error("cannot handle SIGBUS: {0}")]
    NoHandler(io::Error),
}

impl RegisterError {
    /// The prefix that keys must not have.
    pub const RESERVED: &str = RESERVED;
}

/// A mapped object under the name that its client gave it.
#[derive(Debug)]
pub struct Region {
    name: Box<[u8]>,
    key: Box<[u8]>,
    offset: u64,
    uses: Uses,
    mapping: Mapping,
}

impl Region {
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Of the object, as the client gave it.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Where in the object the region begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    /// Part of the object was found to be gone; zeros are in its place.
    pub fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}

/// The use of a region by a request.
#[derive(Debug)]
pub struct RegionUse {
    region: Arc<Region>,
    table: Arc<RegionTable>,
    is_over: AtomicBool,
}

impl RegionUse {
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A part of the region.
    pub fn window(&self, offset: u64, byte_size: u64) -> Result<Window, WindowError> {
        Window::of(&self.region, offset, byte_size)
    }

    /// Called when the request is answered: the region may go, though its pages stay mapped for slices that still point
    /// into them.
    pub fn end(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) && self.region.uses.end() {
            self.table.remove(&self.region);
        }
    }
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug, Default)]
struct RegionTable(Mutex<BTreeMap<Box<[u8]>, Arc<Region>>>);

impl RegionTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<[u8]>, Arc<Region>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes this region off the list; another one may have its name by now.
    fn remove(&self, region: &Arc<Region>) -> Option<Arc<Region>> {
        let mut regions = self.lock();
        let is_this = regions.get(&region.name).is_some_and(|listed| Arc::ptr_eq(listed, region));
        if is_this { regions.remove(&region.name) } else { None }
    }
}

/// The registry; see the [module](self).
#[derive(Debug, Default)]
pub struct Regions {
    table: Arc<RegionTable>,
    /// Regions that are lent to single clients.
    lent: Arc<RegionTable>,
    job_thread: JobThread,
}

impl Regions {
    /// The thread for operations that take long.
    pub fn job_thread(&self) -> &JobThread {
        &self.job_thread
    }

    /// Begins a use of a region; `None` if there is none of that name.
    pub fn get(&self, name: &[u8]) -> Option<RegionUse> {
        let find = |table: &Arc<RegionTable>| {
            let region = table.lock().get(name).filter(|region| region.uses.begin()).cloned()?;
            Some(RegionUse { region, table: Arc::clone(table), is_over: AtomicBool::new(false) })
        };
        let lent = if name.starts_with(LENT_PREFIX) { find(&self.lent) } else { None };
        lent.or_else(|| find(&self.table))
    }

    /// Has requests find a part of a segment under a name that nobody can guess, until the lent region is dropped. No
    /// list contains it, and no client can unregister it. `None`: there is no such part, or the name is taken.
    pub fn lend(&self, name: &[u8], segment: Arc<Segment>, at: usize, len: usize) -> Option<LentRegion> {
        LentRegion::add(&self.lent, name, Mapping::of_segment(segment, at, len, &self.job_thread)?)
    }

    /// The region of that name, without a use of it, for status requests.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Region>> {
        self.table.lock().get(name).cloned()
    }

    pub fn len(&self) -> usize {
        self.table.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All regions in the order of their names.
    pub fn list(&self) -> Vec<Arc<Region>> {
        let mut listed: Vec<Arc<Region>> = Vec::new();
        loop {
            let from = listed.last().map_or(Bound::Unbounded, |last| Bound::Excluded(&*last.name));
            let regions = self.table.lock();
            let next: Vec<Arc<Region>> = regions
                .range::<[u8], _>((from, Bound::Unbounded))
                .take(LISTED_AT_ONCE)
                .map(|(_, one)| Arc::clone(one))
                .collect();
            drop(regions);
            if next.is_empty() {
                return listed;
            }
            listed.extend(next);
        }
    }

    /// Maps an object under a name. It makes system calls, so shards must not call it.
    pub fn register(&self, name: &[u8], key: &[u8], offset: u64, byte_size: u64) -> Result<(), RegisterError> {
        self.register_unless(name, key, (offset, byte_size), || false)
    }

    /// The same where a region of another kind may have the name: `is_taken` is called after the key was checked.
    pub fn register_unless(
        &self,
        name: &[u8],
        key: &[u8],
        (offset, byte_size): (u64, u64),
        is_taken: impl FnOnce() -> bool,
    ) -> Result<(), RegisterError> {
        if name.len().max(key.len()) > TEXT_BYTES_MAX {
            return Err(RegisterError::TooLong);
        }
        let bare = &key[key.iter().take_while(|byte| **byte == b'/').count()..];
        if bare.is_empty() {
            return Err(RegisterError::InvalidKey);
        }
        if bare.starts_with(RESERVED.as_bytes()) {
            return Err(RegisterError::ReservedKey);
        }
        if self.table.lock().contains_key(name) || is_taken() {
            return Err(RegisterError::Exists);
        }
        let mapping = Mapping::open(key, offset, byte_size, &self.job_thread)?;
        let region = Region { name: name.into(), key: key.into(), offset, uses: Uses::default(), mapping };
        let mut regions = self.table.lock();
        // Another thread may have registered it meanwhile.
        if regions.contains_key(name) {
            return Err(RegisterError::Exists);
        }
        regions.insert(name.into(), Arc::new(region));
        Ok(())
    }

    /// Unregisters a region, at once or with its last use; a missing one is no error. Shards must not call it.
    pub fn unregister(&self, name: &[u8]) -> io::Result<Unregistered> {
        let Some(region) = self.find(name) else { return Ok(Unregistered::Now) };
        if !region.uses.mark() {
            return Ok(Unregistered::WithLastUse);
        }
        drop(self.table.remove(&region));
        // Another holder, if there is one, closes it.
        Arc::into_inner(region).map_or(Ok(()), |region| region.mapping.close())?;
        Ok(Unregistered::Now)
    }
}

pub(crate) fn page_bytes() -> usize {
    // SAFETY: the call has no conditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
