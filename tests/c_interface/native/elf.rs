//! Reads what a library exports: the dynamic symbols of a 64-bit ELF file, and its soname.

use std::collections::BTreeSet;
use std::path::Path;

const DYNAMIC_SECTION: u32 = 6;
const DYNAMIC_SYMBOLS: u32 = 11;
const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const SONAME: u64 = 14;

#[derive(Debug, Default)]
pub struct Exports {
    /// Names of symbols that are defined and visible.
    pub symbols: BTreeSet<String>,
    pub soname: Option<String>,
}

struct Section {
    kind: u32,
    link: usize,
    content: Vec<u8>,
}

/// Panics with the path on anything that is no such file.
pub fn exports(path: &Path) -> Exports {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    assert!(bytes.starts_with(b"\x7fELF\x02\x01"), "{path:?} is no 64-bit little-endian ELF file");
    let sections = sections(&bytes);
    let mut exports = Exports::default();
    for section in &sections {
        let texts = sections.get(section.link).map_or(&[][..], |texts| &texts.content);
        match section.kind {
            DYNAMIC_SYMBOLS => {
                let symbols = section.content.chunks_exact(SYMBOL_BYTES);
                let defined = symbols.filter(|symbol| half(symbol, 6) != 0 && symbol[4] >> 4 != 0);
                exports.symbols.extend(defined.map(|symbol| text(texts, word(symbol, 0) as usize)));
            }
            DYNAMIC_SECTION => {
                let mut entries = section.content.chunks_exact(16);
                let soname = entries.find(|entry| long(entry, 0) == SONAME);
                exports.soname = soname.map(|entry| text(texts, long(entry, 8) as usize));
            }
            _ => {}
        }
    }
    exports
}

fn sections(bytes: &[u8]) -> Vec<Section> {
    let (start, count) = (long(bytes, 40) as usize, half(bytes, 60) as usize);
    let headers = bytes[start..].chunks_exact(SECTION_HEADER_BYTES).take(count);
    let section = |header: &[u8]| {
        let (kind, at, size) = (word(header, 4), long(header, 24) as usize, long(header, 32) as usize);
        let content = bytes.get(at..at + size).unwrap_or_default().to_vec();
        Section { kind, link: word(header, 40) as usize, content }
    };
    headers.map(section).collect()
}

fn text(texts: &[u8], at: usize) -> String {
    let bytes: Vec<u8> = texts[at..].iter().copied().take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
