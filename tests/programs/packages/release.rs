//! The scripts of `packaging/` where something is wrong: one line that names it, and no file.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use nereid_test_support::paths;

/// Runs a script of `packaging/` that must fail; what it wrote to stderr.
fn failing(script: &str, words: &[&str], path: Option<&Path>) -> String {
    let mut command = Command::new(paths::root().join("packaging").join(script));
    command.args(words);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("python3");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{script} {words:?}: {said}");
    said
}

#[test]
fn what_cannot_be_made_is_named_on_one_line() {
    let folder = paths::temporary().join(format!("release-{}", std::process::id()));
    let tools = folder.join("bin");
    std::fs::create_dir_all(&tools).expect("a folder");
    let python = "import sys; print(sys.executable)";
    let python = super::output(Command::new("python3").args(["-c", python]));
    symlink(python.trim(), tools.join("python3")).expect("a link");
    let out = format!("--out={}", folder.join("out").display());
    let elf = |name: &str, machine: u8| {
        let path = folder.join(name);
        let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0".to_vec();
        header.extend([machine, 0, 1, 0, 0, 0]);
        std::fs::write(&path, header).expect("a file");
        path.display().to_string()
    };
    let (program, library, text) = (elf("nereid", 62), elf("libtritonserver.so", 183), elf("text", 0));
    let given = [
        format!("--program={program}"),
        format!("--library={library}"),
        format!("--program={folder}/x/nereid", folder = folder.display()),
    ];

    assert_eq!(
        failing("release", &["riscv64", &out], None),
        "error: no architecture riscv64: x86_64 and aarch64 are known\n"
    );
    let other = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" };
    let prefix = format!("{other}-linux-gnu-");
    let said = failing("release", &[other, &out], Some(&tools));
    assert_eq!(said, format!("missing: everything for {other}: no {prefix}gcc\n"));
    assert!(failing("deb", &[&given[2], &given[1], &out], None).ends_with("is missing: cargo build --release\n"));
    let said = failing("deb", &[&given[0], &given[1], &out], None);
    assert_eq!(said, format!("error: {program} and {library} are for different architectures\n"));
    let said = failing("deb", &[&format!("--program={text}"), &given[1], &out], None);
    assert_eq!(said, format!("error: {text} is not named nereid\n"));
    let said = failing("image", &[&format!("--deb={program}")], Some(&tools));
    assert_eq!(said, "error: dpkg-deb is missing: install it\n");
    std::fs::remove_dir_all(folder).expect("the folder is there");
}
