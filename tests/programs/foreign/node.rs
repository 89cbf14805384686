//! A client in Node: grpc-js, which speaks HTTP/2 through nghttp2, with the .proto files of this repository; fetch and
//! node:http against the HTTP port.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use nereid_test_support::prepared::{fingerprint, prepared, source, step};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, each};

/// node_modules with what tests/node/package-lock.json pins; None after a visible skip.
pub fn modules() -> Option<&'static PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(install) {
        Ok(modules) => Some(modules),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn install() -> Result<PathBuf, String> {
    let version = step(Command::new("node").arg("--version")).map_err(|error| format!("no Node: {error}"))?;
    let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
    // The first with fetch and with parseArgs.
    if major.is_none_or(|major: u32| major < 18) {
        return Err(format!("Node is too old: {version}"));
    }
    let files = ["package.json", "package-lock.json"];
    let read = |file| std::fs::read(source("tests/node").join(file)).map_err(|error| format!("{file}: {error}"));
    let texts = [read(files[0])?, read(files[1])?];
    let root = prepared(&format!("node-modules-{}", fingerprint(&[&texts[0], &texts[1]])), |root| {
        for (file, text) in files.iter().zip(&texts) {
            std::fs::write(root.join(file), text).map_err(|error| format!("{file}: {error}"))?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(root);
        step(&mut npm).map(drop).map_err(|error| format!("the packages of npm cannot be had: {error}"))
    })?;
    Ok(root.join("node_modules"))
}

#[test]
fn unary_streams_large_tensors_deadlines_and_http() {
    let Some(modules) = modules() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        repository.identity("large", 0, &[Pair::new("UINT8", "-1")]);
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"1000\" } }";
        repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], delay);
        let server = Server::start(variant, repository.path(), &[]);
        let mut client = Command::new("node");
        client.arg(source("tests/node/client.js"));
        client.args(["--grpc", &server.grpc.to_string(), "--http", &server.http.to_string()]);
        client.arg("--proto").arg(source("proto")).arg("--modules").arg(modules);
        let said = step(&mut client).unwrap_or_else(|error| panic!("the Node client: {error}"));
        assert_eq!(said.trim(), "ok");
        server.stop();
    });
}
