//! Shared memory objects and registries for tests, of this crate and of those above it.

use std::ffi::CString;
use std::sync::atomic::AtomicU32;

use super::*;

/// An object of this process's own; its name goes with it.
pub struct Object {
    key: CString,
    fd: std::os::fd::OwnedFd,
}

impl Object {
    pub fn new(bytes: &[u8]) -> Object {
        use std::os::fd::FromRawFd;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let key = format!("/nereid-unit-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let key = CString::new(key).unwrap();
        // SAFETY: the key is a C string, and the descriptor is new.
        let fd = unsafe {
            let fd = libc::shm_open(key.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            std::os::fd::OwnedFd::from_raw_fd(fd)
        };
        let object = Object { key, fd };
        object.file().set_len(bytes.len() as u64).unwrap();
        object.write(0, bytes);
        object
    }

    fn file(&self) -> std::fs::File {
        std::fs::File::from(self.fd.try_clone().unwrap())
    }

    pub fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        std::os::unix::fs::FileExt::write_all_at(&self.file(), bytes, at).unwrap();
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        std::os::unix::fs::FileExt::read_exact_at(&self.file(), &mut bytes, at).unwrap();
        bytes
    }

    pub fn truncate(&self, len: u64) {
        self.file().set_len(len).unwrap();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the key is a C string.
        unsafe { libc::shm_unlink(self.key.as_ptr()) };
    }
}

/// A registry with one region of that name over all of `object`.
pub fn registry(name: &[u8], object: &Object, len: u64) -> Regions {
    let regions = Regions::default();
    regions.register(name, object.key(), 0, len).unwrap();
    regions
}
