//! Files of keys for restricted groups (`--http-restricted-api-file`, `--grpc-restricted-protocol-file`), read again
//! when they change.
//!
//! A file that cannot be used changes nothing: the keys that were valid stay valid. A group that needs a key keeps
//! needing one until the server ends, so that no half-written file opens it. No message contains a value.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{error, info, warn};

use super::options::{Options, Restriction};
use crate::api::routes::Category;
use crate::api::{Access, GivenKey, Restrictions};

/// Bytes of a file. Keys are short.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Keys of one group in one file: each request of the group may be compared with all of them.
const GROUP_KEYS_MAX: usize = 64;
/// How often the files are looked at.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("cannot read '{}': {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("'{}' is not a regular file", .0.display())]
    Kind(PathBuf),
    #[error("'{}' has more than {FILE_BYTES_MAX} bytes", .0.display())]
    Long(PathBuf),
    #[error("'{}' is not UTF-8", .0.display())]
    Text(PathBuf),
    #[error("'{}', line {line}: {mistake}", path.display())]
    Line { path: PathBuf, line: usize, mistake: Mistake },
    #[error("'{}' has no key for the group '{group}' any more; restart the server to open the group", path.display())]
    Opens { path: PathBuf, group: String },
}

/// What is wrong with a line. Never its value, nor text that may be one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    #[error("expected '[<name> ]<group>[,<group>]:<header>=<value>'")]
    Form,
    #[error("an unknown group; the groups are {}", groups())]
    Group,
    #[error("the header's name has a character that no header's name has")]
    Header,
    #[error("the value has a character that no header's value has")]
    Value,
    #[error("a group has more than {GROUP_KEYS_MAX} keys")]
    Many,
}

fn groups() -> String {
    Category::ALL.map(|(_, name)| name).join(", ")
}

/// A key of a file.
#[derive(Clone, PartialEq, Eq)]
struct FileKey {
    name: Option<String>,
    restriction: Restriction,
}

/// What shows that a file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 7]);

impl Stamp {
    /// Through links: a mounted secret is replaced by one.
    fn of(path: &Path) -> Option<Stamp> {
        let found = std::fs::metadata(path).ok()?;
        let (device, inode, size) = (found.dev() as i64, found.ino() as i64, found.size() as i64);
        let (changed, changed_ns) = (found.ctime(), found.ctime_nsec());
        Some(Stamp([device, inode, size, found.mtime(), found.mtime_nsec(), changed, changed_ns]))
    }
}

/// One file, and the keys that it had when it could last be used.
struct KeyFile {
    flag: &'static str,
    path: PathBuf,
    stamp: Option<Stamp>,
    keys: Vec<FileKey>,
}

impl KeyFile {
    fn open(flag: &'static str, path: &Path) -> Result<KeyFile, KeyFileError> {
        let stamp = Stamp::of(path);
        let keys = read(path)?;
        Ok(KeyFile { flag, path: path.to_owned(), stamp, keys })
    }

    /// Reads the file again if it changed; true if its keys did.
    fn refresh(&mut self) -> bool {
        let stamp = Stamp::of(&self.path);
        if stamp == self.stamp {
            return false;
        }
        self.stamp = stamp;
        let flag = self.flag;
        match read(&self.path).and_then(|keys| self.check(keys)) {
            Ok(keys) if keys == self.keys => false,
            Ok(keys) => {
                let path = self.path.display();
                info!("--{flag}: the keys of '{path}' are valid from now on: {}", summary(&keys));
                self.keys = keys;
                true
            }
            Err(failure) => {
                error!("--{flag}: {failure}; the keys that it had before stay valid");
                false
            }
        }
    }

    /// Refuses keys that would open a group.
    fn check(&self, keys: Vec<FileKey>) -> Result<Vec<FileKey>, KeyFileError> {
        let is_kept = |group: &str| keys.iter().any(|key| key.restriction.group == group);
        match self.keys.iter().find(|key| !is_kept(&key.restriction.group)) {
            None => Ok(keys),
            Some(key) => Err(KeyFileError::Opens { path: self.path.clone(), group: key.restriction.group.clone() }),
        }
    }
}

fn summary(keys: &[FileKey]) -> String {
    let mut names: Vec<&str> = keys.iter().filter_map(|key| key.name.as_deref()).collect();
    names.dedup();
    match names.is_empty() {
        true => format!("{}", keys.len()),
        false => format!("{}, named {}", keys.len(), names.join(", ")),
    }
}

fn read(path: &Path) -> Result<Vec<FileKey>, KeyFileError> {
    let failed = |error| KeyFileError::Read { path: path.to_owned(), error };
    // Without waiting for the writer of a FIFO.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(KeyFileError::Kind(path.to_owned()));
    }
    let text = read_text(path, file)?;
    warn_of_readers(path, &metadata);
    parse(&text).map_err(|(line, mistake)| KeyFileError::Line { path: path.to_owned(), line, mistake })
}

fn read_text(path: &Path, file: File) -> Result<String, KeyFileError> {
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| KeyFileError::Read { path: path.to_owned(), error })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(KeyFileError::Long(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| KeyFileError::Text(path.to_owned()))
}

fn warn_of_readers(path: &Path, metadata: &Metadata) {
    if metadata.mode() & 0o004 != 0 {
        let path = path.display();
        warn!("every user of this host can read the keys in '{path}': chmod o-r '{path}'");
    }
}

/// The keys of a text, or the number of the first wrong line and what is wrong.
fn parse(text: &str) -> Result<Vec<FileKey>, (usize, Mistake)> {
    let mut keys: Vec<FileKey> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            parse_line(line, &mut keys).map_err(|mistake| (at + 1, mistake))?;
        }
    }
    Ok(keys)
}

/// Adds the keys of a line: one for each of its groups.
fn parse_line(line: &str, keys: &mut Vec<FileKey>) -> Result<(), Mistake> {
    let (groups, setting) = line.split_once(':').ok_or(Mistake::Form)?;
    let (name, groups) = match groups.split_once([' ', '\t']) {
        Some((name, groups)) => (Some(name.to_owned()), groups.trim()),
        None => (None, groups),
    };
    let (header, value) = setting.split_once('=').ok_or(Mistake::Form)?;
    let value = value.trim();
    if header.is_empty() || value.is_empty() {
        return Err(Mistake::Form);
    }
    if !header.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)) {
        return Err(Mistake::Header);
    }
    if value.chars().any(char::is_control) {
        return Err(Mistake::Value);
    }
    for group in groups.split(',') {
        if !Category::ALL.iter().any(|(_, known)| *known == group) {
            return Err(Mistake::Group);
        }
        if keys.iter().filter(|key| key.restriction.group == group).count() >= GROUP_KEYS_MAX {
            return Err(Mistake::Many);
        }
        let [group, key, value] = [group, header, value].map(str::to_owned);
        keys.push(FileKey { name: name.clone(), restriction: Restriction { group, key, value } });
    }
    Ok(())
}

/// The keys of both protocols: those of flags, and those of files.
pub struct KeyFiles {
    http_flag: Vec<Restriction>,
    grpc_flag: Vec<Restriction>,
    http: Option<KeyFile>,
    grpc: Option<KeyFile>,
    number: u64,
}

impl KeyFiles {
    pub fn open(options: &Options) -> Result<KeyFiles, String> {
        let open = |flag: &'static str, path: &Option<PathBuf>| {
            let file = path.as_deref().map(|path| KeyFile::open(flag, path)).transpose();
            file.map_err(|error| format!("--{flag}: {error}"))
        };
        Ok(KeyFiles {
            http: open("http-restricted-api-file", &options.http_restricted_file)?,
            grpc: open("grpc-restricted-protocol-file", &options.grpc_restricted_file)?,
            http_flag: options.http_restricted.clone(),
            grpc_flag: options.grpc_restricted.clone(),
            number: 0,
        })
    }

    /// The keys that are valid now.
    pub fn access(&self) -> Arc<Access> {
        Arc::new(Access {
            http: Restrictions::http(given(&self.http_flag, self.http.as_ref())),
            grpc: Restrictions::grpc(given(&self.grpc_flag, self.grpc.as_ref())),
            number: self.number,
            changes: self.is_watched(),
        })
    }

    fn is_watched(&self) -> bool {
        self.http.is_some() || self.grpc.is_some()
    }

    fn refresh(&mut self) -> bool {
        let files = [&mut self.http, &mut self.grpc].into_iter().flatten();
        let has_changed = files.map(KeyFile::refresh).fold(false, |any, changed| any | changed);
        self.number += u64::from(has_changed);
        has_changed
    }
}

fn given<'a>(flag: &'a [Restriction], file: Option<&'a KeyFile>) -> impl Iterator<Item = GivenKey<'a>> {
    fn key<'a>(name: Option<&'a str>, Restriction { group, key, value }: &'a Restriction) -> GivenKey<'a> {
        GivenKey { group, header: key, value, name: name.unwrap_or(key) }
    }
    let of_flag = flag.iter().map(|restriction| key(None, restriction));
    let of_file = file.into_iter().flat_map(|file| &file.keys);
    of_flag.chain(of_file.map(|one| key(one.name.as_deref(), &one.restriction)))
}

/// Looks at the files until it is dropped.
pub struct KeyWatch {
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeyWatch {
    /// `None`: there are no files. `publish` gets what is valid after each change.
    pub fn start(
        mut files: KeyFiles,
        publish: impl Fn(Arc<Access>) + Send + 'static,
    ) -> std::io::Result<Option<KeyWatch>> {
        if !files.is_watched() {
            return Ok(None);
        }
        let (alive, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("key-files".to_owned()).spawn(move || {
            while ended.recv_timeout(POLL) == Err(RecvTimeoutError::Timeout) {
                if files.refresh() {
                    publish(files.access());
                }
            }
        })?;
        Ok(Some(KeyWatch { alive: Some(alive), thread: Some(thread) }))
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        self.alive = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the thread that reads the files of keys ended by a panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<(Option<String>, String, String, String)> {
        let parsed = parse(text).unwrap();
        let shown = |key: FileKey| (key.name, key.restriction.group, key.restriction.key, key.restriction.value);
        parsed.into_iter().map(shown).collect()
    }

    #[test]
    fn lines_are_keys() {
        let text = "# keys\n\nalice  trace,logging:x-key=a=b # c \r\nhealth:k=v:w\n  # end";
        let key = |name: Option<&str>, group: &str, header: &str, value: &str| {
            (name.map(str::to_owned), group.to_owned(), header.to_owned(), value.to_owned())
        };
        let expected = [
            key(Some("alice"), "trace", "x-key", "a=b # c"),
            key(Some("alice"), "logging", "x-key", "a=b # c"),
            key(None, "health", "k", "v:w"),
        ];
        assert_eq!(keys(text), expected);
        assert_eq!(keys(""), []);
    }

    #[test]
    fn a_wrong_line_is_named_and_its_value_is_not() {
        for (line, mistake) in [
            ("secret", Mistake::Form),
            ("trace:secret", Mistake::Form),
            ("trace:=secret", Mistake::Form),
            ("trace:k=", Mistake::Form),
            ("trace:k= ", Mistake::Form),
            ("secret:k=secret", Mistake::Group),
            ("trace,:k=secret", Mistake::Group),
            ("a b trace:k=secret", Mistake::Group),
            ("trace:k k=secret", Mistake::Header),
            ("trace: k=secret", Mistake::Header),
            ("trace:k=secret\u{1}secret", Mistake::Value),
        ] {
            let text = format!("health:k=v\n\n{line}\n");
            let (at, found) = parse(&text).map(drop).unwrap_err();
            assert!(!found.to_string().contains("secret"), "{found}");
            assert_eq!((at, found), (3, mistake), "{line}");
        }
        let many = "trace:k=v\n".repeat(GROUP_KEYS_MAX + 1);
        assert_eq!(parse(&many).map(drop), Err((GROUP_KEYS_MAX + 1, Mistake::Many)));
    }
}
