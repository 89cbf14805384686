//! Holds models until a test has seen what it waits for. A time for which they took would be over too early on a busy
//! machine.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::paths;
use crate::server::Server;

/// The backend of the models that a gate can hold: the C identity, see [`crate::backend::directory`].
pub const BACKEND: &str = "copycat";

/// A file of the test's own: while it is not there, the models whose configuration names it wait for it.
pub struct Gate {
    path: PathBuf,
}

impl Gate {
    /// A gate that is closed.
    pub fn new() -> Gate {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let gate = Gate { path: paths::temporary().join(format!("gate-{}-{count}", std::process::id())) };
        gate.close();
        gate
    }

    /// A line for the configuration of a model: its executions wait at this gate.
    pub fn of_executions(&self) -> String {
        self.parameter("execute_until")
    }

    /// The same for its loads.
    pub fn of_loads(&self) -> String {
        self.parameter("load_until")
    }

    fn parameter(&self, key: &str) -> String {
        format!("parameters {{ key: \"{key}\" value {{ string_value: \"{}\" }} }}\n", self.path.display())
    }

    /// Waits until an execution of the model is held.
    pub fn wait_until_held(&self, server: &Server, model: &str) {
        server.wait_for_log(&format!("identity.c: {model} holds\n"));
    }

    pub fn open(&self) {
        fs::write(&self.path, "").expect("the build's temporary directory can be written");
    }

    pub fn close(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close();
    }
}
