//! The layout of a model's directory: its configuration file, its version directories, and the hints at its backend
//! (contract/model_config.md section 4).

use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::Error;
use super::text::MAX_FILE_BYTES;

/// Most entries of one directory that are read.
pub const MAX_ENTRIES: usize = 1 << 16;

/// Sub-directories with a meaning of their own, about which no word is lost.
const RESERVED: [&str; 4] = ["warmup", "warmup_expected", "initial_state", "configs"];

/// A model's directory as it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// Version numbers, ascending.
    pub versions: Vec<i64>,
    /// Sub-directories that look like versions but are none, sorted by name, for the log.
    pub ignored: Vec<IgnoredDirectory>,
    /// The entries of the sub-directory whose name comes first in byte order, from which the backend is guessed
    /// (section 5 rule 1); `None` if there is no sub-directory.
    pub first_subdirectory: Option<Vec<Entry>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub is_directory: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredDirectory {
    pub name: String,
    pub reason: IgnoredReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoredReason {
    /// `01` would be the same version as `1`.
    LeadingZero,
    NotANumber,
}

impl IgnoredDirectory {
    /// The line for the log.
    pub fn warning(&self) -> String {
        let why = match self.reason {
            IgnoredReason::LeadingZero => "contains leading zeros in its directory name",
            IgnoredReason::NotANumber => "fails to convert to integral number",
        };
        format!("ignore version directory '{}' which {why}", self.name)
    }
}

/// Reads the directory of a model. Links to directories count as directories.
pub fn scan(model_dir: &Path) -> Result<Layout, Error> {
    let mut layout = Layout::default();
    let mut subdirectories: Vec<String> =
        entries(model_dir)?.into_iter().filter(|entry| entry.is_directory).map(|entry| entry.name).collect();
    subdirectories.sort_unstable();
    if let Some(first) = subdirectories.first() {
        let mut inside = entries(&model_dir.join(first))?;
        inside.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        layout.first_subdirectory = Some(inside);
    }
    for name in subdirectories {
        match version_number(&name) {
            Ok(version) => layout.versions.push(version),
            Err(_) if RESERVED.contains(&name.as_str()) => {}
            Err(reason) => layout.ignored.push(IgnoredDirectory { name, reason }),
        }
    }
    layout.versions.sort_unstable();
    Ok(layout)
}

/// The configuration file to read: the named one of `configs/` if it exists, else `config.pbtxt`; `None` if the model
/// has neither.
pub fn config_file(model_dir: &Path, config_name: Option<&str>) -> Option<PathBuf> {
    let named = config_name.map(|name| model_dir.join("configs").join(format!("{name}.pbtxt")));
    let default = model_dir.join("config.pbtxt");
    named.into_iter().chain([default]).find(|path| path.is_file())
}

/// Reads a configuration file, of which no more is taken into memory than can be one.
pub fn read_config(file: &Path) -> Result<Vec<u8>, Error> {
    let failed = |what: String| Error::internal(format!("failed to read text proto from {}: {what}", file.display()));
    let mut text = Vec::new();
    let bound = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
    File::open(file)
        .and_then(|file| file.take(bound.saturating_add(1)).read_to_end(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    if text.len() > MAX_FILE_BYTES {
        return Err(failed(format!("the file exceeds the maximum of {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

/// The directory of a version's files.
pub fn version_dir(model_dir: &Path, version: i64) -> PathBuf {
    model_dir.join(version.to_string())
}

fn version_number(name: &str) -> Result<i64, IgnoredReason> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(IgnoredReason::NotANumber);
    }
    if name.len() > 1 && name.starts_with('0') {
        return Err(IgnoredReason::LeadingZero);
    }
    name.parse().map_err(|_| IgnoredReason::NotANumber)
}

/// Whether an entry of a listed `directory` is a directory or a link to one. A link that leads nowhere is none.
///
/// The type comes from the listing, which goes on when the directory is moved or its mount goes: an entry is not found
/// by its path then, which does not mean that it was removed. What cannot be examined is an error.
pub fn is_directory(directory: &Path, entry: &DirEntry) -> io::Result<bool> {
    let kind = match entry.file_type() {
        Ok(kind) => kind,
        // Removed since it was listed.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if !kind.is_symlink() {
        return Ok(kind.is_dir());
    }
    match fs::metadata(entry.path()) {
        Ok(target) => Ok(target.is_dir()),
        Err(error) if leads_nowhere(&error) => fs::metadata(directory).map(|_| false),
        Err(error) => Err(error),
    }
}

/// Whether a path was not found because there is nothing at it, or only links in a circle.
fn leads_nowhere(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || error.raw_os_error() == Some(libc::ELOOP)
}

fn entries(directory: &Path) -> Result<Vec<Entry>, Error> {
    let failed =
        |error: std::io::Error| Error::internal(format!("failed to open directory {}: {error}", directory.display()));
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entries.len() >= MAX_ENTRIES {
            return Err(Error::internal(format!(
                "directory {} has more than {MAX_ENTRIES} entries",
                directory.display()
            )));
        }
        let is_directory = is_directory(directory, &entry).map_err(failed)?;
        // A name that is not UTF-8 can be neither a version nor a file that is searched for.
        if let Ok(name) = entry.file_name().into_string() {
            entries.push(Entry { name, is_directory });
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::super::labels::tests::Scratch;
    use super::*;

    #[test]
    fn version_numbers() {
        assert_eq!(version_number("0"), Ok(0));
        assert_eq!(version_number("1"), Ok(1));
        assert_eq!(version_number("9223372036854775807"), Ok(i64::MAX));
        for name in ["00", "01", "007"] {
            assert_eq!(version_number(name), Err(IgnoredReason::LeadingZero), "{name}");
        }
        for name in ["", "a", "1a", "-1", "+1", " 1", "1.0", "9223372036854775808", "१"] {
            assert_eq!(version_number(name), Err(IgnoredReason::NotANumber), "{name}");
        }
    }

    #[test]
    fn scans_a_model() {
        let scratch = Scratch::new("layout");
        for path in
            ["10/model.onnx", "2/model.py", "01/x", "draft/x", "warmup/raw", "initial_state/s", "configs/a.pbtxt"]
        {
            scratch.write(path, b"");
        }
        scratch.write("config.pbtxt", b"");
        scratch.write("3", b"a file, not a version");
        std::os::unix::fs::symlink("2", scratch.path().join("5")).unwrap();
        std::os::unix::fs::symlink("nowhere", scratch.path().join("6")).unwrap();
        let layout = scan(scratch.path()).unwrap();
        assert_eq!(layout.versions, [2, 5, 10]);
        let warnings: Vec<String> = layout.ignored.iter().map(IgnoredDirectory::warning).collect();
        assert_eq!(
            warnings,
            [
                "ignore version directory '01' which contains leading zeros in its directory name",
                "ignore version directory 'draft' which fails to convert to integral number"
            ]
        );
        // Byte order: "01" comes before "10" and "2".
        assert_eq!(layout.first_subdirectory, Some(vec![Entry { name: "x".into(), is_directory: false }]));
        assert_eq!(version_dir(scratch.path(), 10), scratch.path().join("10"));
    }

    #[test]
    fn a_link_that_cannot_be_followed_is_no_directory_and_one_that_cannot_be_examined_an_error() {
        let scratch = Scratch::new("layout_links");
        scratch.write("1/x", b"");
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, scratch.path().join(name)).unwrap();
        link("nowhere", "2");
        link("3", "3");
        link("1/x/y", "4");
        assert_eq!(scan(scratch.path()).unwrap().versions, [1]);
        // A name that no file system takes.
        link(&"x".repeat(300), "5");
        let error = scan(scratch.path()).unwrap_err();
        assert!(error.to_string().contains("failed to open directory"), "{error}");
    }

    /// The directory that is listed is moved, as when a mount goes: its versions do not count as removed.
    #[test]
    fn versions_that_are_moved_away_while_they_are_listed_are_whole_or_an_error() {
        let scratch = Scratch::new("layout_moved");
        for version in 1..=20 {
            scratch.write(&format!("model/{version}/x"), b"");
            std::os::unix::fs::symlink(version.to_string(), scratch.path().join(format!("model/{}", version + 100)))
                .unwrap();
        }
        let (model, away) = (scratch.path().join("model"), scratch.path().join("away"));
        for entry in fs::read_dir(&model).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            fs::rename(&model, &away).unwrap();
            match is_directory(&model, &entry) {
                Ok(is_directory) => assert!(is_directory, "{name:?} is a directory wherever it lies now"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{name:?}"),
            }
            fs::rename(&away, &model).unwrap();
            assert!(is_directory(&model, &entry).unwrap(), "{name:?}");
        }
    }

    #[test]
    fn a_model_without_subdirectories_and_no_model() {
        let scratch = Scratch::new("layout_empty");
        assert_eq!(scan(scratch.path()).unwrap(), Layout::default());
        let error = scan(&scratch.path().join("absent")).unwrap_err();
        assert!(matches!(error, Error::Internal { .. }));
    }

    #[test]
    fn a_configuration_is_read_up_to_its_bound() {
        let scratch = Scratch::new("layout_read");
        scratch.write("config.pbtxt", b"name: \"m\"");
        let file = scratch.path().join("config.pbtxt");
        assert_eq!(read_config(&file).unwrap(), b"name: \"m\"");
        // Sparse: its length alone refuses it.
        let length = u64::try_from(MAX_FILE_BYTES).unwrap();
        File::create(&file).unwrap().set_len(length).unwrap();
        assert_eq!(read_config(&file).unwrap().len(), MAX_FILE_BYTES);
        File::create(&file).unwrap().set_len(length + 1).unwrap();
        let error = read_config(&file).unwrap_err();
        let expected = format!(
            "failed to read text proto from {}: the file exceeds the maximum of 16777216 bytes",
            file.display()
        );
        assert_eq!(error, Error::internal(expected));
        let error = read_config(&scratch.path().join("absent")).unwrap_err();
        assert!(error.to_string().contains("/absent: No such file"), "{error}");
    }

    #[test]
    fn the_named_configuration_falls_back() {
        let scratch = Scratch::new("layout_config");
        assert_eq!(config_file(scratch.path(), None), None);
        assert_eq!(config_file(scratch.path(), Some("b200")), None);
        scratch.write("config.pbtxt", b"");
        assert_eq!(config_file(scratch.path(), Some("b200")), Some(scratch.path().join("config.pbtxt")));
        scratch.write("configs/b200.pbtxt", b"");
        assert_eq!(config_file(scratch.path(), Some("b200")), Some(scratch.path().join("configs/b200.pbtxt")));
        assert_eq!(config_file(scratch.path(), None), Some(scratch.path().join("config.pbtxt")));
    }
}
