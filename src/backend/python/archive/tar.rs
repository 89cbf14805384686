//! tar archives: POSIX ustar with pax extensions, and GNU's long names and large numbers (POSIX.1-2024, pax,
//! "ustar Interchange Format").

use std::io::{self, Read};
use std::time::{Duration, SystemTime};

use super::tree::Tree;
use super::{ArchiveError, read_whole, shown};

const BLOCK: usize = 512;
/// The longest name in blocks of its own, and the most bytes of pax records.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;

/// The attributes of the next member that extensions contain.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    modified_secs: Option<u64>,
    is_sparse: bool,
}

/// Reads all members, and the input to its end, so that a decompressor checks all of it.
pub fn read(input: &mut impl Read, tree: &mut Tree) -> Result<(), ArchiveError> {
    let mut block = [0; BLOCK];
    let mut extension = Extension::default();
    let mut is_first = true;
    while read_whole(input, &mut block)? {
        if block.iter().all(|&byte| byte == 0) {
            if is_first {
                return Err(ArchiveError::Unknown);
            }
            io::copy(input, &mut io::sink())?;
            return Ok(());
        }
        let header = Header(&block);
        if !header.is_sound() {
            return Err(if is_first {
                ArchiveError::Unknown
            } else {
                ArchiveError::Damaged("a header's sum is wrong")
            });
        }
        is_first = false;
        if header.extends(input, &mut extension)? {
            continue;
        }
        member(header, input, tree, &std::mem::take(&mut extension))?;
    }
    // Some packers omit the end mark, but an empty file is no archive.
    if is_first { Err(ArchiveError::Unknown) } else { Ok(()) }
}

fn member(header: Header, input: &mut impl Read, tree: &mut Tree, more: &Extension) -> Result<(), ArchiveError> {
    let name = more.name.clone().unwrap_or_else(|| header.name());
    let size = match more.size {
        Some(size) => size,
        None => header.number(SIZE).ok_or(ArchiveError::Damaged("a size is no number"))?,
    };
    let mode = header.number(MODE).and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
    let target = || more.target.clone().unwrap_or_else(|| header.text(TARGET).to_owned());
    let mut data = input.take(size);
    match header.kind() {
        b'0' | b'\0' | b'7' if more.is_sparse => return Err(ArchiveError::Unfit(shown(&name), "sparse")),
        // The oldest packers had no type for directories.
        b'0' | b'\0' if name.ends_with(b"/") => tree.directory(&name, mode)?,
        b'0' | b'\0' | b'7' => {
            let secs = more.modified_secs.or_else(|| header.number(MODIFIED));
            let modified = secs.and_then(|secs| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs)));
            tree.file(&name, mode, modified, &mut data)?;
            if data.limit() > 0 {
                return Err(ArchiveError::CutOff);
            }
        }
        b'1' => tree.hard_link(&name, &target())?,
        b'2' => tree.symlink(&name, &target())?,
        b'5' => tree.directory(&name, mode)?,
        b'3' | b'4' => return Err(ArchiveError::Unfit(shown(&name), "a device")),
        b'6' => return Err(ArchiveError::Unfit(shown(&name), "a pipe")),
        b'S' => return Err(ArchiveError::Unfit(shown(&name), "sparse")),
        // Members of types that this reader ignores.
        _ => {}
    }
    // Links may have the content of their targets.
    io::copy(&mut data, &mut io::sink())?;
    if data.limit() > 0 {
        return Err(ArchiveError::CutOff);
    }
    pad(input, size)
}

/// Skips to the next block.
fn pad(input: &mut impl Read, size: u64) -> Result<(), ArchiveError> {
    let rest = (size % BLOCK as u64) as usize;
    if rest > 0 {
        let mut padding = [0; BLOCK];
        if !read_whole(input, padding.get_mut(rest..).unwrap_or_default())? {
            return Err(ArchiveError::CutOff);
        }
    }
    Ok(())
}

type Field = (usize, usize);

const NAME: Field = (0, 100);
const MODE: Field = (100, 8);
const SIZE: Field = (124, 12);
const MODIFIED: Field = (136, 12);
const SUM: Field = (148, 8);
const KIND: usize = 156;
const TARGET: Field = (157, 100);
const MAGIC: Field = (257, 6);
const PREFIX: Field = (345, 155);

#[derive(Clone, Copy)]
struct Header<'a>(&'a [u8; BLOCK]);

impl<'a> Header<'a> {
    fn field(self, (at, length): Field) -> &'a [u8] {
        self.0.get(at..at + length).unwrap_or_default()
    }

    /// Up to a NUL.
    fn text(self, field: Field) -> &'a [u8] {
        let bytes = self.field(field);
        bytes.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    fn kind(self) -> u8 {
        self.0[KIND]
    }

    /// Octal digits between blanks, or GNU's base-256 number, marked by a high bit.
    fn number(self, field: Field) -> Option<u64> {
        let bytes = self.field(field);
        match bytes.split_first() {
            Some((0x80, rest)) => rest
                .iter()
                .try_fold(0u64, |sum, &byte| sum.checked_mul(256).and_then(|sum| sum.checked_add(u64::from(byte)))),
            _ => {
                let digits = self.text(field).trim_ascii();
                digits.iter().try_fold(0u64, |sum, &digit| {
                    let digit = u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 8)?);
                    sum.checked_mul(8)?.checked_add(digit)
                })
            }
        }
    }

    /// The sum of all bytes, its own taken as blanks.
    fn is_sound(self) -> bool {
        let own = SUM.0..SUM.0 + SUM.1;
        let bytes = self.0.iter().enumerate();
        let sum: u64 = bytes.map(|(at, &byte)| u64::from(if own.contains(&at) { b' ' } else { byte })).sum();
        self.number(SUM) == Some(sum)
    }

    fn name(self) -> Vec<u8> {
        let prefix = self.text(PREFIX);
        // Old headers of GNU have other fields where ustar has the prefix.
        if self.field(MAGIC) != b"ustar\0" || prefix.is_empty() {
            return self.text(NAME).to_owned();
        }
        [prefix, b"/", self.text(NAME)].concat()
    }

    /// Reads a header that extends the next member; false: it is a member itself.
    fn extends(self, input: &mut impl Read, extension: &mut Extension) -> Result<bool, ArchiveError> {
        if !matches!(self.kind(), b'L' | b'K' | b'x' | b'g') {
            return Ok(false);
        }
        let size = self.number(SIZE).ok_or(ArchiveError::Damaged("a size is no number"))?;
        if size > EXTENSION_BYTES_MAX {
            return Err(ArchiveError::Damaged("a name has no end"));
        }
        let mut data = Vec::new();
        input.take(size).read_to_end(&mut data)?;
        if (data.len() as u64) < size {
            return Err(ArchiveError::CutOff);
        }
        pad(input, size)?;
        let text = || data.split(|&byte| byte == 0).next().unwrap_or_default().to_owned();
        match self.kind() {
            b'L' => extension.name = Some(text()),
            b'K' => extension.target = Some(text()),
            b'x' => extension.take_records(&data)?,
            // Records for all members: of the programs that pack environments only git writes one, a comment.
            _ => {}
        }
        Ok(true)
    }
}

impl Extension {
    /// `<length> <key>=<value>\n`, the length being that of the whole record.
    fn take_records(&mut self, mut data: &[u8]) -> Result<(), ArchiveError> {
        const WRONG: ArchiveError = ArchiveError::Damaged("a pax record is no record");
        while !data.is_empty() {
            let digits = data.iter().position(|&byte| byte == b' ').ok_or(WRONG)?;
            let length = data.get(..digits).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
            let length: usize = length.ok_or(WRONG)?;
            let record = data.get(digits + 1..length).and_then(|record| record.strip_suffix(b"\n")).ok_or(WRONG)?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or(WRONG)?;
            let (key, value) = (record.get(..equals).unwrap_or_default(), record.get(equals + 1..).unwrap_or_default());
            // A time may have a fraction.
            let whole = value.split(|&byte| byte == b'.').next().unwrap_or_default();
            let number = || std::str::from_utf8(whole).ok().and_then(|text| text.parse().ok());
            match key {
                b"path" => self.name = Some(value.to_owned()),
                b"linkpath" => self.target = Some(value.to_owned()),
                b"size" => self.size = Some(number().ok_or(WRONG)?),
                b"mtime" => self.modified_secs = number(),
                _ => self.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
            data = data.get(length..).ok_or(WRONG)?;
        }
        Ok(())
    }
}
