//! Checks that the file of a library is complete.
//!
//! The loader maps and reads the parts that the program headers list. In a file that is cut off, by a copy that is
//! under way or a full disk, that ends the process with SIGBUS. All other faults the loader detects and reports itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The header of a 64-bit file, and the fields of it that are read: offset, size and number of the program headers.
const HEAD: usize = 64;
const MAGIC: &[u8] = b"\x7fELF";
const CLASS: usize = 4;
const CLASS_64: u8 = 2;
const ORDER: usize = 5;
const LITTLE_ENDIAN: u8 = 1;
const TABLE: usize = 32;
const ENTRY_SIZE: usize = 54;
const ENTRY_COUNT: usize = 56;

/// A program header: its type, and the part of the file that it maps.
const ENTRY: usize = 56;
const LOAD: u32 = 1;
const OFFSET: usize = 8;
const FILE_SIZE: usize = 32;

/// Checks that the file is complete; the error states what is missing. A file of another kind passes: the loader
/// reports it.
pub fn check_whole(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let cannot = |error: io::Error| format!("{shown}: {error}");
    let metadata = fs::metadata(path).map_err(cannot)?;
    if metadata.is_dir() {
        return Ok(());
    }
    if !metadata.is_file() {
        // Opening a pipe may block for ever, here and in the loader.
        return Err(format!("{shown}: this is no file"));
    }
    check_whole_file(&File::open(path).map_err(cannot)?).map_err(|text| format!("{shown}: {text}"))
}

/// The same for an open file, without its path in the error.
pub fn check_whole_file(file: &File) -> Result<(), String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let cut = |what: &str| format!("the file is cut off: {what} lies behind its end");
    let mut head = [0; HEAD];
    if file.read_exact_at(&mut head, 0).is_err() {
        return Ok(());
    }
    if !head.starts_with(MAGIC) || head[CLASS] != CLASS_64 || head[ORDER] != LITTLE_ENDIAN {
        return Ok(());
    }
    let (table, size, count) = (u64_at(&head, TABLE), u16_at(&head, ENTRY_SIZE), u16_at(&head, ENTRY_COUNT));
    if usize::from(size) != ENTRY {
        return Ok(());
    }
    for index in 0..u64::from(count) {
        let mut entry = [0; ENTRY];
        let at = index.checked_mul(ENTRY as u64).and_then(|offset| table.checked_add(offset));
        let is_there = at.is_some_and(|at| file.read_exact_at(&mut entry, at).is_ok());
        if !is_there {
            return Err(cut("the table of its segments"));
        }
        let end = u64_at(&entry, OFFSET).checked_add(u64_at(&entry, FILE_SIZE));
        if u32_at(&entry, 0) == LOAD && end.is_none_or(|end| end > length) {
            return Err(cut("a segment"));
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every process has such a file: its own program.
    #[test]
    fn a_file_is_whole_or_is_told_where_it_ends() {
        let whole = fs::read("/proc/self/exe").unwrap();
        let path = std::env::temp_dir().join(format!("nereid-elf-{}", std::process::id()));
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            check_whole(&path).map_err(|text| text.replace(&path.display().to_string(), "<file>"))
        };
        let segment = Err("<file>: the file is cut off: a segment lies behind its end".to_owned());
        let table = Err("<file>: the file is cut off: the table of its segments lies behind its end".to_owned());
        assert_eq!(check_whole(Path::new("/proc/self/exe")), Ok(()));
        assert_eq!(check(&whole[..4096]), segment);
        assert_eq!(check(&whole[..HEAD + 10]), table);
        // No library, so the loader reports it.
        for bytes in [&whole[..HEAD - 1], b"", &[b'x'; 500][..]] {
            assert_eq!(check(bytes), Ok(()));
        }
        let mut absurd = whole[..4096].to_vec();
        absurd[TABLE..TABLE + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(check(&absurd), table);
        fs::remove_file(&path).unwrap();
        assert!(check_whole(&path).unwrap_err().contains("No such file"));
        assert_eq!(check_whole(&std::env::temp_dir()), Ok(()), "a directory");
        assert_eq!(check_whole(Path::new("/dev/null")), Err("/dev/null: this is no file".to_owned()));
    }
}
