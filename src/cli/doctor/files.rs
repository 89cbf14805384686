//! Directories and files that a server reads and writes, by the rights of the user that it runs as.

use std::fs;
use std::path::{Path, PathBuf};

use super::access::{Need, Refusal, User};
use super::report::{Area, Level, Report};
use crate::cli::options::ServeOptions;
use crate::repository::store::is_bucket;

/// Entries of a repository that are examined, and how deep.
const ENTRIES_MAX: usize = 100_000;
const DEPTH_MAX: usize = 32;
/// Refusals that are named one by one.
const NAMED_MAX: usize = 3;
/// Shared memory that clients and Python models need at least.
const SHM_BYTES_MIN: u64 = 64 << 20;
const SHM: &str = "/dev/shm";

pub fn check(report: &mut Report, options: &ServeOptions, user: &User) {
    if options.model_repositories.is_empty() {
        report.ok(Area::Files, "model-repository", "none is given: add --model-repository=<path> to check it");
    }
    for repository in &options.model_repositories {
        self::repository(report, repository, user);
    }
    shared_memory(report, user);
    let temporary = std::env::temp_dir();
    directory(report, "temporary", &temporary, &[Need::Read, Need::Write, Need::Execute], user);
    let traces = Some(&options.traces.file).filter(|file| !file.is_empty()).map(PathBuf::from);
    let audit = options.audit_log.clone().filter(|file| file.as_os_str() != "-");
    let written = [("log-file", options.log.file.clone()), ("trace-file", traces), ("audit-log", audit)];
    for (name, path) in written {
        if let Some(path) = path {
            written_file(report, name, &path, user);
        }
    }
    read_files(report, options, user);
    let libraries = [
        ("backend-directory", &options.backend_directory),
        ("cache-directory", &options.cache_directory),
        ("repoagent-directory", &options.agent_directory),
    ];
    for (name, path) in libraries {
        match path.is_dir() {
            true => directory(report, name, path, &[Need::Read, Need::Execute], user),
            false => report.ok(Area::Files, name, format!("{} is not there: no libraries of others", path.display())),
        }
    }
}

fn repository(report: &mut Report, path: &Path, user: &User) {
    let name = "model-repository";
    let shown = path.display();
    if path.to_str().is_some_and(|location| is_bucket(location).unwrap_or(false)) {
        return report.ok(Area::Files, name, format!("{shown} is a bucket, which is not contacted here"));
    }
    if !path.is_dir() {
        let what = if path.exists() { "is not a directory" } else { "does not exist" };
        let next = "name a directory with one directory for each model; `nereid quickstart` shows examples";
        return report.bad(Level::Problem, Area::Files, name, format!("{shown} {what}"), next);
    }
    if let Err(refusal) = user.reaches(path, &[Need::Read, Need::Execute]) {
        return refused(report, &[refusal], 1, user, path);
    }
    let mut walk = Walk { user, refusals: Vec::new(), count: 0, entries: 0 };
    walk.directory(path, 0);
    if !walk.refusals.is_empty() {
        return refused(report, &walk.refusals, walk.count, user, path);
    }
    let rest = if walk.entries >= ENTRIES_MAX { ", the first of them" } else { "" };
    report.ok(Area::Files, name, format!("{} may read {shown} ({} entries{rest})", user.name, walk.entries));
}

/// Examines a tree.
struct Walk<'a> {
    user: &'a User,
    /// The first ones.
    refusals: Vec<Refusal>,
    count: usize,
    entries: usize,
}

impl Walk<'_> {
    fn directory(&mut self, path: &Path, depth: usize) {
        // The directory itself was examined; this process may still not read it.
        let Ok(entries) = fs::read_dir(path) else {
            return self.note(Refusal { path: path.to_owned(), need: Need::Read, mode: None });
        };
        for entry in entries.flatten() {
            if self.entries >= ENTRIES_MAX {
                return;
            }
            self.entries += 1;
            let path = entry.path();
            let needs: &[Need] = if path.is_dir() { &[Need::Read, Need::Execute] } else { &[Need::Read] };
            // A link that leads nowhere is a matter of `nereid check`.
            if !path.exists() {
                continue;
            }
            match needs.iter().try_for_each(|need| self.user.may(&path, *need)) {
                Err(refusal) => self.note(refusal),
                Ok(()) if path.is_dir() && depth < DEPTH_MAX => self.directory(&path, depth + 1),
                Ok(()) => {}
            }
        }
    }

    fn note(&mut self, refusal: Refusal) {
        self.count += 1;
        if self.refusals.len() < NAMED_MAX {
            self.refusals.push(refusal);
        }
    }
}

/// The repository at `path` has entries that the user may not read: `count`, of which some are named.
fn refused(report: &mut Report, named: &[Refusal], count: usize, user: &User, path: &Path) {
    let mut text = named.iter().map(|refusal| refusal.text(user)).collect::<Vec<_>>().join("; ");
    if count > named.len() {
        text.push_str(&format!("; and {} more", count - named.len()));
    }
    let next = format!("chown -R {} {1}, or chmod -R o+rX {1}", user.name, path.display());
    report.bad(Level::Problem, Area::Files, "model-repository", text, next);
}

fn directory(report: &mut Report, name: &str, path: &Path, needs: &[Need], user: &User) {
    match user.reaches(path, needs) {
        Ok(()) => report.ok(Area::Files, name, path.display().to_string()),
        Err(refusal) => {
            let next = format!("give {} the right, for instance with chown or setfacl", user.name);
            report.bad(Level::Problem, Area::Files, name, refusal.text(user), next);
        }
    }
}

fn shared_memory(report: &mut Report, user: &User) {
    let (name, path) = ("shared-memory", Path::new(SHM));
    if !path.is_dir() {
        let next = format!("mount -t tmpfs tmpfs {SHM}");
        return report.bad(Level::Warning, Area::Files, name, format!("there is no {SHM}"), next);
    }
    if let Err(refusal) = user.reaches(path, &[Need::Read, Need::Write, Need::Execute]) {
        return report.bad(Level::Problem, Area::Files, name, refusal.text(user), format!("chmod 1777 {SHM}"));
    }
    let free = rustix::fs::statvfs(path).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).ok();
    match free {
        Some(free) if free < SHM_BYTES_MIN => {
            let what = format!("{SHM} has {} MiB left", free >> 20);
            let next = "Docker: --shm-size=1g; otherwise remove files that nobody uses";
            report.bad(Level::Warning, Area::Files, name, what, next);
        }
        Some(free) => report.ok(Area::Files, name, format!("{SHM}, {} MiB free", free >> 20)),
        None => report.ok(Area::Files, name, SHM),
    }
}

fn written_file(report: &mut Report, name: &str, path: &Path, user: &User) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let what = format!("{}: there is no directory {}", path.display(), parent.display());
        return report.bad(Level::Problem, Area::Files, name, what, format!("mkdir -p {}", parent.display()));
    }
    let outcome = match path.exists() {
        true => user.reaches(path, &[Need::Write]),
        false => user.reaches(parent, &[Need::Execute, Need::Write]),
    };
    match outcome {
        Ok(()) => report.ok(Area::Files, name, path.display().to_string()),
        Err(refusal) => {
            let next = format!("chown {} {}", user.name, refusal.path.display());
            report.bad(Level::Problem, Area::Files, name, refusal.text(user), next);
        }
    }
}

/// Certificates, keys and lists of keys.
fn read_files(report: &mut Report, options: &ServeOptions, user: &User) {
    let tls = [("http", &options.http_tls), ("grpc", &options.grpc_tls)].into_iter().filter(|(_, tls)| tls.is_on());
    let of_tls = tls.flat_map(|(service, tls)| {
        let files = &tls.credentials;
        let all = [("server-cert", &files.certificate), ("server-key", &files.key), ("root-cert", &files.roots)];
        all.map(|(what, path)| (format!("{service}-{what}"), path.clone()))
    });
    let keys = [
        ("http-restricted-api-file", &options.http_restricted_file),
        ("grpc-restricted-protocol-file", &options.grpc_restricted_file),
    ];
    let of_keys = keys.into_iter().filter_map(|(name, path)| Some((name.to_owned(), path.clone()?)));
    for (name, path) in of_tls.chain(of_keys).filter(|(_, path)| !path.as_os_str().is_empty()) {
        if !path.exists() {
            let next = format!("check --{name}");
            report.bad(Level::Problem, Area::Files, name, format!("there is no {}", path.display()), next);
            continue;
        }
        match user.reaches(&path, &[Need::Read]) {
            Ok(()) => report.ok(Area::Files, name, path.display().to_string()),
            Err(refusal) => {
                let next = format!("chown {} {}, or give its group the right", user.name, path.display());
                report.bad(Level::Problem, Area::Files, name, refusal.text(user), next);
            }
        }
    }
}
