//! One file of an installation, put in its place whole: it is written under another name beside it first.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct File {
    pub path: PathBuf,
    pub content: Content,
    pub mode: u32,
}

#[derive(Debug)]
pub enum Content {
    Text(String),
    Bytes(&'static [u8]),
    Copy(PathBuf),
    /// A symbolic link that leads there.
    Link(PathBuf),
}

impl File {
    /// Writes the file. An existing file is replaced if `is_forced`; else it is an error and stays as it is.
    pub fn put(&self, is_forced: bool) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let unfinished = Unfinished(directory.join(format!(".unfinished-{}-{name}", std::process::id())));
        self.write(&unfinished.0)?;
        if is_forced {
            return fs::rename(&unfinished.0, &self.path);
        }
        // Unlike a rename, a link never replaces a file that was created meanwhile.
        match fs::hard_link(&unfinished.0, &self.path) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::EMLINK)) => {
                // A file system without hard links.
                fs::rename(&unfinished.0, &self.path)
            }
            other => other,
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        // Removes the leftover of an earlier process with this id.
        let _ = fs::remove_file(path);
        if let Content::Link(target) = &self.content {
            return symlink(target, path);
        }
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(self.mode).open(path)?;
        match &self.content {
            Content::Text(text) => file.write_all(text.as_bytes())?,
            Content::Bytes(bytes) => file.write_all(bytes)?,
            Content::Copy(source) => _ = io::copy(&mut fs::File::open(source)?, &mut file)?,
            Content::Link(_) => {}
        }
        file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        file.sync_all()
    }
}

/// A name that is gone when the file is in its place, or failed to get there.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
