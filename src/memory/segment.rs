//! Memory that this process shares with another, a child or a client: a sealed memfd, mapped by both.
//!
//! It has no name in any file system, so nothing of it is left after any kind of death, and the seals keep the other
//! process from truncating what this process reads. That process may write to every byte at any time; a reader copies
//! the numbers that matter before it checks them. What a client is given ([`Segment::for_guest`]) is emptied when this
//! process needs it no more, whoever still maps it, and a page that the system has no memory for is no end of this
//! process.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};

use super::Slice;
use super::regions::faults::{self, RangeSlot};
use super::regions::page_bytes;

/// See the [module](self).
#[derive(Debug)]
pub struct Segment {
    /// `None`: its client has the only one.
    object: Option<OwnedFd>,
    at: NonNull<u8>,
    len: usize,
    guest: Option<Guest>,
}

/// What a segment for a client has beside the others.
#[derive(Debug)]
struct Guest {
    /// Faults in the mapping are handled.
    range: RangeSlot,
    /// Bytes at the beginning that stay when the rest is emptied.
    kept_bytes: usize,
    /// The word among them that says so.
    emptied_at: usize,
    keeps_all: AtomicBool,
    /// Dropped when this process has no more to do with the memory.
    _place: Box<dyn Any + Send + Sync>,
}

// SAFETY: an address range has no ties to a thread.
unsafe impl Send for Segment {}
// SAFETY: as above; what is in the range is shared with another process in any case.
unsafe impl Sync for Segment {}

impl Segment {
    /// `len` bytes of zeros, which take memory as they are used.
    pub fn create(len: usize) -> io::Result<Segment> {
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the name is a C string, and the descriptor is new and ours.
        let object = unsafe {
            let made = libc::memfd_create(c"nereid".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if made < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(made)
        };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        let raw = std::os::fd::AsRawFd::as_raw_fd(&object);
        // SAFETY: both act on a descriptor of ours and touch no memory.
        if unsafe { libc::ftruncate(raw, size) != 0 || libc::fcntl(raw, libc::F_ADD_SEALS, seals) != 0 } {
            return Err(io::Error::last_os_error());
        }
        Segment::map(object, len)
    }

    /// The same for a client that is not trusted, with the object for it: this process keeps no descriptor. When the
    /// last holder here is gone, all pages behind the first `kept_bytes` are given back, although the client may still
    /// map the object, and `place` is dropped after that. Before that the word at `emptied_at`, among the kept bytes,
    /// becomes 1: a client that finds 0 there behind what it has copied, and an acquire fence, has copied what was
    /// written. Bytes for which the system has no memory, or which a client made unreadable, become zeros of this
    /// process alone ([`Segment::is_lost`]).
    pub fn for_guest(
        len: usize,
        (kept_bytes, emptied_at): (usize, usize),
        place: Box<dyn Any + Send + Sync>,
    ) -> io::Result<(Segment, OwnedFd)> {
        faults::install()?;
        let range = RangeSlot::take().ok_or_else(|| io::Error::other("too many parts of memory are shared"))?;
        let mut segment = Segment::create(len)?;
        let object = segment.object.take().ok_or(io::ErrorKind::NotFound)?;
        segment.guard(range, (kept_bytes, emptied_at), place);
        Ok((segment, object))
    }

    fn guard(&mut self, range: RangeSlot, (kept_bytes, emptied_at): (usize, usize), place: Box<dyn Any + Send + Sync>) {
        let start = self.at.addr().get();
        range.set(start, start.saturating_add(self.len.next_multiple_of(page_bytes())));
        self.guest = Some(Guest { range, kept_bytes, emptied_at, keeps_all: AtomicBool::new(false), _place: place });
    }

    /// Maps an object that another process made: all of its `len` bytes. An object that is shorter, or that its maker
    /// can cut off, is refused.
    pub fn open(object: OwnedFd, len: usize) -> io::Result<Segment> {
        let object = std::fs::File::from(object);
        let is_whole = object.metadata()?.len() >= len as u64;
        let object = OwnedFd::from(object);
        // SAFETY: it reads the seals of a descriptor of ours.
        let seals = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&object), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || !is_whole || len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the object is too short, or can be cut off"));
        }
        Segment::map(object, len)
    }

    fn map(object: OwnedFd, len: usize) -> io::Result<Segment> {
        let raw = std::os::fd::AsRawFd::as_raw_fd(&object);
        // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, raw, 0)
        };
        match NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED) {
            Some(at) => Ok(Segment { object: Some(object), at, len, guest: None }),
            None => Err(io::Error::last_os_error()),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The object, for the other process. An error: that process has the only descriptor of it.
    pub fn object(&self) -> io::Result<BorrowedFd<'_>> {
        self.object.as_ref().map(OwnedFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A segment of a guest is not emptied: this process ends, and the guest may still read.
    pub fn keep_all(&self) {
        if let Some(guest) = &self.guest {
            guest.keeps_all.store(true, Ordering::Release);
        }
    }

    /// A page of it was found to be missing: what is read and written here is seen by no other process any more.
    pub fn is_lost(&self) -> bool {
        self.guest.as_ref().is_some_and(|guest| guest.range.is_lost())
    }

    /// Where `at..at + len` begins, if that lies inside.
    pub(super) fn start(&self, at: usize, len: usize) -> Option<*mut u8> {
        let is_inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        is_inside.then(|| self.at.as_ptr().wrapping_add(at))
    }

    /// False if it does not fit there: then no byte is written.
    #[must_use]
    pub fn write(&self, at: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.start(at, bytes.len()) else { return false };
        // SAFETY: the range lies in the mapping, which no reference of ours points into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Writes the bytes of `slice`, whose memory may be this one; false if it does not fit there: then no byte is
    /// written.
    #[must_use]
    pub fn write_slice(&self, at: usize, slice: &Slice) -> bool {
        let Some(to) = self.start(at, slice.len()) else { return false };
        // SAFETY: the slice keeps what it points to, the target lies in the mapping, and `copy` takes ranges that
        // overlap.
        unsafe { std::ptr::copy(slice.as_ptr(), to, slice.len()) };
        true
    }

    /// Appends a copy of `at..at + len` to `bytes`; false if there is no such range.
    #[must_use]
    pub fn read(&self, at: usize, len: usize, bytes: &mut Vec<u8>) -> bool {
        let Some(from) = self.start(at, len) else { return false };
        bytes.reserve(len);
        // SAFETY: the source lies in the mapping, the target in the vector's spare capacity, which is initialised then.
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(bytes.len()), len);
            bytes.set_len(bytes.len() + len);
        }
        true
    }

    /// A number that both sides read and write.
    ///
    /// # Panics
    /// If `at` is no multiple of 8 inside: positions are ours to choose.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        let start = self.start(at, 8).filter(|_| at.is_multiple_of(8)).expect("words lie where we put them");
        // SAFETY: inside the mapping, aligned as the mapping is, alive as long as `self`, and never written otherwise.
        unsafe { AtomicU64::from_ptr(start.cast()) }
    }

    /// Sets one byte, for a reader that polls it.
    pub fn set_byte(&self, at: usize, value: u8) {
        if let Some(start) = self.start(at, 1) {
            // SAFETY: inside the mapping.
            unsafe { AtomicU8::from_ptr(start) }.store(value, Ordering::Release);
        }
    }

    /// `at..at + len` as bytes of a tensor: `keep` is dropped with the last slice of them. `None`: there is no such
    /// range.
    pub fn slice(self: &Arc<Self>, at: usize, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Option<Slice> {
        let start = self.start(at, len)?;
        let owner = Arc::new(SliceOwner { _keep: keep, _segment: Arc::clone(self) });
        // SAFETY: the range lies in the mapping, which the owner keeps.
        Some(unsafe { Slice::in_segment(start, len, owner) })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let at: *mut libc::c_void = self.at.as_ptr().cast();
        if let Some(guest) = &self.guest {
            let kept = guest.kept_bytes.next_multiple_of(page_bytes()).min(self.len);
            if !guest.keeps_all.load(Ordering::Acquire) {
                self.word(guest.emptied_at).store(1, Ordering::Release);
                // Whoever sees an empty page sees the word too.
                fence(Ordering::SeqCst);
                // SAFETY: the range lies in the mapping, which is ours, and nothing refers to it any more. An error,
                // for example because a page was lost, leaves pages to the client that maps them.
                unsafe { libc::madvise(at.wrapping_byte_add(kept), self.len - kept, libc::MADV_REMOVE) };
            }
            // Before another mapping may get the addresses.
            guest.range.clear();
        }
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { libc::munmap(at, self.len) };
    }
}

/// What keeps a slice's bytes: the range is given back before the mapping can go.
pub(super) struct SliceOwner {
    _keep: Arc<dyn Any + Send + Sync>,
    _segment: Arc<Segment>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_and_read_inside_only() {
        let segment = Segment::create(4096).unwrap();
        assert!(segment.write(4090, b"abcdef") && !segment.write(4091, b"abcdef") && !segment.write(usize::MAX, b"a"));
        let mut bytes = b">".to_vec();
        assert!(segment.read(4090, 6, &mut bytes) && !segment.read(4090, 7, &mut bytes));
        assert!(!segment.read(usize::MAX, 2, &mut bytes));
        assert_eq!(bytes, b">abcdef");
        segment.word(8).store(7, Ordering::Relaxed);
        segment.set_byte(9, 1);
        assert_eq!(segment.word(8).load(Ordering::Relaxed), 0x107);
    }

    #[test]
    fn it_cannot_be_cut_off() {
        let segment = Segment::create(8192).unwrap();
        let file = std::fs::File::from(segment.object().unwrap().try_clone_to_owned().unwrap());
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        assert_eq!(file.metadata().unwrap().len(), 8192);
    }

    #[test]
    fn the_other_process_maps_the_same_bytes() {
        let segment = Segment::create(8192).unwrap();
        let descriptor = || segment.object().unwrap().try_clone_to_owned().unwrap();
        let theirs = Segment::open(descriptor(), 8192).unwrap();
        assert!(theirs.write(8000, b"here"));
        let mut bytes = Vec::new();
        assert!(segment.read(8000, 4, &mut bytes) && bytes == b"here");
        assert!(Segment::open(descriptor(), 8193).is_err() && Segment::open(descriptor(), 0).is_err());
        let unsealed = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Segment::open(unsealed.into(), 16).is_err());
    }

    /// Sets its flag when it is dropped.
    struct Place(Arc<AtomicBool>);

    impl Drop for Place {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn what_a_guest_keeps_is_emptied_when_its_host_has_left() {
        let is_free = Arc::new(AtomicBool::new(false));
        let len = 4 * page_bytes();
        let place = Box::new(Place(Arc::clone(&is_free)));
        let (segment, object) = Segment::for_guest(len, (page_bytes(), 64), place).unwrap();
        assert!(segment.object().is_err(), "the guest has the only descriptor");
        let theirs = Segment::open(object, len).unwrap();
        let segment = Arc::new(segment);
        for at in (0..len).step_by(page_bytes()) {
            assert!(theirs.write(at, b"guest") && segment.write(at + 8, b"host"));
        }
        let slice = segment.slice(2 * page_bytes(), 5, Arc::new(())).unwrap();
        drop(segment);
        assert!(&*slice == b"guest" && !is_free.load(Ordering::SeqCst), "a tensor lies there");
        assert_eq!(theirs.word(64).load(Ordering::Acquire), 0);
        drop(slice);
        assert!(is_free.load(Ordering::SeqCst));
        assert_eq!(theirs.word(64).load(Ordering::Acquire), 1, "the guest can see that it is empty");
        for at in (0..len).step_by(page_bytes()) {
            let mut bytes = Vec::new();
            assert!(theirs.read(at, 5, &mut bytes));
            assert_eq!(bytes == b"guest", at == 0, "the first page stays: {at}");
        }
    }

    #[test]
    fn what_a_guest_may_still_read_is_not_emptied() {
        let (segment, object) = Segment::for_guest(page_bytes(), (0, 64), Box::new(())).unwrap();
        assert!(segment.write(0, b"farewell"));
        segment.keep_all();
        drop(segment);
        let (mut bytes, theirs) = (Vec::new(), Segment::open(object, page_bytes()).unwrap());
        assert!(theirs.read(0, 8, &mut bytes) && bytes == b"farewell");
        assert_eq!(theirs.word(64).load(Ordering::Acquire), 0, "nor is it said");
    }

    /// Pages behind the end of an object fault as those do for which there is no memory.
    #[test]
    fn a_missing_page_of_a_guest_is_noticed_and_read_as_zeros() {
        let len = 2 * page_bytes();
        // SAFETY: the name is a C string, and the descriptor is new and ours.
        let unsealed = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"cut".as_ptr(), libc::MFD_CLOEXEC)) };
        let file = std::fs::File::from(unsealed.try_clone().unwrap());
        file.set_len(len as u64).unwrap();
        let mut segment = Segment::map(unsealed, len).unwrap();
        faults::install().unwrap();
        segment.guard(RangeSlot::take().unwrap(), (0, 64), Box::new(()));
        assert!(segment.write(0, b"first") && segment.write(page_bytes(), b"second") && !segment.is_lost());
        file.set_len(page_bytes() as u64).unwrap();
        let mut bytes = Vec::new();
        assert!(segment.read(page_bytes(), 6, &mut bytes) && bytes == [0; 6] && segment.is_lost());
        bytes.clear();
        assert!(segment.write(page_bytes(), b"alone") && segment.read(0, 5, &mut bytes) && bytes == b"first");
    }

    #[test]
    fn a_slice_keeps_the_mapping_and_its_owner() {
        static GONE: AtomicBool = AtomicBool::new(false);
        struct Range;
        impl Drop for Range {
            fn drop(&mut self) {
                GONE.store(true, Ordering::SeqCst);
            }
        }
        let segment = Arc::new(Segment::create(4096).unwrap());
        assert!(segment.write(64, b"tensor"));
        assert!(segment.slice(4000, 97, Arc::new(())).is_none());
        let slice = segment.slice(64, 6, Arc::new(Range)).unwrap();
        drop(segment);
        assert!(&*slice == b"tensor" && !GONE.load(Ordering::SeqCst));
        drop(slice);
        assert!(GONE.load(Ordering::SeqCst));
    }
}
