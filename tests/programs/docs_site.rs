//! The documentation as a site: it builds without a warning, so every link leads somewhere, and has a search.

use std::fs;
use std::process::Command;

use nereid_test_support::paths;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::is_second_run;

#[test]
fn the_site_builds_without_a_warning_and_can_be_searched() {
    // No server runs in it.
    if is_second_run() {
        return;
    }
    let Some(python) = Python::with("docs_site.txt") else { return };
    let folder = Repository::new();
    let site = folder.path().join("site");
    let output = Command::new(paths::root().join("docs/site/build"))
        .arg(&site)
        .env("NEREID_SITE_PYTHON", python.interpreter())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("docs/site/build");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let read = |name: &str| fs::read_to_string(site.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(read("index.html").contains("docs/README.html"));
    assert!(read("searchindex.js").contains("shared-memory"));
    // The navigation follows the index: each of its readers, and a page of each.
    let page = read("docs/flags.html");
    for shown in ["Users", "Operators", "Contributors", "openai.html", "restarts.html", "writing-backends.html"] {
        assert!(page.contains(shown), "{shown}");
    }
    // Code that a page links to comes along.
    assert!(site.join("_downloads").is_dir());
}
