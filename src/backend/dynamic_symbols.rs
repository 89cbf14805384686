//! Reads which functions a library exports, and which it expects from the program that opens it. The library is not
//! opened, so none of its code runs.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use crate::needed_libraries::{HEADER_BYTES, read, u16_at, u64_at};

/// `Elf64_Shdr`, `Elf64_Sym` (System V ABI, ELF-64).
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const SHT_DYNSYM: u32 = 11;
const STB_WEAK: u8 = 2;
/// The most bytes of symbols, and of their names, that are read.
const TABLE_BYTES_MAX: u64 = 1 << 26;

/// The machine of this program, as a file's header names it.
#[cfg(target_arch = "x86_64")]
pub const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
pub const MACHINE: u16 = 183;

/// The symbols that the loader would bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicSymbols {
    /// The kind of processor that the library is for; compare with [`MACHINE`].
    pub machine: u16,
    pub exported: BTreeSet<String>,
    /// Without those that may be absent.
    pub imported: BTreeSet<String>,
}

/// None if the file is no 64-bit little-endian ELF file with such symbols. The file is not trusted: any inconsistency
/// ends the search.
pub fn dynamic_symbols(path: &Path) -> Option<DynamicSymbols> {
    let file = File::open(path).ok()?;
    let header = read(&file, 0, HEADER_BYTES as u64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") || u16_at(&header, 58)? as usize != SECTION_BYTES {
        return None;
    }
    let count = u64::from(u16_at(&header, 60)?);
    let table = read(&file, u64_at(&header, 40)?, count * SECTION_BYTES as u64)?;
    let sections: Vec<&[u8]> = table.chunks_exact(SECTION_BYTES).collect();
    let symbols = sections.iter().find(|section| u32_at(section, 4) == Some(SHT_DYNSYM))?;
    let strings = sections.get(usize::try_from(u32_at(symbols, 40)?).ok()?)?;
    let part = |section: &[u8]| {
        let bytes = u64_at(section, 32).filter(|bytes| *bytes <= TABLE_BYTES_MAX)?;
        read(&file, u64_at(section, 24)?, bytes)
    };
    let (symbols, strings) = (part(symbols)?, part(strings)?);
    let machine = u16_at(&header, 18)?;
    let mut found = DynamicSymbols { machine, exported: BTreeSet::new(), imported: BTreeSet::new() };
    // Names may overlap, so together they can be much longer than their table.
    let mut left = TABLE_BYTES_MAX as usize;
    for symbol in symbols.chunks_exact(SYMBOL_BYTES) {
        let name = strings.get(usize::try_from(u32_at(symbol, 0)?).ok()?..)?;
        let name = name.get(..name.len().min(left))?;
        let name = name.get(..name.iter().position(|byte| *byte == 0)?)?;
        left -= name.len();
        let is_weak = symbol.get(4)? >> 4 == STB_WEAK;
        let is_undefined = u16_at(symbol, 6)? == 0;
        let kind = if is_undefined { &mut found.imported } else { &mut found.exported };
        let may_be_absent = is_undefined && is_weak;
        if !may_be_absent && !name.is_empty() {
            kind.insert(String::from_utf8_lossy(name).into_owned());
        }
    }
    Some(found)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_symbols_of_this_program_are_found() {
        let program = std::env::current_exe().unwrap();
        let found = dynamic_symbols(&program).unwrap();
        assert_eq!(found.machine, MACHINE);
        assert!(found.imported.contains("malloc"), "{:?}", found.imported);
    }

    #[test]
    fn what_is_no_library_or_is_damaged_has_none() {
        let directory = std::env::temp_dir().join(format!("symbols-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("file");
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut torn = program[..4096].to_vec();
        for bytes in [&b""[..], b"text", &program[..64], &torn.clone()] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(dynamic_symbols(&path), None);
        }
        // The table of sections lies behind the largest offset.
        torn[40..48].fill(0xff);
        std::fs::write(&path, &torn).unwrap();
        assert_eq!(dynamic_symbols(&path), None);
        assert_eq!(dynamic_symbols(&directory), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// A thousand names, each of them the end of the one before: together a gigabyte.
    #[test]
    fn names_that_overlap_are_no_longer_than_a_table() {
        let mut strings = vec![b'a'; 1 << 20];
        strings.push(0);
        let symbols = |count: u32| -> Vec<u8> {
            let symbol = |name: u32| {
                let mut symbol = [0; SYMBOL_BYTES];
                symbol[..4].copy_from_slice(&name.to_le_bytes());
                symbol[6] = 1;
                symbol
            };
            (0..count).flat_map(symbol).collect()
        };
        let file = |symbols: &[u8]| {
            let section = |kind: u32, offset: usize, bytes: usize| {
                let mut section = [0; SECTION_BYTES];
                section[4..8].copy_from_slice(&kind.to_le_bytes());
                section[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
                section[32..40].copy_from_slice(&(bytes as u64).to_le_bytes());
                section
            };
            let mut header = [0; HEADER_BYTES];
            header[..6].copy_from_slice(b"\x7fELF\x02\x01");
            header[40] = HEADER_BYTES as u8;
            header[58] = SECTION_BYTES as u8;
            header[60] = 2;
            let first = HEADER_BYTES + 2 * SECTION_BYTES;
            // The symbols name their strings by the number of a section, which is 0.
            let sections =
                [section(3, first, strings.len()), section(SHT_DYNSYM, first + strings.len(), symbols.len())];
            [&header[..], sections.as_flattened(), &strings, symbols].concat()
        };
        let path = std::env::temp_dir().join(format!("overlapping-symbols-{}", std::process::id()));
        std::fs::write(&path, file(&symbols(3))).unwrap();
        assert_eq!(dynamic_symbols(&path).unwrap().exported.len(), 3);
        std::fs::write(&path, file(&symbols(1000))).unwrap();
        assert_eq!(dynamic_symbols(&path), None);
        std::fs::remove_file(&path).unwrap();
    }
}
