//! Shared memory of one slot: its tensor in front, room for the answer's behind it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

/// A registration takes no time; this only turns a hang into an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// The region of a slot.
#[derive(Debug)]
pub struct Region {
    pub name: String,
    path: PathBuf,
    file: File,
}

impl Region {
    /// An object of shared memory with `data` in it. [`Region::register`] registers it with the server.
    pub fn new(data: &[u8]) -> io::Result<Region> {
        // One of its own for each slot of each load: several may run in one process at the same time.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nereid-bench-{}-{number}", std::process::id());
        let path = PathBuf::from("/dev/shm").join(&name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let region = Region { name, path, file };
        region.file.set_len(2 * data.len() as u64)?;
        region.file.write_all_at(data, 0)?;
        Ok(region)
    }

    /// Registers it with the server at that HTTP port, in place of a former region of its name.
    pub fn register(&self, server: SocketAddr, byte_size: usize) -> Result<(), String> {
        let post = |action: &str, body: &str| -> Result<String, String> {
            let failed = |error: io::Error| format!("{action} of {}: {error}", self.name);
            let mut stream = TcpStream::connect_timeout(&server, PATIENCE).map_err(failed)?;
            stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
            let head = format!(
                "POST /v2/systemsharedmemory/region/{}/{action} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
                 Content-Length: {}\r\n\r\n",
                self.name,
                body.len()
            );
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(failed)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map_err(failed)?;
            if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(format!("{action}: {answer}")) }
        };
        post("unregister", "")?;
        let body = json!({ "key": format!("/{}", self.name), "offset": 0, "byte_size": byte_size });
        post("register", &body.to_string()).map(drop)
    }

    /// Whether `data` lies behind the tensor that was sent.
    pub fn holds_answer(&self, data: &[u8]) -> Result<bool, String> {
        let mut found = vec![0; data.len()];
        self.file.read_exact_at(&mut found, data.len() as u64).map_err(|error| format!("{}: {error}", self.name))?;
        Ok(found == data)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
