//! What the program says to a user that does not know it yet: alone, with `help`, with a mistyped word, and when it
//! cannot start; and that it says it as Triton does under Triton's name.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{OTHER_SERVER, binary, free_port, run_to_end, run_to_end_under};
use nereid_test_support::skip::skip;

const SUBCOMMANDS: [&str; 12] = [
    "serve",
    "quickstart",
    "openai",
    "check",
    "explain",
    "migrate",
    "perf",
    "runtime",
    "install",
    "completion",
    "man",
    "help",
];

fn is_other() -> bool {
    std::env::var_os(OTHER_SERVER).is_some()
}

#[test]
fn alone_it_says_what_to_do_next() {
    if is_other() {
        return;
    }
    let (status, out, err) = run_to_end(&[]);
    assert_eq!((status.code(), out.as_str()), (Some(1), ""), "{err}");
    for part in ["nereid quickstart", "--model-repository=<path>", "nereid migrate", "nereid help"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    assert!(err.lines().count() <= 8, "{err}");
}

#[test]
fn help_is_one_text_however_it_is_asked_for() {
    if is_other() {
        return;
    }
    let text = |words: &[&str]| {
        let (status, out, err) = run_to_end(words);
        assert_eq!((status.code(), err.as_str()), (Some(0), ""), "{words:?}");
        out
    };
    let whole = text(&["help"]);
    assert_eq!(whole, text(&["--help"]));
    assert_eq!(whole, text(&["-h"]));
    let flags = whole.find("\nFlags of `nereid serve`").expect("the flags");
    for name in SUBCOMMANDS {
        assert!(whole[..flags].contains(&format!("\n  {name} ")), "{name}: {whole}");
        let usage = text(&["help", name]);
        assert!(usage.starts_with("Usage: nereid "), "{name}: {usage}");
        assert_eq!(usage, text(&[name, "--help"]), "{name}");
        assert_eq!(usage, text(&[name, "-h"]), "{name}");
    }
    // Triton's groups in Triton's order, with flags that only Nereid has.
    let places: Vec<usize> = ["Server:", "Logging:", "HTTP:", "--http-use-ssl", "gRPC:", "Metrics:", "Tracing:"]
        .iter()
        .map(|part| whole[flags..].find(&format!("\n{part}")).or_else(|| whole[flags..].find(part)).expect(part))
        .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(text(&["help", "runtime"]), text(&["runtime", "install", "--help"]));
    assert_eq!(text(&["help", "perf", "compare"]), text(&["perf", "compare", "-h"]));
}

#[test]
fn a_mistake_is_answered_without_the_usage_text() {
    if is_other() {
        return;
    }
    for (words, text) in [
        (&["helpp"][..], "Unexpected argument: helpp; did you mean 'help'?\n`nereid help` lists the subcommands.\n"),
        (&["help", "prf"], "Unexpected argument: prf; did you mean 'perf'?\n`nereid help` lists the subcommands.\n"),
        (&["install", "--prefx=/x"], "error: unknown option '--prefx=/x'; did you mean '--prefix'?\n"),
        (&["runtime", "list", "--pakage=x"], "error: unknown option '--pakage=x'; did you mean '--package'?\n"),
        (&["check"], "error: missing <repository>"),
        (&["--http-port=x"], "Bad option: \"--http-port\".\nInvalid option value. Got x\n--http-port <integer>: "),
        (&["serve", "word"], "Unexpected argument: word\n"),
    ] {
        let (status, out, err) = run_to_end(words);
        assert_eq!((status.code(), out.as_str()), (Some(1), ""), "{words:?}: {err}");
        assert!(err.starts_with(text), "{words:?}: expected {text:?} in:\n{err}");
        assert!(err.contains("`nereid help") && err.lines().count() <= 4, "{words:?}: {err}");
    }
}

/// A script that was written for Triton must not notice.
#[test]
fn under_tritons_name_it_answers_as_triton() {
    if is_other() {
        return;
    }
    let repository = Repository::new();
    let program = repository.path().with_extension("bin");
    fs::create_dir_all(&program).expect("a directory");
    let program = program.join("tritonserver");
    symlink(binary(), &program).expect("a link");
    let words = [program.display().to_string()];
    let usage = "Usage: tritonserver [options]\n";
    for (arguments, begins, contains) in [
        (&["--help"][..], usage, "--model-repository"),
        (&[], "", "--model-repository must be specified"),
        (&["--http-port=x"], usage, "\nBad option: \"--http-port\".\nInvalid option value. Got x\n"),
        (&["word"], usage, "\nUnexpected argument: word\n"),
        (&["--no-such-flag"], "", "unrecognized option '--no-such-flag'"),
    ] {
        let (status, out, err) = run_to_end_under(&words, arguments);
        assert_eq!(status.code(), Some(1), "{arguments:?}: {out}{err}");
        assert!(err.starts_with(begins) && err.contains(contains), "{arguments:?}: {err}");
        assert!(!err.contains("quickstart"), "{arguments:?}: {err}");
    }
    fs::remove_dir_all(program.parent().expect("the directory")).expect("remove it");
}

#[test]
fn the_version_has_the_facts_of_the_build() {
    if is_other() {
        return;
    }
    let (status, out, _) = run_to_end(&["--version"]);
    assert_eq!(status.code(), Some(0));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], concat!("nereid ", env!("CARGO_PKG_VERSION")), "{out}");
    for fact in ["revision: ", "target: ", "profile: ", "compatible with: Triton 2."] {
        assert!(lines.iter().any(|line| line.starts_with(fact) && line.len() > fact.len()), "{fact}: {out}");
    }
}

/// What the server writes before it ends, in one text, and its exit code.
fn ends(flags: &[&str]) -> String {
    let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
    let given: Vec<&str> = flags.iter().copied().chain(ports.iter().map(String::as_str)).collect();
    // A later flag wins.
    let given: Vec<&str> = [&given[..], flags].concat();
    let (status, out, err) = run_to_end(&given);
    assert_eq!(status.code(), Some(1), "{flags:?}: {out}{err}");
    format!("{out}\n{err}")
}

#[test]
fn a_socket_in_use_ends_the_start_with_the_next_step() {
    if is_other() {
        return;
    }
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let store = format!("--model-repository={}", repository.path().display());
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = holder.local_addr().expect("its number").port();
    let path = repository.path().with_extension("sock");
    let _served = UnixListener::bind(&path).expect("a path");
    let file = repository.path().with_extension("file");
    fs::write(&file, "").expect("a file");
    for (flags, error, step) in [
        (
            vec!["--http-address=127.0.0.1".to_owned(), format!("--http-port={port}")],
            "already in use",
            "choose another port with --http-port",
        ),
        (vec!["--metrics-port=65536".to_owned()], "port 65536 is out of range", "--metrics-port takes 0 to 65535"),
        (vec!["--grpc-address=192.0.2.1".to_owned()], "cannot listen at '192.0.2.1", "--grpc-address"),
        (
            vec![format!("--grpc-unix-socket={}", path.display())],
            "already in use",
            "choose another path with --grpc-unix-socket",
        ),
        (
            vec![format!("--http-unix-socket={}", file.display())],
            "a file that is no socket is in the way",
            "choose another path with --http-unix-socket",
        ),
        (vec!["--http-unix-socket=/no/such/place".to_owned()], "cannot listen at 'unix:", "make the directory"),
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain([store.as_str()]).collect();
        let all = ends(&flags);
        assert_eq!(all.matches(error).count(), 1, "{flags:?}: {error:?} once in:\n{all}");
        let steps: Vec<&str> = all.lines().filter(|line| line.contains("next step: ")).collect();
        assert!(steps.len() == 1 && steps[0].contains(step), "{flags:?}: {step:?} in:\n{all}");
        assert!(!all.contains("loading: plain"), "{flags:?}: models were loaded before:\n{all}");
    }
    for left in [&path, &file] {
        fs::remove_file(left).expect("it is still there");
    }
}

#[test]
fn an_error_of_a_model_is_said_once() {
    if is_other() {
        return;
    }
    let repository = Repository::new();
    repository.identity_of("identiti", "typo", 0, &[Pair::new("INT32", "-1")], "");
    repository.file("broken/config.pbtxt", "backend: \"identity\" junk");
    repository.file("broken/1/empty", "");
    let all = ends(&[&format!("--model-repository={}", repository.path().display())]);
    let records = |part: &str| all.lines().filter(|line| line.starts_with('E') && line.contains(part)).count();
    assert_eq!(records("unable to find backend library for backend 'identiti'"), 1, "{all}");
    assert_eq!(records("unknown field"), 1, "{all}");
    let record = all.lines().find(|line| line.starts_with('E') && line.contains("unknown field")).unwrap_or_default();
    assert_eq!(record.matches("config.pbtxt").count(), 1, "{record}");
    assert_eq!(all.matches("error: creating server: Internal - failed to load all models").count(), 1, "{all}");
}

/// In a terminal of 60 columns lines are wrapped; in a pipe they are not.
#[test]
fn tables_fit_the_terminal() {
    if is_other() {
        return;
    }
    if Command::new("script").arg("--version").output().is_err() {
        return skip("script of util-linux is not installed");
    }
    let repository = Repository::new();
    repository.identity_of("identiti", "typo", 0, &[Pair::new("INT32", "-1")], "");
    let store = repository.path().display().to_string();
    for words in [format!("check {store}"), "runtime list".to_owned(), format!("migrate {store}")] {
        let line = format!("{} {words}", binary().to_string_lossy());
        let run = Command::new("script")
            .args(["--quiet", "--command", &line, "/dev/null"])
            .env("COLUMNS", "60")
            .stdin(Stdio::null())
            .output()
            .expect("run script");
        let shown = String::from_utf8_lossy(&run.stdout).replace('\r', "");
        assert!(!shown.trim().is_empty(), "{words}");
        for row in shown.lines() {
            assert!(row.chars().count() <= 60, "{words}: {row:?} in:\n{shown}");
        }
        let (_, piped, _) = run_to_end(&words.split(' ').collect::<Vec<_>>());
        assert!(piped.lines().any(|row| row.chars().count() > 60), "{words}: nothing is cut in a pipe:\n{piped}");
        let letters = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(letters(&shown), letters(&piped), "{words}");
    }
}
