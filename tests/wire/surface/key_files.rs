//! Keys of restricted groups from files that change while the server runs (docs/access.md).

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use nereid_test_support::grpc::{Grpc, SERVICE, Status, code, frame_bytes};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::variant::{self, Variant, each, usual};

const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;

/// A server whose keys of both protocols are in one file.
struct Keyed {
    repository: Repository,
    server: Server,
    path: PathBuf,
}

impl Keyed {
    fn start(variant: Variant, text: &str, flags: &[&str]) -> Keyed {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        // Beside the models, where the server takes a file for nothing.
        let path = repository.path().join("keys");
        write(&path, text);
        let files = ["http-restricted-api-file", "grpc-restricted-protocol-file"];
        let files = files.map(|flag| format!("--{flag}={}", path.display()));
        let flags: Vec<&str> = files.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let server = Server::start(variant, repository.path(), &flags);
        Keyed { repository, server, path }
    }

    /// Replaces the file, and waits until the server has read it.
    fn replace(&self, text: &str, said: &str) {
        let before = self.server.log().matches(said).count();
        write(&self.path, text);
        self.server.wait_until("the file is read", || self.server.log().matches(said).count() > before);
    }
}

/// As a careful operator writes: a reader finds the old or the new text.
fn write(path: &PathBuf, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("the new keys");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).expect("their mode");
    std::fs::rename(&new, path).expect("the new keys in their place");
}

fn infer(peer: &mut Peer, key: &str) -> u16 {
    peer.send(&request("POST", "/v2/models/plain/infer", &[("team", key)], BODY)).answer().status
}

fn call(grpc: &mut Grpc, rpc: &str, key: &str) -> Status {
    let message: Bytes = frame_bytes(0, b"");
    let path = format!("{SERVICE}{rpc}");
    grpc.exchange(&path, &[("triton-grpc-protocol-team", key)], &[message]).status
}

/// A key that is taken away is refused also on connections whose requests the server has learnt to recognise; one that
/// stays valid lets every request in.
#[test]
fn keys_are_rotated_under_load() {
    each(&variant::ALL, |variant| {
        let keyed =
            Keyed::start(variant, "old inference,metadata:team=alpha\nkept inference,metadata:team=beta\n", &[]);
        let (http, grpc) = (keyed.server.http, keyed.server.grpc);
        let (ends, served) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (mut peer, mut calls) = (Peer::connect(http), Grpc::connect(grpc));
                    while !ends.load(Ordering::Relaxed) {
                        assert_eq!(infer(&mut peer, "beta"), 200);
                        assert_eq!(call(&mut calls, "ServerMetadata", "beta").code, code::OK);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let (mut peer, mut calls) = (Peer::connect(http), Grpc::connect(grpc));
            for _ in 0..5 {
                assert_eq!(infer(&mut peer, "alpha"), 200);
                assert_eq!(call(&mut calls, "ServerMetadata", "alpha").code, code::OK);
                assert_eq!(infer(&mut peer, "gamma"), 403);
            }
            // Of one head alone, which the server recognises when it comes again.
            let mut old = Peer::connect(http);
            assert!((0..20).all(|_| infer(&mut old, "alpha") == 200));
            let new = "kept inference,metadata:team=beta\nnew inference,metadata:team=gamma\n";
            keyed.replace(new, "are valid from now on: 4, named kept, new");
            // The other protocol's file is read apart, and the last shard has the new keys a moment later: on each of
            // the connections, until it has them.
            keyed.server.wait_until("the new key is valid", || infer(&mut peer, "gamma") == 200);
            keyed.server.wait_until("the old key is not", || infer(&mut peer, "alpha") == 403);
            keyed.server.wait_until("nor where its requests are known", || infer(&mut old, "alpha") == 403);
            keyed.server.wait_until("the new key is valid over gRPC", || {
                call(&mut calls, "ServerMetadata", "gamma").code == code::OK
                    && call(&mut calls, "ServerMetadata", "alpha").code == code::UNAVAILABLE
            });
            for _ in 0..5 {
                assert_eq!((infer(&mut old, "alpha"), infer(&mut peer, "alpha")), (403, 403));
                assert_eq!(infer(&mut peer, "gamma"), 200);
                let refused = call(&mut calls, "ServerMetadata", "alpha");
                let text = "This protocol is restricted, expecting header 'triton-grpc-protocol-team'";
                assert_eq!((refused.code, &*refused.message), (code::UNAVAILABLE, text));
                assert_eq!(call(&mut calls, "ServerMetadata", "gamma").code, code::OK);
            }
            let before = served.load(Ordering::Relaxed);
            keyed.server.wait_until("others are served on", || served.load(Ordering::Relaxed) > before + 10);
            ends.store(true, Ordering::Relaxed);
        });
        let log = keyed.server.stop();
        assert!(["alpha", "beta", "gamma"].iter().all(|value| !log.contains(value)), "the log tells a key:\n{log}");
        drop(keyed.repository);
    });
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing() {
    let keyed = Keyed::start(usual(), "# the keys\ninference,logging:team=alpha\n", &["--log-verbose=2"]);
    let mut peer = Peer::connect(keyed.server.http);
    let stays = |peer: &mut Peer| {
        assert_eq!((infer(peer, "alpha"), infer(peer, "stolen"), infer(peer, "")), (200, 403, 403));
    };
    stays(&mut peer);
    let path = keyed.path.display().to_string();
    let many = "inference,logging:team=stolen\n".repeat(65);
    for (text, said) in [
        ("inference,logging:team=beta\nlogging=stolen\n", format!("'{path}', line 2: expected '[<name> ]<group>")),
        ("\n\ninfer:team=stolen\n", format!("'{path}', line 3: an unknown group; the groups are health, metadata")),
        ("inference:te am=stolen\n", format!("'{path}', line 1: the header's name has a character")),
        (&many, format!("'{path}', line 65: a group has more than 64 keys")),
        ("", format!("'{path}' has no key for the group 'inference' any more")),
        ("inference:team=stolen\n", format!("'{path}' has no key for the group 'logging' any more")),
    ] {
        keyed.replace(text, &format!("--http-restricted-api-file: {said}"));
        stays(&mut peer);
    }
    std::fs::write(&keyed.path, [0xff, 0xfe]).expect("no text");
    keyed.server.wait_for_log(&format!("--grpc-restricted-protocol-file: '{path}' is not UTF-8"));
    stays(&mut peer);
    std::fs::remove_file(&keyed.path).expect("the file is there");
    keyed.server.wait_for_log(&format!("--grpc-restricted-protocol-file: cannot read '{path}': No such file"));
    stays(&mut peer);
    std::fs::create_dir(&keyed.path).expect("a directory in its place");
    keyed.server.wait_for_log(&format!("--grpc-restricted-protocol-file: '{path}' is not a regular file"));
    stays(&mut peer);
    std::fs::remove_dir(&keyed.path).expect("the directory is there");
    // It is not given up: the next good file is used. It may restrict more groups than the first.
    assert_eq!(peer.get("/v2").status, 200);
    keyed.replace("inference,logging,metadata:team=beta\n", "are valid from now on: 3");
    keyed.server.wait_until("the new key is valid", || infer(&mut peer, "beta") == 200);
    assert_eq!((infer(&mut peer, "alpha"), peer.get("/v2").status), (403, 403));
    let log = keyed.server.stop();
    assert!(["alpha", "beta", "stolen"].iter().all(|value| !log.contains(value)), "the log tells a key:\n{log}");
}

/// A group's keys are those of the flag and of the file; a mounted secret is exchanged by a link.
#[test]
fn flags_and_links_give_keys_too() {
    let flag = "--http-restricted-api=inference:admin=root";
    let keyed = Keyed::start(usual(), "inference:team=alpha", &[flag]);
    let mut peer = Peer::connect(keyed.server.http);
    let admin = |peer: &mut Peer| {
        peer.send(&request("POST", "/v2/models/plain/infer", &[("admin", "root")], BODY)).answer().status
    };
    assert_eq!((infer(&mut peer, "alpha"), admin(&mut peer), infer(&mut peer, "root")), (200, 200, 403));
    let target = keyed.path.with_extension("mounted");
    write(&target, "inference:team=beta");
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let link = keyed.path.with_extension("link");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    std::fs::rename(&link, &keyed.path).expect("the link in its place");
    keyed.server.wait_until("the new key is valid", || infer(&mut peer, "beta") == 200);
    assert_eq!((infer(&mut peer, "alpha"), admin(&mut peer)), (403, 200));
    let log = keyed.server.stop();
    assert!(log.contains("every user of this host can read the keys in"), "{log}");
}

#[test]
fn a_wrong_file_ends_the_start() {
    let repository = Repository::new();
    let path = repository.path().join("keys");
    for (text, said) in [
        (Some("inference:team"), "line 1: expected '[<name> ]<group>[,<group>]:<header>=<value>'"),
        (Some("\nteam secret:team=secret"), "line 2: an unknown group"),
        (None, "cannot read"),
    ] {
        let _ = std::fs::remove_file(&path);
        if let Some(text) = text {
            write(&path, text);
        }
        for flag in ["http-restricted-api-file", "grpc-restricted-protocol-file"] {
            let ports = ["http", "grpc", "metrics"].map(|service| format!("--{service}-port={}", free_port()));
            let file = format!("--{flag}={}", path.display());
            let mut words = vec!["--model-repository=/nowhere", &file];
            words.extend(ports.iter().map(String::as_str));
            let (status, out, error) = run_to_end(&words);
            assert_eq!(status.code(), Some(1), "{out}{error}");
            assert!(error.contains(&format!("--{flag}: ")) && error.contains(said), "{error}");
            assert!(!error.contains("=secret") && !out.contains("=secret"), "{out}{error}");
        }
    }
}
