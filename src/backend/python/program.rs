//! The worker's program: an archive of Python modules in memory, which an interpreter runs as it runs any zip file.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

macro_rules! modules {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("worker/", $path)))),*]
    };
}

/// Paths in the archive, and what is there.
const MODULES: [(&str, &str); 22] = modules![
    "__main__.py",
    "c_python_backend_utils.py",
    "triton_python_backend_utils.py",
    "nereid_python/__init__.py",
    "nereid_python/calls.py",
    "nereid_python/config.py",
    "nereid_python/control.py",
    "nereid_python/dlpack.py",
    "nereid_python/errors.py",
    "nereid_python/kinds.py",
    "nereid_python/logger.py",
    "nereid_python/loop.py",
    "nereid_python/metrics.py",
    "nereid_python/parameters.py",
    "nereid_python/request.py",
    "nereid_python/response.py",
    "nereid_python/sender.py",
    "nereid_python/strings.py",
    "nereid_python/tensor.py",
    "nereid_python/trace.py",
    "nereid_python/types.py",
    "nereid_python/wire.py",
];

/// The archive, one for the process.
pub fn archive() -> io::Result<&'static OwnedFd> {
    static ARCHIVE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(archive) = ARCHIVE.get() {
        return Ok(archive);
    }
    let object = memfd_create(c"nereid-worker.zip", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(object);
    file.write_all(&zip(&MODULES))?;
    let object = OwnedFd::from(file);
    fcntl_add_seals(&object, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(ARCHIVE.get_or_init(|| object))
}

/// Stored, not compressed (PKWARE's APPNOTE, sections 4.3.7, 4.3.12 and 4.3.16).
fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (path, text) in files {
        let offset = archive.len() as u32;
        let mut crc = flate2::Crc::new();
        crc.update(text.as_bytes());
        let size = (text.len() as u32).to_le_bytes();
        // Version 2.0, names in UTF-8, stored, the first of January 1980.
        let mut shared = [20u16, 0x0800, 0, 0, 0x0021].map(u16::to_le_bytes).concat();
        shared.extend_from_slice(&crc.sum().to_le_bytes());
        shared.extend_from_slice(&size);
        shared.extend_from_slice(&size);
        shared.extend_from_slice(&(path.len() as u16).to_le_bytes());
        shared.extend_from_slice(&[0; 2]);
        archive.extend_from_slice(b"PK\x03\x04");
        archive.extend_from_slice(&shared);
        archive.extend_from_slice(path.as_bytes());
        archive.extend_from_slice(text.as_bytes());
        directory.extend_from_slice(b"PK\x01\x02\x14\0");
        directory.extend_from_slice(&shared);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(path.as_bytes());
    }
    let (start, len, count) = (archive.len() as u32, directory.len() as u32, files.len() as u16);
    archive.append(&mut directory);
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    archive.extend_from_slice(&count.to_le_bytes());
    archive.extend_from_slice(&count.to_le_bytes());
    archive.extend_from_slice(&len.to_le_bytes());
    archive.extend_from_slice(&start.to_le_bytes());
    archive.extend_from_slice(&[0; 2]);
    archive
}
