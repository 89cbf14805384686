//! The crates that ship: their list (`.ci/sbom`), and what `deny.toml` allows of their licences and sources. `cargo
//! deny` itself, which also reads advisories, needs a network (`.ci/extra`).

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use nereid_test_support::paths;

fn sbom(target: &str) -> Value {
    let mut command = Command::new(paths::root().join(".ci/sbom"));
    let output = command.args(["--target", target]).env("SOURCE_DATE_EPOCH", "0").output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text '{name}' in {value}"))
}

/// The texts of a list of deny.toml.
fn denied(name: &str) -> Vec<String> {
    let file = std::fs::read_to_string(paths::root().join("deny.toml")).expect("deny.toml");
    let list = file.split(&format!("\n{name} = [")).nth(1).and_then(|rest| rest.split(']').next());
    let list = list.unwrap_or_else(|| panic!("deny.toml has no '{name}'"));
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether one of the alternatives is allowed in all its parts (SPDX: AND binds tighter than OR).
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.trim();
    if let Some((inner, rest)) = expression.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
        let rest = rest.trim();
        let inner = is_allowed(inner, allowed);
        return match (rest.strip_prefix("AND "), rest.strip_prefix("OR ")) {
            (Some(rest), _) => inner && is_allowed(rest, allowed),
            (_, Some(rest)) => inner || is_allowed(rest, allowed),
            _ => inner,
        };
    }
    let part = |one: &str| allowed.iter().any(|allowed| allowed == one.trim());
    expression.split(" OR ").any(|one| one.split(" AND ").all(part))
}

/// What the schema of CycloneDX 1.6 requires of the members that are there.
#[test]
fn the_bill_of_materials_is_one() {
    let bill = sbom("x86_64-unknown-linux-gnu");
    assert_eq!(
        (text(&bill, "bomFormat"), text(&bill, "specVersion"), &bill["version"]),
        ("CycloneDX", "1.6", &1.into())
    );
    let serial = text(&bill, "serialNumber").strip_prefix("urn:uuid:").expect("a UUID");
    assert!(serial.len() == 36 && serial.split('-').map(str::len).eq([8, 4, 4, 4, 12]), "{serial}");
    assert_eq!(text(&bill["metadata"], "timestamp"), "1970-01-01T00:00:00Z");
    let program = &bill["metadata"]["component"];
    assert_eq!((text(program, "type"), text(program, "name")), ("application", "nereid"));
    let components = bill["components"].as_array().expect("components");
    let mut refs = BTreeSet::from([text(program, "bom-ref")]);
    for one in components {
        assert_eq!(text(one, "type"), "library");
        assert_eq!(text(one, "purl"), format!("pkg:cargo/{}@{}", text(one, "name"), text(one, "version")));
        assert!(refs.insert(text(one, "bom-ref")), "{one} is listed twice");
        let is_ours = text(one, "name").starts_with("nereid-");
        let hash = one["hashes"][0]["content"].as_str();
        let is_sha = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert_eq!(hash.is_some_and(is_sha), !is_ours, "{one}");
    }
    let dependencies = bill["dependencies"].as_array().expect("dependencies");
    let described: BTreeSet<&str> = dependencies.iter().map(|one| text(one, "ref")).collect();
    assert_eq!(described, refs, "each component has its dependencies");
    for one in dependencies {
        let needs = one["dependsOn"].as_array().expect("a list");
        assert!(needs.iter().all(|need| refs.contains(need.as_str().expect("a reference"))), "{one}");
    }
    // What is certainly in the program, and what only its tests use.
    for (name, is_shipped) in [("rustls", true), ("tokio", true), ("nereid-net", true), ("nereid-test-support", false)]
    {
        assert_eq!(components.iter().any(|one| one["name"] == name), is_shipped, "{name}");
    }
    assert_eq!(sbom("x86_64-unknown-linux-gnu"), bill, "the same sources give another list");
}

#[test]
fn licences_sources_and_crates_are_allowed_ones() {
    let (allowed, banned) = (denied("allow"), denied("deny"));
    assert!(allowed.len() > 3 && banned.len() > 3, "{allowed:?} {banned:?}");
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        for one in sbom(target)["components"].as_array().expect("components") {
            let (name, licence) = (text(one, "name"), text(&one["licenses"][0], "expression"));
            // The exception of deny.toml.
            let is_excepted = (name, licence) == ("bitmaps", "MPL-2.0+");
            assert!(is_excepted || is_allowed(licence, &allowed), "{name} has the licence '{licence}'");
            assert!(!banned.iter().any(|banned| banned == name), "{name} is banned by deny.toml");
        }
    }
    // Cargo.lock has crates of tests and of other systems, too.
    let lock = std::fs::read_to_string(paths::root().join("Cargo.lock")).expect("Cargo.lock");
    let source = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let others: Vec<&str> = lock.lines().filter(|line| line.starts_with("source = ") && *line != source).collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(lock.matches("\nchecksum = ").count(), lock.matches("\nsource = ").count());
}

#[test]
fn expressions_are_read_as_spdx_does() {
    let allowed = ["MIT", "Apache-2.0"].map(str::to_owned);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("MIT AND Apache-2.0", true),
        ("(MIT OR GPL-3.0) AND Apache-2.0", true),
        ("(MIT OR GPL-3.0) AND GPL-3.0", false),
        ("GPL-3.0 WITH Classpath-exception-2.0 OR GPL-2.0", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}
