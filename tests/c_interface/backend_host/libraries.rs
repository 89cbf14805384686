//! Libraries that the server refuses: its error for each is the reason of the model's state.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// The library of a source that is its own backend.
fn library(file: &str) -> Option<PathBuf> {
    let name = file.trim_end_matches(".c");
    Some(backend::compiled(file)?.join(name).join(format!("libtriton_{name}.so")))
}

/// A model that names its library.
fn model(repository: &Repository, name: &str, runtime: &str) {
    let runtime = if runtime.is_empty() { String::new() } else { format!("runtime: \"{runtime}\"") };
    repository.identity_of("own", name, 0, &[Pair::new("INT8", "-1")], &runtime);
}

/// The machine that an ELF file is for, made another one.
fn foreign(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    // e_machine, behind e_ident and e_type: EM_SPARC.
    bytes[18] = 2;
    bytes[19] = 0;
    bytes
}

fn states(repository: &Repository, backends: &Path) -> (Value, String) {
    let flags = [&format!("--backend-directory={}", backends.display()), "--exit-on-error=false"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    let index = Peer::connect(server.http).post("/v2/repository/index", &[], b"").json();
    (index, server.stop())
}

#[test]
fn what_is_no_backend_is_refused_with_its_reason() {
    let Some(good) = backend::directory() else { return };
    let good = good.join("copycat/libtriton_copycat.so");
    let (Some(old), Some(bare), Some(dangling)) = (library("old.c"), library("bare.c"), library("dangling.c")) else {
        return;
    };
    let repository = Repository::new();
    let root = repository.path().to_owned();
    let backends = root.join("backends of this test");
    fs::create_dir_all(backends.join("own")).expect("a directory");
    let bytes = fs::read(&good).expect("a library");
    let files: [(&str, Vec<u8>); 8] = [
        ("text", b"this is no library, however long it may be: it has not even the first four bytes of one".to_vec()),
        ("short", b"short".to_vec()),
        ("cut", bytes[..bytes.len() / 3].to_vec()),
        ("foreign", foreign(&bytes)),
        ("old", fs::read(old).expect("a library")),
        ("bare", fs::read(bare).expect("a library")),
        ("dangling", fs::read(dangling).expect("a library")),
        ("good", bytes),
    ];
    for (name, bytes) in &files {
        model(&repository, name, "libgiven.so");
        repository.file(&format!("{name}/libgiven.so"), bytes);
    }
    model(&repository, "directory", "libgiven.so");
    repository.file("directory/libgiven.so/file", "");
    model(&repository, "nested", "sub/libgiven.so");
    fs::create_dir_all(root.join("nested/sub")).expect("a directory");
    fs::copy(&good, root.join("nested/sub/libgiven.so")).expect("a copy");
    for (name, runtime) in [("up", "../good/libgiven.so"), ("down_up", "1/../../good/libgiven.so")] {
        model(&repository, name, runtime);
    }
    let absolute = root.join("good/libgiven.so").display().to_string();
    model(&repository, "absolute", &absolute);
    model(&repository, "link", "libgiven.so");
    std::os::unix::fs::symlink(root.join("good/libgiven.so"), root.join("link/libgiven.so")).expect("a link");
    model(&repository, "absent", "libnone.so");
    model(&repository, "unnamed", "");

    let (index, log) = states(&repository, &backends);
    let reason = |name: &str| {
        let row = index.as_array().into_iter().flatten().find(|row| row["name"] == name).cloned().unwrap_or_default();
        (
            row["state"].clone(),
            row["reason"].as_str().unwrap_or_default().replace(&root.display().to_string(), "<root>"),
        )
    };
    for name in ["good", "nested"] {
        assert_eq!(reason(name), (json!("READY"), String::new()));
    }
    let escapes = |file: &str, place: &str, model: &str| {
        format!(
            "Invalid argument: backend library name '{file}' escapes backend directory '<root>/{place}', for model \
             '{model}', check model config runtime field"
        )
    };
    let own = "backends of this test/own";
    let exact = [
        ("old", "Unsupported: old.c: needs version 1.1000 of the interface".to_owned()),
        ("up", escapes("../good/libgiven.so", own, "up")),
        ("down_up", escapes("1/../../good/libgiven.so", own, "down_up")),
        ("absolute", escapes("<root>/good/libgiven.so", own, "absolute")),
        ("link", escapes("libgiven.so", "link", "link")),
        (
            "absent",
            format!(
                "Invalid argument: unable to find backend library 'libnone.so' for model 'absent', searched: \
                 '<root>/absent/1' '<root>/absent' '<root>/{own}'"
            ),
        ),
        (
            "unnamed",
            "Invalid argument: unable to find backend library for backend 'own', try specifying runtime on the model \
             configuration."
                .to_owned(),
        ),
    ];
    for (name, expected) in exact {
        assert_eq!(reason(name), (json!("UNAVAILABLE"), expected), "{index}");
    }
    // What the loader says is its own business; whose library it is and what is wrong has to be there.
    let load = "unable to load shared library: <root>";
    let about = [
        ("text", load, "/text/libgiven.so: "),
        ("short", load, "/short/libgiven.so: "),
        ("cut", load, "/cut/libgiven.so: "),
        ("foreign", load, "/foreign/libgiven.so: "),
        ("directory", load, "/directory/libgiven.so: "),
        ("dangling", load, "TRITONBACKEND_NobodyHasThis"),
        (
            "bare",
            "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library: ",
            "/bare/libgiven.so: ",
        ),
    ];
    for (name, start, part) in about {
        let (state, reason) = reason(name);
        assert_eq!(state, "UNAVAILABLE", "{name}");
        assert!(reason.starts_with(&format!("Not found: {start}")) && reason.contains(part), "{name}: {reason}");
    }
    assert!(!log.contains("finalised without being initialised"), "{log}");
}

#[test]
fn a_backend_ends_with_its_last_model_and_begins_again() {
    let Some(directory) = backend::directory() else { return };
    let repository = Repository::new();
    let pairs = [Pair::new("INT8", "-1")];
    let fail = "parameters { key: \"fail_load\" value { string_value: \"I will not\" } }";
    for (name, more) in [("one", ""), ("two", ""), ("refused", fail)] {
        repository.identity_of("copycat", name, 0, &pairs, more);
    }
    let flag = format!("--backend-directory={}", directory.display());
    let flags = [&*flag, "--model-control-mode=explicit", "--load-model=one", "--load-model=two"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    let mut control = |name: &str, what: &str| peer.post(&format!("/v2/repository/models/{name}/{what}"), &[], b"");
    // A model that is refused ends neither itself nor the others.
    assert_eq!(control("refused", "load").status, 400);
    assert_eq!(control("one", "unload").status, 200);
    server.wait_for_log("identity.c: model finalize: one");
    assert!(!server.log().contains("identity.c: finalize:"), "one model is left: {}", server.log());
    assert_eq!(control("two", "unload").status, 200);
    server.wait_for_log("identity.c: finalize: copycat");
    assert_eq!(control("one", "load").status, 200);
    let log = server.stop();
    assert!(!log.contains("model finalize: refused"), "{log}");
    let steps: Vec<&str> = log
        .lines()
        .filter_map(|line| {
            let (_, said) = line.split_once("identity.c: ")?;
            ["initialize: copycat", "finalize: copycat"].into_iter().find(|step| said.starts_with(step))
        })
        .collect();
    assert_eq!(
        steps,
        ["initialize: copycat", "finalize: copycat", "initialize: copycat", "finalize: copycat"],
        "{log}"
    );
}
