//! An empty library with a name: the smallest 64-bit ELF file that the loader accepts, made without a compiler.

/// `Elf64_Ehdr`, `Elf64_Phdr`, `Elf64_Dyn`, `Elf64_Sym` (System V ABI, ELF-64).
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;
const ENTRY_BYTES: u64 = 16;
const SYMBOL_BYTES: u64 = 24;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// Without it the loader would make all stacks of the process executable.
const PT_GNU_STACK: u32 = 0x6474_e551;
const READ_WRITE: u32 = 6;
/// The largest page of a kernel for the architectures below (64 KiB on Arm): the loader refuses a segment that is
/// aligned to less than a page.
const PAGE: u64 = 0x1_0000;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// The bytes of an empty library whose name is `soname`.
pub fn empty_library(soname: &str) -> Vec<u8> {
    let segments = 3;
    let dynamic = HEADER_BYTES + segments * SEGMENT_BYTES;
    let symbols = dynamic + 7 * ENTRY_BYTES;
    let hash = symbols + SYMBOL_BYTES;
    // One bucket and one chain, both empty, behind their counts.
    let strings = hash + 4 * 4;
    let text = [b"\0", soname.as_bytes(), b"\0"].concat();
    let end = strings + text.len() as u64;

    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    // A shared library of version 1, without an entry point.
    put(&mut bytes, &[&3u16.to_le_bytes(), &MACHINE.to_le_bytes(), &1u32.to_le_bytes(), &0u64.to_le_bytes()]);
    put(&mut bytes, &[&HEADER_BYTES.to_le_bytes(), &0u64.to_le_bytes(), &0u32.to_le_bytes()]);
    for size in [HEADER_BYTES as u16, SEGMENT_BYTES as u16, segments as u16, 64, 0, 0] {
        put(&mut bytes, &[&size.to_le_bytes()]);
    }
    // The loader writes addresses into the dynamic section, so it has to be writable.
    for (kind, offset, size, alignment) in
        [(PT_LOAD, 0, end, PAGE), (PT_DYNAMIC, dynamic, symbols - dynamic, 8), (PT_GNU_STACK, 0, 0, 16)]
    {
        put(&mut bytes, &[&kind.to_le_bytes(), &READ_WRITE.to_le_bytes()]);
        for number in [offset, offset, offset, size, size, alignment] {
            put(&mut bytes, &[&number.to_le_bytes()]);
        }
    }
    for (tag, value) in [
        (DT_SONAME, 1),
        (DT_HASH, hash),
        (DT_STRTAB, strings),
        (DT_SYMTAB, symbols),
        (DT_STRSZ, text.len() as u64),
        (DT_SYMENT, SYMBOL_BYTES),
        (DT_NULL, 0),
    ] {
        put(&mut bytes, &[&tag.to_le_bytes(), &value.to_le_bytes()]);
    }
    bytes.resize((symbols + SYMBOL_BYTES) as usize, 0);
    for number in [1u32, 1, 0, 0] {
        put(&mut bytes, &[&number.to_le_bytes()]);
    }
    bytes.extend_from_slice(&text);
    bytes
}

fn put(bytes: &mut Vec<u8>, fields: &[&[u8]]) {
    fields.iter().for_each(|field| bytes.extend_from_slice(field));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_library_that_needs_no_other() {
        let bytes = empty_library("libtorch.so");
        let scratch = nereid_backend::scratch::Scratch::new("aoti-empty-library");
        let path = scratch.write("libempty.so", &bytes);
        let needed = nereid_backend::needed_libraries::needed_libraries(&path);
        assert_eq!(needed, Some(Vec::new()));
        assert!(bytes.ends_with(b"\0libtorch.so\0"));
        // p_align of the first segment.
        let at = (HEADER_BYTES + SEGMENT_BYTES) as usize;
        assert_eq!(bytes[at - 8..at], 65_536u64.to_le_bytes());
    }
}
