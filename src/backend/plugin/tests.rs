//! Which file is found and which is refused, with directories that a test makes.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

struct Directories(PathBuf);

impl Directories {
    fn new() -> Directories {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("nereid-search-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        for directory in ["model/1", "backends/b", "elsewhere"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        Directories(root.canonicalize().unwrap())
    }

    fn file(&self, path: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        std::os::unix::fs::symlink(self.0.join(to), self.0.join(from)).unwrap();
    }

    fn plugins(&self) -> Plugins {
        Plugins::new(
            PluginSettings {
                directory: self.0.join("backends"),
                auto_complete: true,
                min_compute_capability: 7.5,
                pool: Pool::new(1 << 20),
                gpus: Arc::default(),
            },
            no_libraries,
        )
    }

    /// What is found, relative to the root: directory and file, or directory and `model.py`. Or the error, with
    /// `<root>` for the root.
    fn locate(&self, backend: &str, runtime: &str) -> Result<(String, String), String> {
        let (model, version) = (self.0.join("model"), self.0.join("model/1"));
        let shown = |path: PathBuf| path.strip_prefix(&self.0).unwrap().display().to_string();
        match self.plugins().locate(backend, runtime, &model, &version, "m") {
            Ok(Located::Library { directory, file }) => Ok((shown(directory), shown(file))),
            Ok(Located::Script { directory }) => Ok((shown(directory), SCRIPT.to_owned())),
            Err(status) => Err(status.message.replace(&self.0.display().to_string(), "<root>")),
        }
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn at(directory: &str, file: &str) -> Result<(String, String), String> {
    Ok((directory.to_owned(), format!("{directory}/{file}")))
}

#[test]
fn the_version_comes_before_the_model_and_the_model_before_the_backend() {
    let made = Directories::new();
    let name = "libtriton_b.so";
    assert!(made.locate("b", "").is_err());
    for directory in ["backends/b", "model", "model/1"] {
        made.file(&format!("{directory}/{name}"));
        assert_eq!(made.locate("b", ""), at(directory, name));
        assert_eq!(made.locate("b", name), at(directory, name), "named by its usual name");
    }
    made.file("model/sub/libx.so");
    assert_eq!(made.locate("b", "sub/libx.so"), at("model", "sub/libx.so"));
    assert_eq!(made.locate("b", "sub/../sub/libx.so"), at("model", "sub/../sub/libx.so"));
}

#[test]
fn what_is_not_there_or_not_allowed_is_told() {
    let made = Directories::new();
    made.file("elsewhere/lib.so");
    made.link("model/libout.so", "elsewhere/lib.so");
    made.link("backends/b/libfar.so", "elsewhere/lib.so");
    made.link("model/out", "elsewhere");
    made.link("model/1/libnear.so", "model/1/libthere.so");
    made.file("model/1/libthere.so");
    made.link("backends/b/libtriton_b.so", "elsewhere/lib.so");
    made.file("backends/snake/model.py");
    made.file("backends/b/other.py");
    let escapes = |file: &str, place: &str| {
        Err(format!(
            "backend library name '{file}' escapes backend directory '<root>/{place}', for model 'm', check model \
             config runtime field"
        ))
    };
    let script = |directory: &str| Ok((directory.to_owned(), "model.py".to_owned()));
    made.file("backends/both/model.py");
    made.file("backends/both/libtriton_both.so");
    made.file("model/1/model.py");
    for (backend, runtime, expected) in [
        ("b", "../libx.so", escapes("../libx.so", "backends/b")),
        ("b", "sub/../../libx.so", escapes("sub/../../libx.so", "backends/b")),
        ("b", "/libx.so", escapes("/libx.so", "backends/b")),
        ("b", "..", escapes("..", "backends/b")),
        ("b", ".", escapes(".", "backends/b")),
        ("b", "libout.so", escapes("libout.so", "model")),
        ("b", "out/lib.so", escapes("out/lib.so", "model")),
        ("b", "libfar.so", escapes("libfar.so", "backends/b")),
        ("b", "libnear.so", at("model/1", "libnear.so")),
        // By its own name, the operator's link.
        ("b", "", at("backends/b", "libtriton_b.so")),
        ("snake", "", script("backends/snake")),
        ("snake", "model.py", script("backends/snake")),
        // Another script is not found.
        ("b", "other.py", at("backends/b", "other.py")),
        // A library comes before a script, unless the script is named.
        ("both", "", at("backends/both", "libtriton_both.so")),
        ("both", "model.py", script("backends/both")),
        // A model's own file is not a backend.
        (
            "b",
            "model.py",
            Err("unable to find backend library 'model.py' for model 'm', searched: '<root>/backends/b'".to_owned()),
        ),
        (
            "none",
            "",
            Err(
                "unable to find backend library for backend 'none', try specifying runtime on the model configuration."
                    .to_owned(),
            ),
        ),
        (
            "b",
            "libnone.so",
            Err(
                "unable to find backend library 'libnone.so' for model 'm', searched: '<root>/model/1' '<root>/model' \
                 '<root>/backends/b'"
                    .to_owned(),
            ),
        ),
    ] {
        assert_eq!(made.locate(backend, runtime), expected, "{backend} {runtime}");
    }
}

#[test]
fn backends_are_told_of_the_server_and_their_own_settings_win() {
    let made = Directories::new();
    let own = [("default-max-batch-size", "8"), ("colour", "red"), ("colour", "green")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    let told = config_json(&made.0.join("backends"), true, 7.5, &own);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let directory = made.0.join("backends").display().to_string();
    let expected = serde_json::json!({ "cmdline": {
        "auto-complete-config": "true",
        "backend-directory": directory,
        "min-compute-capability": "7.500000",
        "default-max-batch-size": "8",
        "colour": "green",
    }});
    assert_eq!(told, expected);
}
