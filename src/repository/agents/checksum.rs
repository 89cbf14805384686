//! The agent `checksum`: checks files of a model against the MD5 digests in its configuration.
//!
//! Each parameter is `MD5:<path in the model's directory>` with the digest in hexadecimal digits as its value. The
//! agent acts on the load only.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use md5::{Digest, Md5};

use super::{Action, Agent, AgentModel, Location, Task, inside};
use nereid_request::Status;

pub const NAME: &str = "checksum";

const KEY: &str = "MD5:";

pub struct Checksum;

struct Checked(Task);

impl Agent for Checksum {
    fn code_location(&self) -> String {
        "<built in>".to_owned()
    }

    fn begin(self: Arc<Self>, task: Task) -> Result<Box<dyn AgentModel>, Status> {
        Ok(Box::new(Checked(task)))
    }
}

impl AgentModel for Checked {
    fn act(&mut self, action: Action) -> Result<(), Status> {
        if action != Action::Load {
            return Ok(());
        }
        let Location::Directory(directory) = &self.0.location else {
            return Err(Status::unsupported("the agent 'checksum' needs the files of a model in a directory"));
        };
        self.0.parameters.iter().try_for_each(|(key, expected)| check(directory, key, expected))
    }

    fn location(&self) -> Location {
        self.0.location.clone()
    }
}

fn check(directory: &Path, key: &str, expected: &str) -> Result<(), Status> {
    let Some(file) = key.strip_prefix(KEY) else {
        return Err(Status::invalid(format!(
            "Unexpected parameter '{key}' of the agent 'checksum', expects '{KEY}<path to a file of the model>'"
        )));
    };
    let outside = || Status::invalid(format!("file '{file}' of the agent 'checksum' is outside the model's directory"));
    let path = directory.join(inside(file).ok_or_else(outside)?);
    let cannot = |error: std::io::Error| {
        Status::invalid(format!("failed to read file '{file}' to compute its MD5 hash: {error}"))
    };
    // Opening anything but a regular file could block for ever.
    if !fs::metadata(&path).map_err(cannot)?.is_file() {
        return Err(cannot(std::io::Error::other("not a file")));
    }
    let found = digest(&path).map_err(cannot)?;
    if found.eq_ignore_ascii_case(expected.trim()) {
        return Ok(());
    }
    Err(Status::invalid(format!("Mismatched MD5 hash for file {file}, expect: {expected}, got: {found}")))
}

/// In lower-case hexadecimal digits.
fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let (mut md5, mut buffer) = (Md5::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            length => md5.update(buffer.get(..length).unwrap_or_default()),
        }
    }
    Ok(md5.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
