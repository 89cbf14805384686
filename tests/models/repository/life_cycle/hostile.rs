//! Hostile repositories: links in circles, files that never end, names with unprintable characters.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::repository::life_cycle::control::{EVERY_SECOND, EXPLICIT, Life, POLL, config};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::OTHER_SERVER;
use nereid_test_support::variant::usual;

/// Our promise alone: 2.51 reads whole files, waits for pipes and throws.
fn ours_alone() -> bool {
    std::env::var_os(OTHER_SERVER).is_some()
}

fn refused(life: &mut Life, model: &str) {
    let answer = life.load(model);
    assert!(matches!(answer.status, 400 | 500), "{model}: {} {}", answer.status, answer.text());
    let text = answer.error();
    assert!(text.contains("failed to load '") || text.contains("load failed for model '"), "{model}: {text}");
    assert_eq!(life.get("/v2/health/live").status, 200, "after {model}");
}

#[test]
fn configs_that_are_no_files_fail_at_once() {
    if ours_alone() {
        return;
    }
    let repository = Repository::new();
    let at = |path: &str| repository.path().join(path);
    repository.model("good", &config("good", ""));
    for model in ["pipe", "zero", "loop", "dangling", "directory", "itself"] {
        repository.version(model, "1");
    }
    let made = Command::new("mkfifo").arg(at("pipe/config.pbtxt")).status().expect("mkfifo");
    assert!(made.success());
    symlink("/dev/zero", at("zero/config.pbtxt")).expect("a link");
    symlink(at("loop/second"), at("loop/config.pbtxt")).expect("a link");
    symlink(at("loop/config.pbtxt"), at("loop/second")).expect("a link");
    symlink("/nowhere/config.pbtxt", at("dangling/config.pbtxt")).expect("a link");
    std::fs::create_dir(at("directory/config.pbtxt")).expect("a directory");
    symlink("config.pbtxt", at("itself/config.pbtxt")).expect("a link");
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    let before = life.server.resident_kib();
    for model in ["pipe", "zero", "loop", "dangling", "directory", "itself"] {
        refused(&mut life, model);
        life.server.wait_for_log(&format!("'{model}'"));
    }
    assert!(life.server.resident_kib() < before + 64 * 1024, "{} KiB before", before);
    life.must_load("good");
    life.server.stop();
}

#[test]
fn configs_without_measure_are_refused_without_being_read() {
    if ours_alone() {
        return;
    }
    let repository = Repository::new();
    // Sparse: no block is allocated.
    for (model, bytes) in [("gigabyte", 1u64 << 30), ("terabyte", 1 << 40)] {
        repository.model(model, "");
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(repository.path().join(model).join("config.pbtxt"))
            .expect("the config");
        if file.set_len(bytes).is_err() {
            repository.file(&format!("{model}/config.pbtxt"), "x");
        }
    }
    let long = format!("name: \"long\"\n# {}\n", "x".repeat(40 << 20));
    repository.model("comment", &long);
    repository.model("deep", &"ensemble_scheduling { step { ".repeat(200_000));
    repository.model("nested", &("parameters { key: \"a\" value { ".to_string() + &"[".repeat(500_000)));
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    let before = life.server.resident_kib();
    for model in ["gigabyte", "terabyte", "deep", "nested", "comment"] {
        refused(&mut life, model);
    }
    let after = life.server.resident_kib();
    assert!(after < before + 256 * 1024, "resident memory: {before} KiB before, {after} KiB after");
    life.server.stop();
}

#[test]
fn directories_in_circles_are_walked_once() {
    if ours_alone() {
        return;
    }
    let repository = Repository::new();
    repository.model("m", &config("m", ""));
    symlink(repository.path(), repository.path().join("m/1/up")).expect("a link");
    symlink(repository.path().join("m"), repository.path().join("m/self")).expect("a link");
    symlink("..", repository.path().join("m/parent")).expect("a link");
    // A model that is a link into a circle.
    symlink("circle", repository.path().join("circle")).expect("a link");
    for flags in [&[EXPLICIT][..], &[POLL, EVERY_SECOND, "--exit-on-error=false"]] {
        let Some(mut life) = Life::start(usual(), &repository, flags) else { return };
        if flags[0] == EXPLICIT {
            life.must_load("m");
            let answer = life.load("circle");
            assert!(matches!(answer.status, 400 | 500), "{}", answer.text());
        }
        assert_eq!(life.served_by("m"), "1");
        assert_eq!(life.get("/v2/health/live").status, 200);
        life.server.stop();
    }
}

#[test]
fn names_of_all_kinds_reach_neither_log_nor_index_raw() {
    if ours_alone() {
        return;
    }
    let repository = Repository::new();
    repository.model("good", &config("good", ""));
    let names: [&[u8]; 8] = [
        b"line\nbreak",
        b"E1121 00:00:00.000000 1 fake.cc:1] \"forged\"",
        b"bell\x07\x1b[31mred",
        b"not\xff\xfeutf8",
        b"quote\"d",
        b"back\\slash",
        b"blank ",
        "ünï→code".as_bytes(),
    ];
    for name in names {
        let path = repository.path().join(OsStr::from_bytes(name));
        std::fs::create_dir_all(path.join("1")).expect("make a model");
        std::fs::write(path.join("config.pbtxt"), "nonsense").expect("write a config");
    }
    let longest = "n".repeat(255);
    repository.model(&longest, &config(&longest, ""));
    let Some(mut life) = Life::start(usual(), &repository, &["--exit-on-error=false"]) else { return };
    assert_eq!(life.served_by("good"), "1");
    // The index is JSON, whatever the names are; readable names stand in it as they are.
    let index = life.index();
    for name in names.iter().filter_map(|name| std::str::from_utf8(name).ok()) {
        assert!(index.iter().any(|row| row.name == name), "{name:?} is missing in {index:?}");
    }
    assert!(index.iter().any(|row| row.name == longest && row.state == "READY"), "{index:?}");
    let log = life.server.stop();
    assert!(!log.contains('\u{7}') && !log.contains('\u{1b}'), "control characters in the log:\n{log}");
    let forged = log.lines().any(|line| line.starts_with("E1121 00:00:00.000000") || line.starts_with("break"));
    assert!(!forged, "a name broke a line of the log:\n{log}");
}

#[test]
fn a_model_with_very_many_entries_is_read() {
    let repository = Repository::new();
    repository.model("m", &config("m", ""));
    for version in 2..=2000 {
        repository.version("m", &version.to_string());
    }
    for directory in 0..200 {
        std::fs::create_dir_all(repository.path().join(format!("m/1/{directory}/a/b/c/d"))).expect("directories");
    }
    let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) else { return };
    life.must_load("m");
    assert_eq!(life.versions("m"), ["2000"]);
    life.server.stop();
}

/// Where permissions bind this user, a directory that cannot be read is a failed poll with the path in the log.
#[test]
fn what_cannot_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    if ours_alone() {
        return;
    }
    let repository = Repository::new();
    repository.model("good", &config("good", ""));
    repository.model("locked", &config("locked", "")).model("secret", &config("secret", ""));
    let mode = |path: &str, mode: u32| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(repository.path().join(path), permissions).expect("set permissions");
    };
    mode("locked", 0);
    mode("secret/config.pbtxt", 0);
    let binds = std::fs::read_dir(repository.path().join("locked")).is_err();
    if let Some(mut life) = Life::start(usual(), &repository, &[EXPLICIT]) {
        if binds {
            for model in ["locked", "secret"] {
                refused(&mut life, model);
                life.server.wait_for_log(&repository.path().join(model).display().to_string());
            }
        } else {
            // The administrator reads everything: what is left to see is that nothing else suffers.
            life.must_load("locked");
        }
        life.must_load("good");
        life.server.stop();
    }
    mode("locked", 0o755);
}
