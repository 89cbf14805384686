//! Response caches in C (contract/c_api.md section 7; tests/backends/cache.c says how they are told to misbehave).

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::native::program;
use nereid_test_support::http::Peer;
use nereid_test_support::library::{Libraries, compiled, text_of};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, run_to_end};
use nereid_test_support::variant::{self, Variant, each, usual};

/// Two models that use the cache, and one that does not.
pub fn repository() -> Repository {
    let repository = Repository::new();
    let pair = [Pair::new("INT32", "-1")];
    for name in ["cached", "other"] {
        repository.identity_of("identity", name, 0, &pair, "response_cache { enable: true }");
    }
    repository.identity("plain", 0, &pair);
    repository
}

/// A request does without a library that no thread asks within this time.
const PATIENCE_OF_REQUESTS: Duration = Duration::from_millis(100);

/// A busy machine answers all requests of one of so many rounds in time.
const ROUNDS: usize = 50;

thread_local! {
    /// One of this test's requests took so long that it may have gone by the cache.
    static WAS_SLOW: Cell<bool> = const { Cell::new(false) };
}

/// Has a server asked in a round of requests that `fits` then; once more with another server where it does not and one
/// of the requests may have gone by the cache, because the machine was slow: then its counts say nothing.
pub fn in_time(round: impl Fn() -> Server, fits: impl Fn(&Server) -> bool) -> Server {
    for _ in 0..ROUNDS {
        WAS_SLOW.set(false);
        let server = round();
        let asked = Instant::now();
        // A library may count an execution after it has answered. Counts that say nothing are not waited for long.
        let patience = if WAS_SLOW.get() { Duration::from_secs(2) } else { PATIENCE };
        while !fits(&server) && asked.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(2));
        }
        if fits(&server) || !WAS_SLOW.get() {
            return server;
        }
    }
    panic!("{ROUNDS} rounds that do not fit, and in each a request took more than {PATIENCE_OF_REQUESTS:?}");
}

/// Asks `model` for the numbers from `first` on, and checks the answer.
pub fn ask(server: &Server, model: &str, first: usize, count: usize) {
    let data: Vec<usize> = (first..first + count).collect();
    let body = serde_json::json!({
        "inputs": [{ "name": "INPUT0", "datatype": "INT32", "shape": [count], "data": data }]
    });
    let path = format!("/v2/models/{model}/infer");
    let started = Instant::now();
    let answer = Peer::connect(server.http).post(&path, &[], body.to_string().as_bytes());
    if started.elapsed() >= PATIENCE_OF_REQUESTS {
        WAS_SLOW.set(true);
    }
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"], serde_json::json!(data), "{}", answer.text());
}

/// Hits, misses, successes, executions.
pub fn counts(server: &Server, model: &str) -> [u64; 4] {
    let stats = Peer::connect(server.http).get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone();
    let of = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number in {stats}"));
    let tally = |name: &str| of(&stats["inference_stats"][name]["count"]);
    [tally("cache_hit"), tally("cache_miss"), tally("success"), of(&stats["execution_count"])]
}

fn start(variant: Variant, libraries: &Libraries, repository: &Repository, settings: &[&str]) -> Server {
    let settings: Vec<String> = settings.iter().map(|setting| format!("--cache-config=mine,{setting}")).collect();
    let directory = libraries.flag("cache-directory");
    let mut flags = vec![&*directory];
    flags.extend(settings.iter().map(String::as_str));
    Server::start(variant, repository.path(), &flags)
}

fn with(library: &Path) -> Libraries {
    let libraries = Libraries::new();
    libraries.cache("mine", library);
    libraries
}

#[test]
fn a_library_answers_equal_requests() {
    let Some(library) = compiled("cache.c") else { return };
    each(&variant::ALL, |variant| {
        let (libraries, repository) = (with(&library), repository());
        let server = in_time(
            || {
                let server = start(variant, &libraries, &repository, &["size=1", "name=x", "size=\"2\""]);
                for _ in 0..3 {
                    ask(&server, "cached", 1, 3);
                    ask(&server, "plain", 1, 3);
                }
                // Another model, other inputs, and so many that they take another way.
                ask(&server, "other", 1, 3);
                ask(&server, "cached", 2, 3);
                for _ in 0..2 {
                    ask(&server, "cached", 0, 40_000);
                }
                server
            },
            |server| counts(server, "cached") == [3, 3, 6, 3] && counts(server, "other") == [0, 1, 1, 1],
        );
        assert_eq!(counts(&server, "cached"), [3, 3, 6, 3]);
        assert_eq!(counts(&server, "other"), [0, 1, 1, 1]);
        assert_eq!(counts(&server, "plain"), [0, 0, 3, 3]);
        let page = Peer::connect(server.metrics).get("/metrics").text();
        assert!(page.contains(r#"nv_cache_num_hits_per_model{model="cached",version="1"} 3"#), "{page}");
        let log = server.stop();
        assert!(log.contains(r#"~ cache config {"name":"x","size":"\"2\""}"#), "{log}");
        // Made once, and ended when nobody asks any more.
        for line in ["~ cache initialize", "~ cache finalize"] {
            assert_eq!(log.lines().filter(|other| *other == line).count(), 1, "{log}");
        }
    });
}

#[test]
fn every_function_does_what_it_should() {
    let Some(library) = compiled("cache.c") else { return };
    let (libraries, repository) = (with(&library), repository());
    let flags = [&*libraries.flag("cache-directory"), "--cache-config=mine,do=check"];
    // The same where handles are checked.
    let mut log = String::new();
    for is_checked in ["0", "1"] {
        let environment = [("NEREID_CHECK_HANDLES", is_checked)];
        let server = in_time(
            || {
                let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
                for _ in 0..2 {
                    ask(&server, "cached", 1, 3);
                }
                server
            },
            |server| counts(server, "cached") == [1, 1, 2, 1],
        );
        assert_eq!(counts(&server, "cached"), [1, 1, 2, 1]);
        log = server.stop();
    }
    let (declared, told) = (program::declared(&text_of("cache.c")), program::told(&log));
    let missing: Vec<_> = declared.difference(&told).collect();
    assert!(missing.is_empty(), "not checked: {missing:?}\n{log}");
    let functions: std::collections::BTreeSet<&str> = declared.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(functions.len(), 6, "{functions:?}");
    for function in functions {
        for sign in ['+', '-'] {
            assert!(declared.contains(&(sign, function.to_owned())), "{sign} {function}");
        }
    }
}

#[test]
fn an_entry_that_was_kept_is_found_where_handles_are_checked() {
    let Some(library) = compiled("cache.c") else { return };
    let (libraries, repository) = (with(&library), repository());
    let flags = [&*libraries.flag("cache-directory"), "--cache-config=mine,do=keep"];
    let environment = [("NEREID_CHECK_HANDLES", "1")];
    let server = in_time(
        || {
            let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
            for first in 0..2 {
                ask(&server, "cached", first, 3);
            }
            server
        },
        |server| counts(server, "cached") == [0, 2, 2, 2],
    );
    assert_eq!(counts(&server, "cached"), [0, 2, 2, 2]);
    let log = server.stop();
    assert!(log.contains("~ cache former entry refused"), "{log}");
    for function in ["TRITONCACHE_CacheEntryBufferCount", "TRITONCACHE_Copy"] {
        let text = format!("NEREID_CHECK_HANDLES: {function}: entry ");
        let line = log.lines().find(|line| line.contains(&text));
        assert!(
            line.is_some_and(|line| line.contains("by cache 'mine', in TRITONCACHE_CacheInsert")),
            "{line:?}\n{log}"
        );
    }
}

/// What a cache does wrong costs its hits, and is told once.
#[test]
fn a_cache_that_misbehaves_changes_no_answer() {
    let (Some(library), Some(throwing)) = (compiled("cache.c"), compiled("throwing.cc")) else { return };
    let is_no_entry = "the cache 'mine' failed to look up: Internal: what it found is no entry that was inserted";
    // Modes, misses of three requests that are equal, what is told. A cache that has what it cannot find refuses it the
    // second time, as it does when somebody else was faster.
    let cases = [
        (&library, "no_copy", 3, "the cache 'mine' failed to insert: Internal: it took an entry without copying it"),
        (&library, "shift", 1, is_no_entry),
        (&library, "twice", 1, is_no_entry),
        (&library, "garbage", 1, is_no_entry),
        (&library, "forget", 1, is_no_entry),
        (&library, "fail_lookup", 1, "the cache 'mine' failed to look up: Internal: nobody looks into this"),
        (&library, "fail_insert", 3, "the cache 'mine' failed to insert: Internal: nothing fits in here"),
        (
            &throwing,
            "lookup",
            3,
            "the cache 'mine' failed to look up: Internal: the cache threw an exception: thrown at",
        ),
        (
            &throwing,
            "insert",
            3,
            "the cache 'mine' failed to insert: Internal: the cache threw an exception: thrown at",
        ),
        (
            &throwing,
            "finalize",
            3,
            "the cache 'mine' failed to finalize: Internal: the cache threw an exception: thrown at",
        ),
    ];
    for (library, mode, misses, text) in cases {
        let (libraries, repository) = (with(library), repository());
        let server = in_time(
            || {
                let server = start(usual(), &libraries, &repository, &[&format!("do={mode}")]);
                for _ in 0..3 {
                    ask(&server, "cached", 1, 3);
                }
                server
            },
            |server| counts(server, "cached") == [0, misses, 3, 3],
        );
        assert_eq!(counts(&server, "cached"), [0, misses, 3, 3], "{mode}");
        let log = server.stop();
        assert_eq!(log.lines().filter(|line| line.contains(text)).count(), 1, "{mode}: {text:?} in\n{log}");
    }
}

#[test]
fn what_is_no_cache_ends_the_start() {
    let (Some(cache), Some(empty), Some(agent)) = (compiled("cache.c"), compiled("empty.c"), compiled("agent.c"))
    else {
        return;
    };
    let Some(throwing) = compiled("throwing.cc") else { return };
    let (libraries, repository) = (Libraries::new(), repository());
    libraries.cache("mine", &cache).cache("empty", &empty).cache("agent", &agent).cache("throwing", &throwing);
    libraries.cache("text", Path::new(file!())).add("local", "other.so", &cache);
    let directory = libraries.path().display();
    let absent = |file: &str| format!("Invalid argument - unable to find '{file}' for cache. Searched: {directory}");
    let cases = [
        ("nosuch,size=1", absent("libtritoncache_nosuch.so")),
        ("../mine,size=1", absent("libtritoncache_../mine.so")),
        ("local,library=../mine/libtritoncache_mine.so", absent("../mine/libtritoncache_mine.so")),
        ("local,library=nosuch.so", absent("nosuch.so")),
        (
            "empty,size=1",
            "unable to find required entrypoint 'TRITONCACHE_CacheInitialize' in shared library".to_owned(),
        ),
        (
            "agent,size=1",
            "unable to find required entrypoint 'TRITONCACHE_CacheInitialize' in shared library".to_owned(),
        ),
        ("text,size=1", "unable to load shared library: ".to_owned()),
        ("mine,do=refuse", "Invalid argument - this is no size for a cache".to_owned()),
        ("mine,do=nothing", "Internal - the cache library '".to_owned()),
        ("throwing,do=initialize", "Internal - the cache threw an exception: thrown at initialize".to_owned()),
    ];
    for (setting, text) in cases {
        let (status, _, err) = run_to_end(&[
            &format!("--model-repository={}", repository.path().display()),
            &libraries.flag("cache-directory"),
            &format!("--cache-config={setting}"),
        ]);
        assert_eq!(status.code(), Some(1), "{setting}: {err}");
        assert!(err.contains(&text), "{setting}: expected {text:?} in {err}");
    }
}

/// `local` and `redis` are built in, whatever lies in the directory, unless a file is named.
#[test]
fn a_built_in_cache_wins_unless_a_library_is_named() {
    let Some(library) = compiled("cache.c") else { return };
    let (libraries, repository) = (Libraries::new(), repository());
    libraries.cache("local", &library).add("redis", "mine.so", &library);
    let directory = libraries.flag("cache-directory");
    for (settings, config) in [
        (&["--cache-config=local,size=1048576"][..], None),
        (
            &["--cache-config=local,size=1", "--cache-config=local,library=libtritoncache_local.so"],
            Some(r#"{"size":"1"}"#),
        ),
        (&["--cache-config=redis,library=mine.so"], Some("{}")),
    ] {
        let server = in_time(
            || {
                let server = Server::start(usual(), repository.path(), &[&[&*directory], settings].concat());
                for _ in 0..2 {
                    ask(&server, "cached", 1, 3);
                }
                server
            },
            |server| counts(server, "cached") == [1, 1, 2, 1],
        );
        assert_eq!(counts(&server, "cached"), [1, 1, 2, 1], "{settings:?}");
        let log = server.stop();
        let told = log.lines().find_map(|line| line.strip_prefix("~ cache config "));
        assert_eq!(told, config, "{settings:?}");
    }
}
