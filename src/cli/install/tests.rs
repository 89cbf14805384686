//! Tests of installing stand-ins for a program and its library, and of files that are in the way.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// A program and a library as a build leaves them, and a place to install to.
struct Site(PathBuf);

impl Site {
    fn new(name: &str) -> Site {
        let root = std::env::temp_dir().join(format!("nereid-install-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("built")).expect("a directory");
        fs::write(root.join("built/nereid"), "a program").expect("a file");
        let library = b"\x7fELF .. TRITONSERVER_ServerInferAsync\0 ..";
        fs::write(root.join("built/libtritonserver.so"), library).expect("a file");
        Site(root)
    }

    fn options(&self, is_forced: bool) -> Options {
        Options { prefix: self.0.join("prefix"), library: None, is_forced }
    }

    fn install(&self, options: &Options) -> Result<String, InstallError> {
        let mut output = String::new();
        install(options, &self.0.join("built/nereid"), &mut |line| output += line)?;
        Ok(output)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join("prefix").join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const FILES: [&str; 8] = [
    "bin/nereid",
    "bin/tritonserver",
    "lib/libtritonserver.so",
    "include/triton/core/tritonserver.h",
    "include/triton/core/tritonbackend.h",
    "include/triton/core/tritonrepoagent.h",
    "include/triton/core/tritoncache.h",
    "README.md",
];

#[test]
fn everything_is_put_in_its_place_and_printed() {
    let site = Site::new("whole");
    let output = site.install(&site.options(false)).expect("installed");
    let prefix = site.0.join("prefix");
    for file in FILES {
        assert!(prefix.join(file).exists(), "{file}");
        assert!(output.contains(&format!("{}\n", prefix.join(file).display())), "{file}: {output}");
    }
    assert_eq!(site.read("bin/tritonserver"), "a program");
    assert_eq!(fs::read_link(prefix.join("bin/tritonserver")).expect("a link"), Path::new("nereid"));
    for (file, mode) in [("bin/nereid", 0o755), ("lib/libtritonserver.so", 0o755), ("README.md", 0o644)] {
        let found = fs::metadata(prefix.join(file)).expect("a file").permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file}");
    }
    assert!(prefix.join("backends").is_dir());
    assert!(output.contains(&format!(" --backend-directory={}", prefix.join("backends").display())), "{output}");
    let mut names: Vec<_> = fs::read_dir(prefix.join("bin")).expect("bin").flatten().map(|it| it.file_name()).collect();
    names.sort();
    assert_eq!(names, ["nereid", "tritonserver"], "nothing unfinished is left");
}

#[test]
fn what_is_there_is_replaced_only_by_force() {
    let site = Site::new("twice");
    site.install(&site.options(false)).expect("installed");
    let prefix = site.0.join("prefix");
    fs::write(prefix.join("README.md"), "another file").expect("written");
    fs::write(site.0.join("built/nereid"), "a newer program").expect("written");
    let error = site.install(&site.options(false)).expect_err("refused").to_string();
    for file in FILES {
        assert!(error.contains(&prefix.join(file).display().to_string()), "{error}");
    }
    assert_eq!((site.read("README.md").as_str(), site.read("bin/nereid").as_str()), ("another file", "a program"));
    // A link that leads nowhere is in the way too.
    FILES.iter().for_each(|file| _ = fs::remove_file(prefix.join(file)));
    std::os::unix::fs::symlink("nowhere", prefix.join("README.md")).expect("a link");
    assert!(matches!(site.install(&site.options(false)), Err(InstallError::Present(paths)) if paths.len() == 1));
    assert!(!prefix.join("bin/nereid").exists(), "nothing was begun");

    site.install(&site.options(true)).expect("forced");
    assert_eq!(site.read("bin/nereid"), "a newer program");
    assert_eq!(site.read("README.md"), LAYOUT);
    // An installed program installs over itself.
    let again = Options { is_forced: true, ..site.options(true) };
    install(&again, &prefix.join("bin/nereid"), &mut |_| {}).expect("over itself");
    assert_eq!(site.read("bin/nereid"), "a newer program");
}

#[test]
fn a_library_that_is_missing_or_another_is_refused_before_anything_is_done() {
    let site = Site::new("library");
    let library = site.0.join("built/libtritonserver.so");
    let missing = Options { library: Some(site.0.join("no.so")), ..site.options(false) };
    assert!(site.install(&missing).expect_err("refused").to_string().contains("no.so: No such file"));
    for other in ["no library", "\x7fELF of something else"] {
        fs::write(&library, other).expect("written");
        let error = site.install(&site.options(false)).expect_err("refused").to_string();
        assert_eq!(error, format!("{}: not a library of this server", library.display()));
    }
    fs::remove_file(&library).expect("removed");
    let error = site.install(&site.options(false)).expect_err("refused").to_string();
    assert!(error.contains("`cargo build --release`"), "{error}");
    assert!(!site.0.join("prefix").exists());
}

#[test]
fn what_cannot_be_written_is_named() {
    let site = Site::new("blocked");
    let prefix = site.0.join("prefix");
    fs::write(&prefix, "a file").expect("written");
    let error = site.install(&site.options(false)).expect_err("refused").to_string();
    assert!(error.starts_with(&prefix.display().to_string()), "{error}");
    fs::remove_file(&prefix).expect("removed");
    fs::create_dir_all(prefix.join("bin/nereid")).expect("a directory");
    let error = site.install(&site.options(true)).expect_err("refused").to_string();
    assert!(error.starts_with(&prefix.join("bin/nereid").display().to_string()), "{error}");
    let left: Vec<_> = fs::read_dir(prefix.join("bin")).expect("bin").flatten().map(|it| it.file_name()).collect();
    assert_eq!(left, ["nereid"], "nothing unfinished is left");
}

#[test]
fn words_are_understood_or_named() {
    let parse = |words: &[&str]| options(&words.iter().map(OsString::from).collect::<Vec<_>>());
    let options = |library: Option<&str>, is_forced| Options {
        prefix: "/p".into(),
        library: library.map(PathBuf::from),
        is_forced,
    };
    assert_eq!(parse(&["--prefix=/p"]).expect("options"), Some(options(None, false)));
    assert_eq!(parse(&["--force", "--prefix", "/p"]).expect("options"), Some(options(None, true)));
    let all = ["--library", "/l=m", "--prefix=/p", "--force"];
    assert_eq!(parse(&all).expect("options"), Some(options(Some("/l=m"), true)));
    assert_eq!(parse(&["--prefix=/p", "--help"]).expect("help"), None);
    for (words, text) in [
        (&["--force"][..], "--prefix=<directory> is missing"),
        (&["--prefix"], "'--prefix' needs a value"),
        (&["--prefix="], "'--prefix=' needs a value"),
        (&["--force=yes", "--prefix=/p"], "unknown option '--force=yes'; did you mean '--force'?"),
        (&["/p"], "unknown option '/p'"),
    ] {
        let error = parse(words).expect_err(text).to_string();
        assert!(error.starts_with(text) && error.contains("`nereid help install`"), "{error}");
    }
}
