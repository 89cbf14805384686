//! A server with surroundings of its own: a private /dev/shm and a private disk for its log and its traces, both small,
//! and a library that makes system calls fail. The test reaches both file systems through /proc/<pid>/root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, binary};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::Variant;

use super::hamper::Hamper;
use super::models::{self, Generations};

/// Bytes of the private /dev/shm, and of the disk.
const SHM: &str = "size=2m";
const DISK: &str = "size=1m";

pub struct Site {
    pub server: Server,
    pub repository: Repository,
    pub hamper: Hamper,
    pub generations: Generations,
    /// Files that only this run has.
    pub folder: Folder,
}

/// A directory that is removed in the end.
pub struct Folder(PathBuf);

impl Site {
    /// None, after a visible skip, where something that it needs is missing.
    pub fn start(variant: Variant, flags: &[&str]) -> Option<Site> {
        let python = Python::get()?;
        let repository = models::repository();
        let folder = Folder(repository.path().with_extension("chaos"));
        let _ = fs::remove_dir_all(&*folder);
        fs::create_dir_all(folder.join("disk")).expect("a folder of the run");
        let hamper = Hamper::new(&folder.join("hamper"))?;
        let generations = Generations::create(&folder.join("generations"));
        let words = surroundings(&folder.join("disk"), &hamper)?;
        let disk = folder.join("disk");
        let mut all = vec![
            "--model-control-mode=explicit".to_owned(),
            "--load-model=*".to_owned(),
            "--allow-client-shm=true".to_owned(),
            "--request-memory-byte-size=16777216".to_owned(),
            "--exit-timeout-secs=60".to_owned(),
            format!("--log-file={}", disk.join("log").display()),
            format!("--trace-config=triton,file={}", disk.join("trace").display()),
            "--trace-config=level=TIMESTAMPS".to_owned(),
            "--trace-config=rate=50".to_owned(),
            "--trace-config=triton,log-frequency=5".to_owned(),
            // Enough for whatever the clients send at once, so that no memory file is added when they first do.
            "--backend-config=python,shm-default-byte-size=33554432".to_owned(),
            format!("--backend-config=python,interpreter={}", python.interpreter().display()),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let server = Server::start_under(&words, variant, repository.path(), &all, "/v2/health/ready");
        Some(Site { server, repository, hamper, generations, folder })
    }

    /// The server's root as this process sees it.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.server.pid()))
    }

    pub fn shm(&self) -> PathBuf {
        self.root().join("dev/shm")
    }

    pub fn disk(&self) -> PathBuf {
        let disk = self.folder.join("disk");
        self.root().join(disk.strip_prefix("/").unwrap_or(&disk))
    }

    /// Frees the disk as an operator does: removes the traces, cuts the log. The server appends to both.
    pub fn free_disk(&self) {
        let disk = self.disk();
        let log = disk.join("log");
        let paths = fs::read_dir(&disk).into_iter().flatten().flatten().map(|entry| entry.path());
        paths.filter(|path| *path != log).for_each(|path| drop(fs::remove_file(path)));
        File::options().write(true).open(&log).and_then(|file| file.set_len(0)).expect("cut the log");
    }

    /// What is still there of the server's log, which the run also cuts to free its disk.
    pub fn log(&self) -> String {
        let log = fs::read(self.disk().join("log")).unwrap_or_default();
        format!("{}{}", String::from_utf8_lossy(&log), self.server.log())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

/// The command before the server's flags. It becomes the server, so the server has the process's id.
fn surroundings(disk: &Path, hamper: &Hamper) -> Option<Vec<String>> {
    let mount = |options: &str, place: &str| format!("mount -t tmpfs -o {options} chaos '{place}'");
    let mounts = format!("{} && {}", mount(SHM, "/dev/shm"), mount(DISK, &disk.display().to_string()));
    let unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c"];
    let mut attempt = Command::new(unshare[0]);
    match attempt.args(&unshare[1..]).arg(&mounts).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            skip(&format!("no private mounts: {}", String::from_utf8_lossy(&output.stderr).trim()));
            return None;
        }
        Err(error) => {
            skip(&format!("no unshare: {error}"));
            return None;
        }
    }
    let program = binary().into_string().expect("the binary's path is UTF-8");
    let script = format!("{mounts} && exec env \"$@\"");
    let words = unshare.iter().map(|word| (*word).to_owned());
    Some(words.chain([script, "chaos".to_owned()]).chain(hamper.environment()).chain([program]).collect())
}
