//! Reads which libraries a program or a library needs, from the dynamic section of its file.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `Elf64_Ehdr`, `Elf64_Phdr`, `Elf64_Dyn`: the offsets of the fields that are read here (System V ABI, ELF-64).
pub const HEADER_BYTES: usize = 64;
pub const SEGMENT_BYTES: usize = 56;
const ENTRY_BYTES: usize = 16;
const SEGMENTS_MAX: usize = 1024;
const DYNAMIC_BYTES_MAX: u64 = 1 << 20;
const STRINGS_BYTES_MAX: u64 = 1 << 26;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// The longest file name.
pub const NAME_BYTES_MAX: usize = 255;

/// The names of the libraries that a program or library needs; None if the file is neither.
pub fn needed_libraries(path: &Path) -> Option<Vec<String>> {
    Some(needed(path)?.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned()).collect())
}

/// The names of the libraries that a 64-bit little-endian ELF file needs; None if it is no such file. The file is not
/// trusted: any inconsistency ends the search.
pub fn needed(path: &Path) -> Option<BTreeSet<Vec<u8>>> {
    let file = File::open(path).ok()?;
    let header = read(&file, 0, HEADER_BYTES as u64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") || u16_at(&header, 54)? as usize != SEGMENT_BYTES {
        return None;
    }
    let count = u16_at(&header, 56)? as usize;
    if count > SEGMENTS_MAX {
        return None;
    }
    let table = read(&file, u64_at(&header, 32)?, (count * SEGMENT_BYTES) as u64)?;
    let segments: Vec<Segment> = table.chunks_exact(SEGMENT_BYTES).filter_map(Segment::read).collect();
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    if dynamic.bytes > DYNAMIC_BYTES_MAX {
        return None;
    }
    let entries = read(&file, dynamic.offset, dynamic.bytes)?;
    let entries: Vec<(u64, u64)> =
        entries.chunks_exact(ENTRY_BYTES).filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?))).collect();
    let value = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let (address, size) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    if size > STRINGS_BYTES_MAX {
        return None;
    }
    let strings = segments.iter().find_map(|segment| segment.offset_of(address))?;
    let names = entries.iter().filter(|(tag, at)| *tag == DT_NEEDED && *at < size);
    Some(names.filter_map(|(_, at)| name_at(&file, strings.checked_add(*at)?, size - at)).collect())
}

/// The text at `offset`, which ends with a NUL within `bytes`.
fn name_at(file: &File, offset: u64, bytes: u64) -> Option<Vec<u8>> {
    let mut name = read(file, offset, bytes.min(NAME_BYTES_MAX as u64 + 1))?;
    let end = name.iter().position(|&byte| byte == 0)?;
    name.truncate(end);
    Some(name)
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Segment {
    fn read(header: &[u8]) -> Option<Segment> {
        let kind = u32::from_le_bytes(header.get(..4)?.try_into().ok()?);
        Some(Segment { kind, offset: u64_at(header, 8)?, address: u64_at(header, 16)?, bytes: u64_at(header, 32)? })
    }

    /// The offset in the file of the byte that is loaded at `address`.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address).filter(|within| *within < self.bytes)?;
        if self.kind == PT_LOAD { self.offset.checked_add(within) } else { None }
    }
}

/// Reads exactly `bytes` bytes, or none.
pub(crate) fn read(file: &File, offset: u64, bytes: u64) -> Option<Vec<u8>> {
    let mut found = vec![0; usize::try_from(bytes).ok()?];
    file.read_exact_at(&mut found, offset).ok()?;
    Some(found)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
