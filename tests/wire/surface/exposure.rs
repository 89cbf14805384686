//! What a server with default flags answers without a key is what docs/exposure.md says, request by request.

use std::collections::BTreeSet;
use std::path::Path;

use nereid_test_support::grpc::{Grpc, SERVICE, code, frame, frame_bytes};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, run_to_end};
use nereid_test_support::variant::usual;
use nereid_wire::inference as wire;

use super::restricted::{ROUTES, RPCS};

/// What default flags refuse, whoever asks.
const REFUSALS: [&str; 4] = [
    "explicit model load / unload is not allowed",
    "generations cannot be activated",
    "Client shared memory is disabled",
    "failed to register CUDA shared memory region: 'r', GPUs not supported",
];

/// A row of the page: its cells.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/exposure.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect("the section");
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    rows.map(cells).collect()
}

/// The names in backquotes.
fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Without version and repository, and with names for what a client chooses.
fn general(method: &str, path: &str) -> String {
    let path = path.replace("/versions/1", "").replace("/repository/any/", "/repository/");
    let path = path.replace("/models/plain", "/models/<m>").replace("/generations/x/", "/generations/<id>/");
    let path = match path.split_once("/region/r/") {
        Some((front, "register")) => format!("{front}/region/<r>/register"),
        Some((front, action)) => format!("{front}/{action}"),
        None => path,
    };
    format!("{method} {path}")
}

#[test]
fn the_page_lists_every_route_and_every_rpc() {
    let rows = rows("Routes and RPCs");
    let health = [
        ("health", "GET", "/v2/health/live"),
        ("health", "GET", "/v2/health/ready"),
        ("health", "GET", "/v2/models/plain/ready"),
    ];
    let known: BTreeSet<_> = ROUTES
        .iter()
        .chain(&health)
        .map(|(group, method, path)| (format!("`{group}`"), general(method, path)))
        .collect();
    let listed: BTreeSet<_> = rows.iter().map(|row| (row[2].clone(), names(&row[0]).concat())).collect();
    assert_eq!(listed, known);
    // The RPCs by the definition of the protocol, and their groups by the test of restrictions.
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/inference.proto");
    let proto = std::fs::read_to_string(proto).expect("the protocol's definition");
    let defined = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split(['(', ' ']).next());
    let defined: BTreeSet<String> = defined.map(str::to_owned).chain(["Health.Check".to_owned()]).collect();
    let listed: BTreeSet<String> = rows.iter().flat_map(|row| names(&row[1])).collect();
    assert_eq!(listed, defined);
    for row in &rows {
        for rpc in names(&row[1]) {
            let group = RPCS.iter().find(|(_, name)| *name == rpc).map_or("health", |(group, _)| group);
            assert_eq!(row[2], format!("`{group}`"), "{rpc}");
        }
    }
}

fn message(rpc: &str) -> bytes::Bytes {
    let plain = || "plain".to_owned();
    match rpc {
        "RepositoryModelLoad" => frame(&wire::RepositoryModelLoadRequest { model_name: plain(), ..Default::default() }),
        "CudaSharedMemoryRegister" => {
            frame(&wire::CudaSharedMemoryRegisterRequest { name: "r".to_owned(), ..Default::default() })
        }
        _ => frame_bytes(0, b""),
    }
}

#[test]
fn a_default_server_answers_what_the_page_says() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    let is_refused = |text: &str| REFUSALS.iter().any(|refusal| text.contains(refusal));
    for row in rows("Routes and RPCs") {
        let (method, path) = row[0].trim_matches('`').split_once(' ').expect("a method and a path");
        let path = path.replace("<m>", "plain").replace("<r>", "r");
        let answer = peer.send(&request(method, &path, &[], if method == "POST" { b"{}" } else { b"" })).answer();
        assert!(![403, 404, 405].contains(&answer.status), "{row:?}: {} {}", answer.status, answer.text());
        let said = if is_refused(&answer.text()) { "refused" } else { "answered" };
        assert_eq!(said, row[3], "{row:?}: {} {}", answer.status, answer.text());
        for rpc in names(&row[1]) {
            let path = match rpc.as_str() {
                "Health.Check" => "/grpc.health.v1.Health/Check".to_owned(),
                rpc => format!("{SERVICE}{rpc}"),
            };
            // A stream without a request ends well.
            let pieces = if rpc == "ModelStreamInfer" { Vec::new() } else { vec![message(&rpc)] };
            let status = grpc.exchange(&path, &[], &pieces).status;
            let is_known = status.code != code::UNIMPLEMENTED || is_refused(&status.message);
            assert!(is_known, "{rpc}: {status:?}");
            let said = if is_refused(&status.message) { "refused" } else { "answered" };
            assert_eq!(said, row[3], "{rpc}: {status:?}");
            let needs_key = status.message.contains("restricted");
            assert!(!needs_key, "{rpc}: {status:?}");
        }
    }
    assert_eq!(Peer::connect(server.metrics).get("/metrics").status, 200);
    server.stop();
}

/// The addresses of the page are the defaults that the program itself states.
#[test]
fn the_ports_of_the_page_are_the_defaults() {
    let (_, help, _) = run_to_end(&["--help"]);
    // Lines of a text are those of the terminal.
    let help = help.replace("\n        ", " ");
    let default_of = |flag: &str| {
        let at = help.find(&format!("--{flag} ")).unwrap_or_else(|| panic!("--{flag}: {help}"));
        let text = help[at..].split("Default: ").nth(1).expect("a default");
        text.split(".\n").next().expect("its text").trim_end_matches('.').to_owned()
    };
    for (row, (name, flags)) in rows("Ports").iter().zip([
        ("HTTP", ["http-port", "http-address", "allow-http"]),
        ("gRPC", ["grpc-port", "grpc-address", "allow-grpc"]),
        ("metrics", ["metrics-port", "metrics-address", "allow-metrics"]),
    ]) {
        assert_eq!(row[0], name);
        let [port, address, allowed] = flags.map(default_of);
        assert_eq!((&row[1], allowed.as_str()), (&port, "true"), "{name}");
        assert!(row[2].trim_matches('`') == address || name == "metrics", "{name}: {address}");
    }
    for flag in ["allow-sagemaker", "http-use-ssl", "grpc-use-ssl"] {
        assert_eq!(default_of(flag), "false", "--{flag}");
    }
    assert_eq!(default_of("allow-vertex-ai"), "true if AIP_MODE is PREDICTION, else false");
}
