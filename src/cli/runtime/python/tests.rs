//! Tests of installations with interpreters that are shell scripts: their calls, and the files that are left.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::Silent;
use super::*;

struct Host {
    root: PathBuf,
    surroundings: Surroundings,
}

/// Makes a virtual environment whose python "installs" packages by recording them, and reports numpy then.
const PYTHON: &str = r#"#!/bin/sh
root=@root@
case "$1" in
-c) echo @version@ ;;
-m)
    [ "$2" = venv ] || exit 9
    [ -e "$root/no-venv" ] && { echo "No module named venv" >&2; exit 1; }
    mkdir -p "$3/bin"
    echo "venv $3" >> "$root/calls"
    {
        echo '#!/bin/sh'
        echo "case \"\$1\" in"
        echo "-c) echo nereid~cpython~@version@.0~\$(cat \"$3/numpy\" 2>/dev/null)~missing | tr '~' '\\037' ;;"
        echo "-m) shift 6; echo \"pip \$*\" >> '$root/calls'; [ -e '$root/no-pip' ] && { echo 'no route' >&2; exit 1; }"
        echo "    echo 1.26.4 > \"$3/numpy\" ;;"
        echo "esac"
    } > "$3/bin/python3.new"
    chmod +x "$3/bin/python3.new"
    mv "$3/bin/python3.new" "$3/bin/python3"
    ;;
esac
"#;

impl Host {
    fn new() -> Host {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nereid-install-python-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(root.join("shims")).unwrap();
        let path = std::env::join_paths([root.join("shims"), root.join("bin")]).unwrap();
        let surroundings =
            Surroundings { data_home: Some(root.join("data")), shared: Vec::new(), path: Some(path), host: None };
        Host { root, surroundings }
    }

    fn python(&self, name: &str, version: &str) {
        let script = PYTHON.replace("@root@", &self.root.display().to_string()).replace("@version@", version);
        self.program(&format!("bin/{name}"), &script);
    }

    fn program(&self, path: &str, script: &str) {
        let (new, path) = (self.root.join("new"), self.root.join(path));
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        // Copied by another process, so that none of ours has the program open for writing.
        assert!(Command::new("cp").arg(&new).arg(&path).status().unwrap().success());
    }

    fn install(&self, options: PythonOptions) -> Result<String, String> {
        let installed = install_into(&self.surroundings, &options, &mut Silent);
        let shown = |path: PathBuf| path.strip_prefix(self.folder()).unwrap().display().to_string();
        installed.map(shown).map_err(|error| error.to_string())
    }

    fn folder(&self) -> PathBuf {
        self.root.join("data/nereid/runtimes/python")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The calls since the last call of this, with `<folder>` for the runtime folder.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.root.join("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.root.join("calls"));
        calls.lines().map(|line| line.replace(&self.folder().display().to_string(), "<folder>")).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn with(version: Option<&str>, packages: &[&str], force: bool) -> PythonOptions {
    let packages = packages.iter().map(|package| (*package).to_owned()).collect();
    PythonOptions { version: version.map(str::to_owned), packages, force, prefix: None }
}

#[test]
fn one_environment_is_made_and_completed() {
    let host = Host::new();
    host.python("python3", "3.11");
    let name = format!("3.11-{}-0", std::process::id());
    assert_eq!(host.install(PythonOptions::default()), Ok(format!("{name}/bin/python3")));
    assert_eq!(host.calls(), [format!("venv <folder>/{name}"), "pip numpy>=1.20".to_owned()]);
    assert_eq!(host.surroundings.installed(), Some(host.folder().join(&name).join("bin/python3")));
    // It exists: only the additional packages are installed.
    assert!(host.install(PythonOptions::default()).is_ok() && host.calls().is_empty());
    assert!(host.install(with(Some("3.11"), &["tokenizers>=0.20"], false)).is_ok());
    assert_eq!(host.calls(), ["pip tokenizers>=0.20"]);
    // Another version, for which a shim without an interpreter comes first; then a new environment in place of all.
    host.python("python3.9", "3.9");
    host.program("shims/python3.9", "#!/bin/sh\nexit 127\n");
    let other = format!("3.9-{}-0", std::process::id());
    assert_eq!(host.install(with(Some("3.9"), &[], false)), Ok(format!("{other}/bin/python3")));
    assert_eq!(host.names(), [name.clone(), other]);
    let new = format!("3.11-{}-1", std::process::id());
    assert_eq!(host.install(with(None, &["x"], true)), Ok(format!("{new}/bin/python3")));
    assert_eq!(host.names(), [new]);
    assert!(host.calls().contains(&"pip numpy>=1.20 x".to_owned()));
}

#[test]
fn a_failure_names_its_cause_and_leaves_nothing() {
    let host = Host::new();
    let none =
        "is needed to make an environment, but it does not start (it is not on the PATH). Install Python 3.8 or newer";
    assert_eq!(host.install(PythonOptions::default()), Err(format!("python3 {none}")));
    assert_eq!(host.install(with(Some("3.12"), &[], false)), Err(format!("python3.12 {none}")));
    host.python("python3", "3.11");
    fs::write(host.root.join("no-venv"), "").unwrap();
    assert_eq!(
        host.install(PythonOptions::default()),
        Err(format!(
            "{} cannot make a virtual environment (No module named venv). On Debian: apt install python3-venv",
            host.root.join("bin/python3").display()
        ))
    );
    fs::remove_file(host.root.join("no-venv")).unwrap();
    fs::write(host.root.join("no-pip"), "").unwrap();
    assert_eq!(
        host.install(PythonOptions::default()),
        Err("numpy>=1.20 cannot be installed; is this host connected, and are proxies set? pip printed: no route"
            .into())
    );
    fs::remove_file(host.root.join("no-pip")).unwrap();
    host.python("python3", "3.7");
    let old = host.install(PythonOptions::default());
    let expected = "the environment cannot run models: it is Python 3.7.0, and models need Python 3.8 or newer";
    assert_eq!(old, Err(expected.to_owned()));
    assert_eq!(host.names(), [""; 0]);
    let homeless = Surroundings { data_home: None, ..host.surroundings.clone() };
    let error = install_into(&homeless, &PythonOptions::default(), &mut Silent).unwrap_err();
    assert!(matches!(error, PythonError::NoHome));
}

#[test]
fn what_an_ended_installation_left_is_removed() {
    let host = Host::new();
    host.python("python3", "3.11");
    // No process has such a number.
    for name in ["3.11-4194305-0", "3.11-1-0", "3.10-4194305-7", "own"] {
        fs::create_dir_all(host.folder().join(name).join("bin")).unwrap();
    }
    fs::write(host.folder().join("3.10-4194305-7/complete"), "").unwrap();
    host.install(PythonOptions::default()).unwrap();
    let made = format!("3.11-{}-0", std::process::id());
    let mut expected = ["3.10-4194305-7", "3.11-1-0", &made, "own"].map(str::to_owned);
    expected.sort();
    assert_eq!(host.names(), expected);
}
