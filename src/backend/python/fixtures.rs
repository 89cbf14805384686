//! A temporary directory for one test: models and backends, interpreters that are shell scripts, contexts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ModelContext;
use nereid_memory::Pool;
use nereid_wire::inference::{ModelConfig, ModelParameter};

/// A temporary directory, removed on drop.
pub struct TestDirectory(PathBuf);

impl TestDirectory {
    pub fn new() -> TestDirectory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nereid-python-{}-{count}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TestDirectory(path.canonicalize().unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, path: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }

    /// An executable file. Another process copies it: a child process that has the file open for writing, as children
    /// of other tests may for a moment, would prevent its execution.
    pub fn program(&self, path: &str, contents: &str) -> PathBuf {
        let path = self.file(path, "");
        fs::remove_file(&path).unwrap();
        let new = self.file("program.new", contents);
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").arg(&new).arg(&path).status().unwrap().success());
        path
    }

    /// Version 1 of the model `<name>/` of backend `python`.
    pub fn context(&self, name: &str) -> ModelContext {
        let directory = self.0.join(name);
        ModelContext {
            name: name.to_owned(),
            version: 1,
            version_directory: directory.join("1"),
            directory,
            config: ModelConfig { backend: "python".to_owned(), ..ModelConfig::default() },
            auto_complete: true,
            settings: Vec::new(),
            backend_directory: self.0.join("backends"),
            statistics: Default::default(),
            metrics: Default::default(),
            pool: Pool::new(1 << 20),
            worker_cpu_count: 1,
            host: Default::default(),
            load: Default::default(),
            gpus: std::sync::Arc::default(),
        }
    }

    pub fn context_with(&self, name: &str, parameters: &[(&str, &str)]) -> ModelContext {
        let mut context = self.context(name);
        for (key, value) in parameters {
            let value = ModelParameter { string_value: (*value).to_owned() };
            context.config.parameters.insert((*key).to_owned(), value);
        }
        context
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
