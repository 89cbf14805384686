//! Caches and agents both ways: the cache library of the official release in our server, ours in the official one.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::agents::{agents, load};
use super::caches::{ask, counts, in_time, repository};
use nereid_test_support::library::{Libraries, compiled};
use nereid_test_support::original::original;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, binary};
use nereid_test_support::steadily::steadily;
use nereid_test_support::variant::usual;

/// The directory of its caches. None, after a visible skip, where there is none.
fn caches() -> Option<PathBuf> {
    // The shell, the wrapper, the server.
    let server = PathBuf::from(original()?.pop()?);
    let caches = server.parent()?.parent()?.join("caches");
    assert!(caches.join("local/libtritoncache_local.so").is_file(), "{caches:?} has no local cache");
    Some(caches)
}

/// Which file each symbol of Triton's was found in, as the dynamic linker tells it.
fn bindings(directory: &Path) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the linker's files") {
        let text = std::fs::read(entry.expect("a file").path()).expect("a file of the linker");
        for line in String::from_utf8_lossy(&text).lines() {
            let Some((_, rest)) = line.split_once("binding file ") else { continue };
            let (Some((from, rest)), Some((_, symbol))) = (rest.split_once(" ["), rest.split_once("symbol `")) else {
                continue;
            };
            let to = rest.split_once("] to ").and_then(|(_, to)| to.split_once(" [")).map(|(to, _)| to);
            let symbol = symbol.split('\'').next().unwrap_or_default();
            if symbol.starts_with("TRITON") {
                found.push((from.to_owned(), to.expect("where it was found").to_owned(), symbol.to_owned()));
            }
        }
    }
    found
}

#[test]
fn the_official_local_cache_serves_hits() {
    let Some(caches) = caches() else { return };
    let (repository, told) = (repository(), Libraries::new());
    let prefix = told.path().join("linker").display().to_string();
    let flags = [
        &*format!("--cache-directory={}", caches.display()),
        "--cache-config=local,library=libtritoncache_local.so",
        "--cache-config=local,size=1048576",
    ];
    let environment = [("LD_DEBUG", "bindings"), ("LD_DEBUG_OUTPUT", &*prefix)];
    let before = Cell::new([0; 4]);
    let round = || {
        let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
        for _ in 0..3 {
            ask(&server, "cached", 1, 3);
        }
        ask(&server, "other", 1, 3);
        for _ in 0..2 {
            ask(&server, "cached", 0, 40_000);
        }
        before.set(counts(&server, "cached"));
        // More than it has room for is executed each time.
        for _ in 0..2 {
            ask(&server, "cached", 0, 300_000);
        }
        server
    };
    let all = |server: &Server| [before.get(), counts(server, "cached"), counts(server, "other")];
    let expected = [[3, 2, 5, 2], [3, 4, 7, 4], [0, 1, 1, 1]];
    let server = in_time(round, |server| all(server) == expected);
    assert_eq!(all(&server), expected);
    let page = nereid_test_support::http::Peer::connect(server.metrics).get("/metrics").text();
    assert!(page.contains(r#"nv_cache_num_hits_per_model{model="cached",version="1"} 3"#), "{page}");
    server.stop();

    let ours = std::fs::canonicalize(binary()).expect("our binary");
    let bound = bindings(told.path());
    let of_cache = bound.iter().filter(|(from, to, _)| from.ends_with("libtritoncache_local.so") && from != to);
    assert!(of_cache.count() >= 10, "{bound:?}");
    for (from, to, symbol) in &bound {
        let is_own = from == to || symbol.starts_with("TRITONCACHE_Cache") && to.ends_with("libtritoncache_local.so");
        let is_ours = std::fs::canonicalize(to).is_ok_and(|to| to == ours);
        assert!(is_own || is_ours, "{symbol} of {from} was found in {to}");
    }
}

/// The words that start each server: ours and the official one.
fn both() -> Option<[Vec<String>; 2]> {
    Some([Vec::new(), original()?])
}

/// What an agent was told in the life of three models: one that moves elsewhere, one whose second agent refuses it, one
/// without a backend. Without what concerns the library itself, and ends of models, which overlap.
fn told_by(words: &[String], libraries: &Libraries, backends: &Path) -> Vec<String> {
    let (repository, elsewhere) = (Repository::new(), Repository::new());
    let pair = [Pair::new("INT32", "-1")];
    elsewhere.identity_of("copycat", "moved", 0, &pair, "");
    let place = elsewhere.path().join("moved").display().to_string();
    let (one, two): (&[_], &[_]) = (&[("tag", "one"), ("move", &*place)], &[("tag", "two")]);
    repository.identity_of("copycat", "m", 0, &pair, &agents(&[("teller", one), ("teller", two)]));
    let (first, second, third): (&[_], &[_], &[_]) =
        (&[("tag", "b1")], &[("tag", "b2"), ("fail", "LOAD")], &[("tag", "b3")]);
    let refused = agents(&[("teller", first), ("teller", second), ("teller", third)]);
    repository.identity_of("copycat", "refused", 0, &pair, &refused);
    let (first, second): (&[_], &[_]) = (&[("tag", "n1")], &[("tag", "n2")]);
    repository.identity_of("nosuch", "nobody", 0, &pair, &agents(&[("teller", first), ("teller", second)]));
    let flags = [
        &*libraries.flag("repoagent-directory"),
        &*format!("--backend-directory={}", backends.display()),
        "--model-control-mode=explicit",
        "--load-model=m",
    ];
    let server = Server::start_under(words, usual(), repository.path(), &flags, "/v2/health/ready");
    assert_eq!(load(&server, "m").0, 200, "nothing to do");
    for name in ["refused", "nobody"] {
        assert!(load(&server, name).0 >= 400, "{name}");
    }
    let path = "/v2/repository/models/m/unload";
    assert_eq!(nereid_test_support::http::Peer::connect(server.http).post(path, &[], b"{}").status, 200);
    server.wait_for_log("~ two finalize moved");
    assert_eq!(load(&server, "m").0, 200);
    server.terminate();
    let (_, log) = server.wait();
    let lines = log.lines().filter_map(|line| line.strip_prefix("~ ")).map(|line| line.trim_end().to_owned());
    lines.filter(|line| !line.starts_with("agent ") && !line.contains(" finalize ")).collect()
}

#[test]
fn an_agent_is_asked_as_in_the_official_server() {
    let (Some([ours, official]), Some(library)) = (both(), compiled("agent.c")) else { return };
    let Some(backends) = nereid_test_support::backend::directory() else { return };
    let libraries = Libraries::new();
    libraries.agent("teller", &library);
    steadily(|| {
        let ours = told_by(&ours, &libraries, &backends);
        assert!(ours.len() > 20, "{ours:?}");
        assert_eq!(ours, told_by(&official, &libraries, &backends), "ours (left), the official one (right)");
    });
}

#[test]
fn a_cache_library_counts_as_in_the_official_server() {
    let (Some(servers), Some(library)) = (both(), compiled("cache.c")) else { return };
    let Some(backends) = nereid_test_support::backend::directory() else { return };
    let libraries = Libraries::new();
    libraries.cache("mine", &library);
    let repository = Repository::new();
    let pair = [Pair::new("INT32", "-1")];
    repository.identity_of("copycat", "cached", 0, &pair, "response_cache { enable: true }");
    let flags = [
        &*libraries.flag("cache-directory"),
        &*format!("--backend-directory={}", backends.display()),
        "--cache-config=mine,size=1",
    ];
    for words in &servers {
        let round = || {
            let server = Server::start_under(words, usual(), repository.path(), &flags, "/v2/health/ready");
            for first in [1, 1, 2, 1] {
                ask(&server, "cached", first, 3);
            }
            server
        };
        let server = in_time(round, |server| counts(server, "cached") == [2, 2, 4, 2]);
        assert_eq!(counts(&server, "cached"), [2, 2, 4, 2], "{words:?}");
        server.terminate();
        let (_, log) = server.wait();
        for line in ["~ cache initialize", "~ cache finalize"] {
            assert_eq!(log.lines().filter(|other| *other == line).count(), 1, "{words:?}: {log}");
        }
        assert!(log.contains(r#"~ cache config {"size":"1"}"#), "{words:?}: {log}");
    }
}
