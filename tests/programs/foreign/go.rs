//! A client in Go, on grpc-go and net/http as Debian packages them: frames of 16 KiB, windows that grow with what is
//! measured, header compression with a table in use, deadlines and cancellations of contexts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nereid_test_support::prepared::{fingerprint, prepared, source, step};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, each};

/// Where Debian's packages put Go sources.
const PACKAGES: &str = "/usr/share/gocode";

/// The program; None after a visible skip where Go or grpc-go is missing.
fn program() -> Option<&'static PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(build) {
        Ok(program) => Some(program),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn build() -> Result<PathBuf, String> {
    let version = step(Command::new("go").arg("version")).map_err(|error| format!("no Go: {error}"))?;
    let packages = Path::new(PACKAGES).join("src/google.golang.org/grpc");
    if !packages.is_dir() {
        return Err(format!("no grpc-go: {packages:?} is not there (Debian's golang-google-grpc-dev)"));
    }
    let client = source("tests/go/client.go");
    let text = std::fs::read(&client).map_err(|error| format!("{client:?}: {error}"))?;
    let root = prepared(&format!("go-client-{}", fingerprint(&[&text, version.as_bytes()])), |root| {
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(root.join("client")).arg(&client);
        build.env("GO111MODULE", "off").env("GOPATH", PACKAGES).env("GOFLAGS", "").env("GOCACHE", root.join("cache"));
        // What is there and does not build is a failure, not a reason to skip.
        step(&mut build).unwrap_or_else(|error| panic!("{client:?}: {error}"));
        std::fs::remove_dir_all(root.join("cache")).map_err(|error| format!("the compiler's cache: {error}"))
    })?;
    Ok(root.join("client"))
}

/// The example, built as its head says, with the library of this build and the checks of handles.
#[test]
fn the_example_runs_the_server_inside_itself() {
    if let Err(error) = step(Command::new("go").arg("version")) {
        return skip(&format!("no Go: {error}"));
    }
    let place = Repository::new();
    let program = place.path().join("in_process");
    let library = Path::new(env!("CARGO_BIN_EXE_nereid")).with_file_name("deps");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source("examples/go"));
    build.env("GO111MODULE", "off").env("GOFLAGS", "").env("GOCACHE", place.path().join("cache"));
    build.env("CGO_CFLAGS", format!("-Wall -Wextra -Wno-unused-parameter -Werror -I{}", source("include").display()));
    build.env("CGO_LDFLAGS", format!("-L{0} -Wl,-rpath,{0}", library.display()));
    step(&mut build).unwrap_or_else(|error| panic!("the example in Go: {error}"));
    let mut run = Command::new(program);
    // The log has errors alone, and a handle that is not given back is one.
    let output = run.arg(source("examples/c/models")).env("NEREID_CHECK_HANDLES", "1").output().expect("the example");
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert_eq!((out.as_ref(), err.as_ref()), ("10\n20\n30\n", ""), "{}", output.status);
    assert!(output.status.success(), "{}", output.status);
}

#[test]
fn unary_streams_large_tensors_deadlines_and_http() {
    let Some(program) = program() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        repository.identity("large", 0, &[Pair::new("UINT8", "-1")]);
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"1000\" } }";
        repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], delay);
        let server = Server::start(variant, repository.path(), &[]);
        let mut client = Command::new(program);
        client.args(["-grpc", &server.grpc.to_string(), "-http", &server.http.to_string()]);
        let said = step(&mut client).unwrap_or_else(|error| panic!("the Go client: {error}"));
        assert_eq!(said.trim(), "ok");
        server.stop();
    });
}
