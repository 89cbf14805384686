//! The memory of simulated devices: files without a name, mapped, so that other processes can map them too.
//!
//! An inaccessible guard page follows every range, and a freed range becomes such pages for a while, so that its
//! addresses are not given out again and a stale use is found.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::super::driver::IpcHandle;
use super::order::Span;

/// The value of memory that is not written yet, or was freed.
pub const POISON: u8 = 0xDB;

/// At most this many bytes of a new range are poisoned: filling more would only cost time and memory.
const POISONED_BYTES_MAX: usize = 64 << 10;
/// Freed ranges whose addresses are not given out again.
const FREED_MAX: usize = 256;
/// The first bytes of a handle.
const MAGIC: [u8; 8] = *b"nereid-1";

/// The owner of a range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryOwner {
    Device(usize),
    /// Another process's, opened on a device.
    Opened(usize),
    /// Pinned memory of the host, which devices access.
    Pinned,
}

impl MemoryOwner {
    pub fn device(self) -> Option<usize> {
        match self {
            MemoryOwner::Device(device) | MemoryOwner::Opened(device) => Some(device),
            MemoryOwner::Pinned => None,
        }
    }
}

/// One allocation.
#[derive(Debug)]
pub(super) struct Range {
    pub place: MemoryOwner,
    pub at: u64,
    /// The requested length: no byte beyond it may be used.
    pub len: usize,
    mapping: Mapping,
    /// The file of a device's memory, for handles.
    file: Option<OwnedFd>,
    /// Of opened memory: how often it is open, and what it is.
    openings: usize,
    identity: Option<Identity>,
}

/// A file and a part of it: the same for all handles of one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: usize,
    file: (u64, u64),
    offset: u64,
    len: u64,
}

impl Range {
    pub fn holds(&self, span: &Span) -> bool {
        self.at <= span.from && span.to <= self.at + self.len as u64
    }

    /// Bytes that are counted against the device.
    pub fn charged(&self) -> u64 {
        if let MemoryOwner::Device(_) = self.place { self.mapping.len as u64 } else { 0 }
    }

    pub fn span(&self) -> Span {
        Span::new(self.at, self.len, true)
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Memory {
    ranges: BTreeMap<u64, Range>,
    freed: VecDeque<Mapping>,
}

impl Memory {
    /// Allocates `len` bytes; `None` if the host has none.
    pub fn allocate(&mut self, place: MemoryOwner, len: usize) -> Option<u64> {
        let file = match place {
            MemoryOwner::Pinned => None,
            _ => Some(unnamed_file(len)?),
        };
        let mapping = Mapping::new(len, file.as_ref().map(|file| (file, 0)))?;
        // SAFETY: the mapping is new, and at least as long.
        unsafe { fill(mapping.at as u64, POISON, len.min(POISONED_BYTES_MAX)) };
        let at = mapping.at as u64;
        self.ranges.insert(at, Range { place, at, len, mapping, file, openings: 0, identity: None });
        Some(at)
    }

    /// Bytes of devices are counted in whole pages.
    pub fn charge_of(len: usize) -> u64 {
        rounded(len).map_or(u64::MAX, |len| len as u64)
    }

    /// The range that begins at `at`.
    pub fn starting_at(&self, at: u64) -> Option<&Range> {
        self.ranges.get(&at)
    }

    /// The range in which `at` lies.
    pub fn around(&self, at: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=at).next_back()?;
        (at < range.at + range.len.max(1) as u64).then_some(range)
    }

    /// A range that the span touches, if only in part.
    pub fn touched_by(&self, span: &Span) -> Option<&Range> {
        let (_, range) = self.ranges.range(..span.to.max(span.from + 1)).next_back()?;
        range.span().meets(span).then_some(range)
    }

    /// True if the span's first byte belonged to a freed range.
    pub fn was_freed(&self, span: &Span) -> bool {
        self.freed.iter().any(|mapping| mapping.span().meets(span))
    }

    /// Frees the range. Its addresses stay unused for a while.
    pub fn release(&mut self, at: u64) {
        let Some(range) = self.ranges.remove(&at) else { return };
        range.mapping.close();
        self.freed.push_back(range.mapping);
        if self.freed.len() > FREED_MAX {
            self.freed.pop_front();
        }
    }

    /// The handle of the range that begins at `at`.
    pub fn export(&self, at: u64) -> Option<IpcHandle> {
        let range = self.ranges.get(&at)?;
        let file = u32::try_from(range.file.as_ref()?.as_raw_fd()).ok()?;
        Some(handle(std::process::id(), file, 0, range.len as u64))
    }

    /// Maps the memory of the handle; a second call with the same memory returns the same range.
    pub fn open(&mut self, device: usize, handle: &IpcHandle) -> Result<u64, String> {
        let (pid, fd, offset, len) = parse_handle(handle).ok_or("this is no handle of a simulated device")?;
        let path = format!("/proc/{pid}/fd/{fd}");
        // Checked before it is opened, because opening may have side effects, and after, because the process may have
        // put another file there.
        let file = is_memory(&path).then(|| File::options().read(true).write(true).open(&path));
        let file = file.unwrap_or_else(|| Err(std::io::ErrorKind::NotFound.into()));
        let file = file.map_err(|error| format!("{path}: {error}"))?;
        let metadata = file.metadata().map_err(|error| format!("{path}: {error}"))?;
        if !is_memory(&format!("/proc/self/fd/{}", file.as_raw_fd())) {
            return Err(format!("{path} is no file in memory"));
        }
        if offset.checked_add(len).is_none_or(|end| len == 0 || end > metadata.len()) {
            return Err(format!("{path} has no {len} bytes at {offset}"));
        }
        let identity = Identity { device, file: (metadata.dev(), metadata.ino()), offset, len };
        if let Some(range) = self.ranges.values_mut().find(|range| range.identity == Some(identity)) {
            range.openings += 1;
            return Ok(range.at);
        }
        let too_long = || format!("{len} bytes of {path} cannot be mapped");
        let before = offset % PAGE as u64;
        let length = usize::try_from(len).map_err(|_| too_long())?;
        let whole = length.checked_add(before as usize).ok_or_else(too_long)?;
        let file = OwnedFd::from(file);
        let mapping = Mapping::new(whole, Some((&file, offset - before))).ok_or_else(too_long)?;
        let at = mapping.at as u64 + before;
        let (place, identity) = (MemoryOwner::Opened(device), Some(identity));
        self.ranges.insert(at, Range { place, at, len: length, mapping, file: None, openings: 1, identity });
        Ok(at)
    }

    /// Closes one opening. True if it was the last.
    pub fn close_once(&mut self, at: u64) -> bool {
        let Some(range) = self.ranges.get_mut(&at) else { return false };
        range.openings = range.openings.saturating_sub(1);
        range.openings == 0
    }
}

/// Bytes that are mapped, and the guard behind them.
#[derive(Debug)]
struct Mapping {
    at: usize,
    len: usize,
}

const PAGE: usize = 4096;

impl Mapping {
    /// Maps a file from an offset on, or anonymous memory.
    fn new(len: usize, file: Option<(&OwnedFd, u64)>) -> Option<Mapping> {
        let len = rounded(len)?;
        let whole = len.checked_add(PAGE)?;
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, reserve, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        let mapping = Mapping { at: at.expose_provenance(), len };
        let (flags, fd, offset) = match file {
            Some((file, offset)) => (libc::MAP_SHARED, file.as_raw_fd(), offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let offset = libc::off_t::try_from(offset).ok()?;
        // SAFETY: the range was reserved above, and no other code has it yet.
        let mapped =
            unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED, fd, offset) };
        (mapped != libc::MAP_FAILED).then_some(mapping)
    }

    /// Keeps the addresses and frees the memory: an access from now on kills the process.
    fn close(&self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let at = std::ptr::with_exposed_provenance_mut(self.at);
        // SAFETY: the range is this mapping's, and its holder no longer uses it.
        unsafe { libc::mmap(at, self.len, libc::PROT_NONE, flags, -1, 0) };
    }

    fn span(&self) -> Span {
        Span::new(self.at as u64, self.len, true)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's, with the guard that was reserved behind it.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.at), self.len + PAGE) };
    }
}

/// Only files in memory are opened: a handle comes from a client, and must not make the server write to files.
fn is_memory(path: &str) -> bool {
    const KINDS: [&[u8]; 2] = [b"/memfd:", b"/dev/shm/"];
    let is_one = |name: &[u8]| KINDS.into_iter().any(|kind| name.starts_with(kind));
    std::fs::read_link(path).is_ok_and(|name| is_one(name.as_os_str().as_encoded_bytes()))
}

fn rounded(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(PAGE)
}

fn unnamed_file(len: usize) -> Option<OwnedFd> {
    let size = libc::off_t::try_from(rounded(len)?).ok()?;
    // SAFETY: the name is a C string, and the descriptor is new and ours.
    let file = unsafe {
        let made = libc::memfd_create(c"nereid-simulated-gpu".as_ptr(), libc::MFD_CLOEXEC);
        if made < 0 {
            return None;
        }
        OwnedFd::from_raw_fd(made)
    };
    // SAFETY: it acts on a descriptor of ours and touches no memory.
    (unsafe { libc::ftruncate(file.as_raw_fd(), size) } == 0).then_some(file)
}

/// # Safety
/// `at..at + len` is writable, and no other code uses it.
pub(super) unsafe fn fill(at: u64, value: u8, len: usize) {
    // SAFETY: the range is writable, and no other code uses it: this function requires that of its caller.
    unsafe { std::ptr::write_bytes(pointer(at), value, len) }
}

pub(super) fn pointer(at: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

/// A handle: the magic, process and descriptor (32 bits each), offset and length (64 bits each), all little-endian.
fn handle(pid: u32, fd: u32, offset: u64, len: u64) -> IpcHandle {
    let mut handle = [0; 64];
    let numbers = pid.to_le_bytes().into_iter().chain(fd.to_le_bytes());
    let numbers = numbers.chain(offset.to_le_bytes()).chain(len.to_le_bytes());
    for (byte, value) in handle.iter_mut().zip(MAGIC.into_iter().chain(numbers)) {
        *byte = value;
    }
    handle
}

fn parse_handle(bytes: &IpcHandle) -> Option<(u32, u32, u64, u64)> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (pid, rest) = rest.split_first_chunk()?;
    let (fd, rest) = rest.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let parts =
        (u32::from_le_bytes(*pid), u32::from_le_bytes(*fd), u64::from_le_bytes(*offset), u64::from_le_bytes(*len));
    rest.iter().all(|byte| *byte == 0).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        let written = handle(7, 9, 4096, 100);
        assert_eq!(&written[..16], b"nereid-1\x07\0\0\0\x09\0\0\0");
        assert_eq!(parse_handle(&written), Some((7, 9, 4096, 100)));
        for at in [0, 7, 32, 63] {
            let mut other = written;
            other[at] ^= 1;
            assert_eq!(parse_handle(&other), None, "byte {at}");
        }
    }

    #[test]
    fn addresses_of_freed_memory_are_not_given_out_for_a_while() {
        let mut memory = Memory::default();
        let first = memory.allocate(MemoryOwner::Device(0), 5000).unwrap();
        assert_eq!(memory.around(first + 4999).map(|range| range.at), Some(first));
        assert!(memory.around(first + 5000).is_none(), "not a byte more than was asked for");
        memory.release(first);
        assert!(memory.was_freed(&Span::new(first + 4096, 1, false)) && memory.starting_at(first).is_none());
        for _ in 0..FREED_MAX - 1 {
            let at = memory.allocate(MemoryOwner::Pinned, 5000).unwrap();
            assert_ne!(at, first);
            memory.release(at);
        }
        assert!(memory.was_freed(&Span::new(first, 1, false)));
        let at = memory.allocate(MemoryOwner::Pinned, 1).unwrap();
        memory.release(at);
        assert!(!memory.was_freed(&Span::new(first, 1, false)), "the bound");
        assert!(memory.allocate(MemoryOwner::Device(0), usize::MAX).is_none());
    }
}
