//! zip archives, from their list of members at the end: stored and deflated, with zip64 and Unix modes (APPNOTE 6.3).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::tree::Tree;
use super::{ArchiveError, shown};

const END: &[u8] = b"PK\x05\x06";
const END_BYTES: u64 = 22;
const END_64: &[u8] = b"PK\x06\x06";
const END_64_BYTES: u64 = 56;
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const LOCATOR_64_BYTES: u64 = 20;
const ENTRY: &[u8] = b"PK\x01\x02";
const ENTRY_BYTES: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: u64 = 30;
/// The end may be followed by a remark.
const REMARK_BYTES_MAX: u64 = u16::MAX as u64;
/// Of the list of members; an environment of a million files needs some 150 MB.
const LIST_BYTES_MAX: u64 = 1 << 28;
const TARGET_BYTES_MAX: u64 = 4096;
const ENCRYPTED: u16 = 1;
const UNIX: u8 = 3;

const DAMAGED: ArchiveError = ArchiveError::Damaged("its list of members makes no sense");

/// Reads all members.
pub fn read(file: &File, tree: &mut Tree) -> Result<(), ArchiveError> {
    let (mut at, bytes) = list_of(file)?;
    if bytes > LIST_BYTES_MAX {
        return Err(DAMAGED);
    }
    let mut list = Vec::new();
    Part { file, at, left: bytes }.read_to_end(&mut list)?;
    if (list.len() as u64) < bytes {
        return Err(ArchiveError::CutOff);
    }
    at = 0;
    while let Some(rest) = list.get(at as usize..).filter(|rest| !rest.is_empty()) {
        let entry = Entry::read(rest).ok_or(DAMAGED)?;
        entry.unpack(file, tree)?;
        at += entry.bytes as u64;
    }
    Ok(())
}

/// Where the list of members is, and how long.
fn list_of(file: &File) -> Result<(u64, u64), ArchiveError> {
    let length = file.metadata()?.len();
    let tail_bytes = length.min(END_BYTES + REMARK_BYTES_MAX);
    let tail_at = length - tail_bytes;
    let mut tail = Vec::new();
    Part { file, at: tail_at, left: tail_bytes }.read_to_end(&mut tail)?;
    let found = memchr::memmem::rfind(&tail, END).ok_or(ArchiveError::CutOff)?;
    let end = tail.get(found..).filter(|end| end.len() as u64 >= END_BYTES).ok_or(ArchiveError::CutOff)?;
    let (bytes, at) = (u64::from(u32_at(end, 12)), u64::from(u32_at(end, 16)));
    let end_at = tail_at + found as u64;
    if bytes != u64::from(u32::MAX) && at != u64::from(u32::MAX) && u16_at(end, 10) != u16::MAX {
        return Ok((at, bytes));
    }
    let Some(locator_at) = end_at.checked_sub(LOCATOR_64_BYTES) else { return Ok((at, bytes)) };
    let locator = exact(file, locator_at, LOCATOR_64_BYTES)?;
    if !locator.starts_with(LOCATOR_64) {
        return Ok((at, bytes));
    }
    let end = exact(file, u64_at(&locator, 8), END_64_BYTES)?;
    if !end.starts_with(END_64) {
        return Err(DAMAGED);
    }
    Ok((u64_at(&end, 48), u64_at(&end, 40)))
}

struct Entry {
    /// Of the entry itself in the list.
    bytes: usize,
    name: Vec<u8>,
    mode: u32,
    modified: Option<SystemTime>,
    flags: u16,
    method: u16,
    sum: u32,
    packed_bytes: u64,
    plain_bytes: u64,
    header_at: u64,
}

impl Entry {
    fn read(list: &[u8]) -> Option<Entry> {
        let fixed = list.get(..ENTRY_BYTES).filter(|fixed| fixed.starts_with(ENTRY))?;
        let [name, extra, remark] = [28, 30, 32].map(|at| usize::from(u16_at(fixed, at)));
        let bytes = ENTRY_BYTES + name + extra + remark;
        list.get(..bytes)?;
        let extras = list.get(ENTRY_BYTES + name..ENTRY_BYTES + name + extra)?;
        let name = list.get(ENTRY_BYTES..ENTRY_BYTES + name)?.to_owned();
        let mode = if fixed[5] == UNIX { u32_at(fixed, 38) >> 16 } else { 0 };
        let mut entry = Entry {
            bytes,
            name,
            mode,
            modified: None,
            flags: u16_at(fixed, 8),
            method: u16_at(fixed, 10),
            sum: u32_at(fixed, 16),
            packed_bytes: u64::from(u32_at(fixed, 20)),
            plain_bytes: u64::from(u32_at(fixed, 24)),
            header_at: u64::from(u32_at(fixed, 42)),
        };
        entry.take_extras(extras)?;
        Some(entry)
    }

    /// Sizes that do not fit, and the time.
    fn take_extras(&mut self, mut extras: &[u8]) -> Option<()> {
        while extras.len() >= 4 {
            let (kind, length) = (u16_at(extras, 0), usize::from(u16_at(extras, 2)));
            let data = extras.get(4..4 + length)?;
            match kind {
                1 => {
                    let mut rest = data;
                    for field in [&mut self.plain_bytes, &mut self.packed_bytes, &mut self.header_at] {
                        if *field == u64::from(u32::MAX) {
                            let (value, behind) = rest.split_first_chunk()?;
                            *field = u64::from_le_bytes(*value);
                            rest = behind;
                        }
                    }
                }
                0x5455 if data.first().is_some_and(|flags| flags & 1 == 1) && data.len() >= 5 => {
                    let since = Duration::from_secs(u64::from(u32_at(data, 1)));
                    self.modified = SystemTime::UNIX_EPOCH.checked_add(since);
                }
                _ => {}
            }
            extras = extras.get(4 + length..)?;
        }
        Some(())
    }

    fn unpack(&self, file: &File, tree: &mut Tree) -> Result<(), ArchiveError> {
        let mode = if self.mode & 0o777 == 0 { 0o644 } else { self.mode };
        if self.name.ends_with(b"/") {
            let mode = if self.mode & 0o777 == 0 { 0o755 } else { self.mode };
            return tree.directory(&self.name, mode);
        }
        if self.flags & ENCRYPTED != 0 {
            return Err(ArchiveError::Unfit(shown(&self.name), "encrypted"));
        }
        let local = exact(file, self.header_at, LOCAL_BYTES)?;
        if !local.starts_with(LOCAL) {
            return Err(DAMAGED);
        }
        let lengths = LOCAL_BYTES + u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        let at = self.header_at.checked_add(lengths).ok_or(DAMAGED)?;
        let packed = Part { file, at, left: self.packed_bytes };
        match self.method {
            0 => self.write(packed, mode, tree),
            8 => self.write(DeflateDecoder::new(io::BufReader::new(packed)), mode, tree),
            _ => Err(ArchiveError::Unfit(shown(&self.name), "compressed in an uncommon way")),
        }
    }

    fn write(&self, contents: impl Read, mode: u32, tree: &mut Tree) -> Result<(), ArchiveError> {
        // Not more than was announced.
        let mut summed = Summed { inner: contents.take(self.plain_bytes), sum: Crc::new() };
        match self.mode & 0o170_000 {
            0o120_000 => {
                let mut target = Vec::new();
                (&mut summed).take(TARGET_BYTES_MAX).read_to_end(&mut target)?;
                tree.symlink(&self.name, &target)?;
            }
            0 | 0o100_000 => tree.file(&self.name, mode, self.modified, &mut summed)?,
            _ => return Err(ArchiveError::Unfit(shown(&self.name), "neither file nor directory nor link")),
        }
        if u64::from(summed.sum.amount()) != self.plain_bytes & u64::from(u32::MAX) || summed.sum.sum() != self.sum {
            return Err(ArchiveError::Damaged("the sum of a member is wrong"));
        }
        Ok(())
    }
}

struct Summed<R> {
    inner: R,
    sum: Crc,
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.sum.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// A range of the file, as far as that goes.
struct Part<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(buffer.get_mut(..most).unwrap_or_default(), self.at)?;
        self.at = self.at.saturating_add(count as u64);
        self.left -= count as u64;
        Ok(count)
    }
}

fn exact(file: &File, at: u64, bytes: u64) -> Result<Vec<u8>, ArchiveError> {
    let mut read = Vec::new();
    Part { file, at, left: bytes }.read_to_end(&mut read)?;
    if read.len() as u64 == bytes { Ok(read) } else { Err(ArchiveError::CutOff) }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}
