//! The cache library of the official release, unmodified and where its wheel was unpacked.

use std::path::{Path, PathBuf};

use super::caches::{ask, counts, repository};
use crate::support::library::Libraries;
use crate::support::original::original;
use crate::support::server::{Server, binary};
use crate::support::variant::usual;

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
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &environment);
    for _ in 0..3 {
        ask(&server, "cached", 1, 3);
    }
    ask(&server, "other", 1, 3);
    for _ in 0..2 {
        ask(&server, "cached", 0, 40_000);
    }
    assert_eq!(counts(&server, "cached"), [3, 2, 5, 2]);
    assert_eq!(counts(&server, "other"), [0, 1, 1, 1]);
    // More than it has room for is executed each time.
    for _ in 0..2 {
        ask(&server, "cached", 0, 300_000);
    }
    assert_eq!(counts(&server, "cached"), [3, 4, 7, 4]);
    let page = crate::support::http::Peer::connect(server.metrics).get("/metrics").text();
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
