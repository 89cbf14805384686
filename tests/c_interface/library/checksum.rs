//! The built-in agent `checksum`, and a library of that name.

use super::agents::{load, model};
use nereid_test_support::library::{Libraries, compiled};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// Of an empty file.
const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e";
/// Of `a` (RFC 1321, A.5).
const A: &str = "0cc175b9c0f1b6a831c399e269772661";

#[test]
fn models_whose_files_are_not_as_expected_do_not_load() {
    let repository = Repository::new();
    model(&repository, "good", &[("checksum", &[("MD5:1/file", A), ("MD5:empty", EMPTY)])]);
    model(&repository, "changed", &[("checksum", &[("MD5:1/file", A), ("MD5:empty", A)])]);
    model(&repository, "outside", &[("checksum", &[("MD5:../good/empty", EMPTY)])]);
    model(&repository, "absent", &[("checksum", &[("MD5:absent", EMPTY)])]);
    model(&repository, "unknown", &[("checksum", &[("SHA1:empty", EMPTY)])]);
    for name in ["good", "changed", "outside", "unknown"] {
        repository.file(&format!("{name}/1/file"), "a").file(&format!("{name}/empty"), "");
    }
    let server = Server::start(usual(), repository.path(), &["--model-control-mode=explicit", "--load-model=good"]);
    // The log comes behind the answers.
    server.wait_for_log("| checksum");
    let row = server.log().lines().find(|line| line.starts_with("| checksum")).map(str::to_owned);
    assert!(row.is_some_and(|row| row.contains("<built in>")), "{}", server.log());
    let mismatch = format!("Mismatched MD5 hash for file empty, expect: {A}, got: {EMPTY}");
    for (name, cause) in [
        ("changed", &*mismatch),
        ("outside", "file '../good/empty' of the agent 'checksum' is outside the model's directory"),
        ("absent", "failed to read file 'absent' to compute its MD5 hash: "),
        ("unknown", "Unexpected parameter 'SHA1:empty' of the agent 'checksum', expects "),
    ] {
        let (status, text) = load(&server, name);
        let expected = format!("{{\"error\":\"failed to load '{name}', failed to poll from model repository\"}}");
        assert_eq!((status, text), (500, expected));
        server.wait_for_log(&format!("Poll failed for model directory '{name}': {cause}"));
    }
    // A file that changes is found out by the next load, and the model that serves goes on.
    repository.file("good/1/file", "b");
    let (status, text) = load(&server, "good");
    assert_eq!(status, 500, "{text}");
    let ready = nereid_test_support::http::Peer::connect(server.http).get("/v2/models/good/ready");
    assert_eq!(ready.status, 200);
    server.stop();
}

#[test]
fn a_library_of_that_name_is_taken_where_a_parameter_names_it() {
    let Some(library) = compiled("agent.c") else { return };
    let libraries = Libraries::new();
    libraries.agent("checksum", &library);
    let repository = Repository::new();
    let file = "libtritonrepoagent_checksum.so";
    model(&repository, "built_in", &[("checksum", &[("MD5:1/file", A)])]);
    repository.file("built_in/1/file", "a");
    model(&repository, "library", &[("checksum", &[("library", file), ("tag", "l"), ("MD5:1/none", A)])]);
    model(&repository, "escape", &[("checksum", &[("library", &format!("../checksum/{file}"))])]);
    let flags = [
        &*libraries.flag("repoagent-directory"),
        "--model-control-mode=explicit",
        "--load-model=built_in",
        "--load-model=library",
    ];
    let server = Server::start(usual(), repository.path(), &flags);
    assert_eq!(load(&server, "escape").0, 500);
    let log = server.stop();
    assert!(log.contains("~ l LOAD library"), "{log}");
    assert!(!log.contains("~ untagged"), "{log}");
    let cause = format!("unable to find '../checksum/{file}' for repo agent 'checksum', searched: ");
    assert!(log.contains(&cause), "{log}");
    let rows: Vec<&str> = log.lines().filter(|line| line.starts_with("| checksum ")).collect();
    assert!(rows.len() == 2 && rows[0].contains("<built in>") && rows[1].contains(file), "{rows:?}");
}
