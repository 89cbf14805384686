//! One object of shared memory in this process's address space.

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::RegisterError;
use super::faults::{self, RangeSlot};
use super::job_thread::JobThread;
use crate::Segment;

/// A window on an object that other processes read and write too.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
    /// `None` once the pages are unmapped, and for part of a segment.
    place: Option<RangeSlot>,
    /// What the pages are part of: it is mapped as long as this mapping is, and has a place of its own on the list.
    segment: Option<Arc<Segment>>,
    job_thread: JobThread,
}

// SAFETY: an address range has no ties to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; what is in the range is shared with other processes in any case.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Opens the object `key` and maps `byte_size` bytes from `offset` on (contract/http.md section 4 has the order of
    /// checks).
    pub fn open(key: &[u8], offset: u64, byte_size: u64, job_thread: &JobThread) -> Result<Mapping, RegisterError> {
        let object = open_object(key)?;
        let size = size_of_object(&object).map_err(|_| RegisterError::Unopenable)?;
        if offset.checked_add(byte_size).is_none_or(|end| end > size) {
            return Err(RegisterError::InvalidArgs);
        }
        faults::install().map_err(RegisterError::NoHandler)?;
        let place = RangeSlot::take().ok_or(RegisterError::TooMany)?;
        let (Ok(len), Ok(offset)) = (usize::try_from(byte_size), libc::off_t::try_from(offset)) else {
            return Err(RegisterError::InvalidArgs);
        };
        // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, object.as_raw_fd(), offset)
        };
        match NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED) {
            Some(at) => {
                let end = at.addr().get().saturating_add(len.next_multiple_of(super::page_bytes()));
                place.set(at.addr().get(), end);
                Ok(Mapping { at, len, place: Some(place), segment: None, job_thread: job_thread.clone() })
            }
            None => Err(RegisterError::Unmappable(error_text(io::Error::last_os_error().raw_os_error().unwrap_or(0)))),
        }
    }

    /// A part of a segment; `None` if there is no such part.
    pub fn of_segment(segment: Arc<Segment>, at: usize, len: usize, job_thread: &JobThread) -> Option<Mapping> {
        let at = NonNull::new(segment.start(at, len)?)?;
        Some(Mapping { at, len, place: None, segment: Some(segment), job_thread: job_thread.clone() })
    }

    pub fn start(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_lost(&self) -> bool {
        let of_segment = self.segment.as_ref().is_some_and(|segment| segment.is_lost());
        of_segment || self.place.as_ref().is_some_and(RangeSlot::is_lost)
    }

    /// Unmaps now; this may take milliseconds.
    pub fn close(mut self) -> io::Result<()> {
        match self.place.take() {
            Some(place) => unmap(self.at.addr().get(), self.len, place),
            None => Ok(()),
        }
    }
}

impl Drop for Mapping {
    /// The last holder may be a shard, and large mappings take their time.
    fn drop(&mut self) {
        if let Some(segment) = self.segment.take() {
            self.job_thread.run(move || drop(segment));
        }
        if let Some(place) = self.place.take() {
            let (at, len) = (self.at.addr().get(), self.len);
            self.job_thread.run(move || {
                if let Err(error) = unmap(at, len, place) {
                    tracing::warn!("a shared memory region stays mapped: {error}");
                }
            });
        }
    }
}

fn unmap(at: usize, len: usize, place: RangeSlot) -> io::Result<()> {
    // Before another mapping may get the addresses.
    place.clear();
    // SAFETY: the mapping was made with this length, and its last holder is gone.
    match unsafe { libc::munmap(at as *mut libc::c_void, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open_object(key: &[u8]) -> Result<OwnedFd, RegisterError> {
    let key = CString::new(key).map_err(|_| RegisterError::Unopenable)?;
    // SAFETY: the key is a C string.
    let fd: c_int = unsafe { libc::shm_open(key.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0) };
    match fd {
        ..0 => Err(RegisterError::Unopenable),
        // SAFETY: just opened, and owned by no other code.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn size_of_object(object: &OwnedFd) -> io::Result<u64> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `fstat` writes one value, for which there is room, and zeros are a valid value of it.
    let status = unsafe {
        if libc::fstat(object.as_raw_fd(), status.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        status.assume_init()
    };
    Ok(u64::try_from(status.st_size).unwrap_or(0))
}

/// The text of C's `strerror`.
fn error_text(number: c_int) -> String {
    let mut text: [libc::c_char; 256] = [0; 256];
    // SAFETY: the buffer has the length that is passed, and it was zeroed, so the text ends with a zero in any case.
    let text = unsafe {
        libc::strerror_r(number, text.as_mut_ptr(), text.len() - 1);
        CStr::from_ptr(text.as_ptr())
    };
    text.to_string_lossy().into_owned()
}
