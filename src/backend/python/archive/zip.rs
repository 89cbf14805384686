//! zip archives: stored and deflated, with Unix modes and links, as the `zip` crate reads them.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use zip::read::{ArchiveOffset, Config, ZipFile};
use zip::result::ZipError;
use zip::{CompressionMethod, ExtraField, System, ZipArchive};

use super::tree::Tree;
use super::{ArchiveError, shown};

/// The signature of the end of the list of members, which a comment may follow.
const END: &[u8] = b"PK\x05\x06";
const END_BYTES_MAX: u64 = 22 + u16::MAX as u64;
/// The most bytes of the list of members; an environment of a million files needs some 150 MB.
const LIST_BYTES_MAX: u64 = 1 << 28;
const TARGET_BYTES_MAX: u64 = 4096;

const LIST: ArchiveError = ArchiveError::Damaged("its list of members makes no sense");
const SUM: ArchiveError = ArchiveError::Damaged("the sum of a member is wrong");

/// Reads all members.
pub fn read(file: &File, tree: &mut Tree) -> Result<(), ArchiveError> {
    let length = file.metadata()?.len();
    let tail_bytes = length.min(END_BYTES_MAX);
    let mut tail = vec![0; tail_bytes as usize];
    file.read_exact_at(&mut tail, length - tail_bytes)?;
    if memchr::memmem::find(&tail, END).is_none() {
        return Err(ArchiveError::CutOff);
    }
    let left = Cell::new(LIST_BYTES_MAX);
    let input = Bounded { inner: BufReader::new(file), left: &left };
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut archive = ZipArchive::with_config(config, input).map_err(of_list)?;
    left.set(u64::MAX);
    for at in 0..archive.len() {
        let entry = archive.by_index_data(at).map_err(of_list)?;
        let name = entry.name_raw().to_owned();
        let mode = if entry.system() == System::Unix { entry.external_attributes() >> 16 } else { 0 };
        if name.ends_with(b"/") {
            tree.directory(&name, if mode & 0o777 == 0 { 0o755 } else { mode })?;
            continue;
        }
        if entry.encrypted() {
            return Err(ArchiveError::Unfit(shown(&name), "encrypted"));
        }
        if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
            return Err(ArchiveError::Unfit(shown(&name), "compressed in an uncommon way"));
        }
        write(archive.by_index(at).map_err(of_list)?, &name, mode, tree)?;
    }
    Ok(())
}

fn write(member: ZipFile<'_, impl Read>, name: &[u8], mode: u32, tree: &mut Tree) -> Result<(), ArchiveError> {
    let bytes = member.size();
    let modified = member.extra_data_fields().find_map(modified);
    // One byte more than the member has: the library checks the checksum at the end, and refuses more bytes than
    // announced.
    let mut contents = member.take(bytes.saturating_add(1));
    match mode & 0o170_000 {
        0o120_000 if bytes > TARGET_BYTES_MAX => return Err(SUM),
        0o120_000 => {
            let mut target = Vec::new();
            contents.read_to_end(&mut target).map_err(of_contents)?;
            tree.symlink(name, &target)?;
        }
        0 | 0o100_000 => {
            let mode = if mode & 0o777 == 0 { 0o644 } else { mode };
            tree.file(name, mode, modified, &mut contents).map_err(|error| match error {
                ArchiveError::Io(error) => of_contents(error),
                other => other,
            })?;
        }
        _ => return Err(ArchiveError::Unfit(shown(name), "neither file nor directory nor link")),
    }
    if contents.limit() == 1 { Ok(()) } else { Err(SUM) }
}

fn modified(field: &ExtraField) -> Option<SystemTime> {
    let ExtraField::ExtendedTimestamp(times) = field else { return None };
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::from(times.mod_time()?)))
}

fn of_list(error: ZipError) -> ArchiveError {
    match error {
        ZipError::Io(error) => error.into(),
        _ => LIST,
    }
}

/// The library returns `InvalidData` for a wrong checksum, and for more bytes than announced.
fn of_contents(error: io::Error) -> ArchiveError {
    if error.kind() == io::ErrorKind::InvalidData { SUM } else { error.into() }
}

/// A file of which at most so many bytes can be read, at any position: the library keeps the list of members in memory.
struct Bounded<'a> {
    inner: BufReader<&'a File>,
    left: &'a Cell<u64>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (&mut self.inner).take(self.left.get()).read(buffer)?;
        self.left.set(self.left.get() - count as u64);
        Ok(count)
    }
}

impl Seek for Bounded<'_> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}
