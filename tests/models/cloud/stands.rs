//! The emulated services, and stores opened on them.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nereid_request::Status;
use serde_json::{Value, json};
use tritonserver::repository::store::{self, Store};

use nereid_test_support::python::Python;

/// The process with the stand-ins, ended with its owner.
pub struct Stands {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    places: Value,
}

impl Stands {
    /// Without any object, and with an S3 that lets everybody in.
    pub fn start() -> Option<Stands> {
        let python = Python::with("cloud-requirements.txt")?;
        let mut command = python.command("cloud.py");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env("NO_PROXY", "*");
        let mut child = command.spawn().expect("the stand-ins start");
        let input = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let places = line_of(&mut output);
        Some(Stands { child, input, output, places })
    }

    /// What the first line said: addresses and keys.
    pub fn place(&self, name: &str) -> &str {
        self.places[name].as_str().unwrap_or_else(|| panic!("no place {name}"))
    }

    pub fn tell(&mut self, command: &Value) -> Value {
        writeln!(self.input, "{command}").expect("the stand-ins read");
        line_of(&mut self.output)
    }

    /// Puts an object into the bucket `models` of all services.
    pub fn put(&mut self, key: &str, content: &[u8]) {
        self.tell(&json!({"do": "put", "key": key, "content": base64(content)}));
    }

    pub fn delete(&mut self, key: &str) {
        self.tell(&json!({"do": "delete", "key": key}));
    }

    /// Whether S3 wants signatures by the one user who may read.
    pub fn sign(&mut self, must: bool) {
        self.tell(&json!({"do": "sign", "must": must}));
    }

    /// What the other services want: "key", "token", "account" or "nobody".
    pub fn authorization(&mut self, kind: &str) {
        self.tell(&json!({"do": "authorization", "kind": kind}));
    }

    pub fn s3_location(&self, path: &str) -> String {
        format!("s3://http://{}/{path}", self.place("s3"))
    }

    /// The keys of the user who may read.
    pub fn s3_keys(&self) -> [(&'static str, String); 2] {
        let place = |name| self.place(name).to_owned();
        [("AWS_ACCESS_KEY_ID", place("key_id")), ("AWS_SECRET_ACCESS_KEY", place("secret_key"))]
    }
}

impl Drop for Stands {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line_of(output: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    output.read_line(&mut line).expect("the stand-ins answer");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("the stand-ins said {line:?}: {error}"))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = chunk.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (number >> (18 - 6 * digit)) & 63;
            text.push(if digit <= chunk.len() { DIGITS[index as usize] as char } else { '=' });
        }
    }
    text
}

/// A directory for copies, removed with its owner.
pub struct Mount(PathBuf);

impl Mount {
    pub fn new() -> Mount {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("mount-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the build's temporary directory can be written");
        Mount(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    /// Everything in it, as paths below it, directories included.
    pub fn tree(&self) -> Vec<String> {
        tree(&self.0)
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            found.push(path.strip_prefix(root).expect("below the root").to_str().expect("UTF-8").to_owned());
            if path.is_dir() {
                pending.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Opens a store with nothing in its environment but `variables` and `mount` as the place of copies.
pub fn open(location: &str, mount: &Mount, variables: &[(&str, String)]) -> Result<Box<dyn Store>, Status> {
    let read = |name: &str| {
        if name.starts_with("TRITON_") && name.ends_with("_MOUNT_DIRECTORY") {
            return Some(OsString::from(mount.path()));
        }
        // No test asks the network's own metadata service.
        let known = variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        known.or_else(|| (name == "AWS_EC2_METADATA_DISABLED").then(|| "true".into()))
    };
    store::open(location, &read)
}
