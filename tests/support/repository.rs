//! Model repositories that a test defines, written to a temporary directory and removed when they are dropped.

use crate::paths;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A datatype by its protocol name, its config name and the bytes of an element (0: BYTES has no fixed size).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Type {
    pub name: &'static str,
    pub config: &'static str,
    pub size: usize,
}

/// All 14 datatypes (contract/http.md section 5).
pub const TYPES: [Type; 14] = [
    Type { name: "BOOL", config: "TYPE_BOOL", size: 1 },
    Type { name: "UINT8", config: "TYPE_UINT8", size: 1 },
    Type { name: "UINT16", config: "TYPE_UINT16", size: 2 },
    Type { name: "UINT32", config: "TYPE_UINT32", size: 4 },
    Type { name: "UINT64", config: "TYPE_UINT64", size: 8 },
    Type { name: "INT8", config: "TYPE_INT8", size: 1 },
    Type { name: "INT16", config: "TYPE_INT16", size: 2 },
    Type { name: "INT32", config: "TYPE_INT32", size: 4 },
    Type { name: "INT64", config: "TYPE_INT64", size: 8 },
    Type { name: "FP16", config: "TYPE_FP16", size: 2 },
    Type { name: "BF16", config: "TYPE_BF16", size: 2 },
    Type { name: "FP32", config: "TYPE_FP32", size: 4 },
    Type { name: "FP64", config: "TYPE_FP64", size: 8 },
    Type { name: "BYTES", config: "TYPE_STRING", size: 0 },
];

/// One `INPUT<i>` → `OUTPUT<i>` pair of an identity model.
#[derive(Clone, Debug)]
pub struct Pair {
    pub datatype: &'static str,
    pub dims: &'static str,
    /// Further lines of the input, such as `optional: true`.
    pub input: &'static str,
    /// Further lines of the output, such as `label_filename: "labels.txt"`.
    pub output: &'static str,
}

impl Pair {
    /// A pair of `datatype` (protocol name) with `dims` as in the configuration: `-1`, `2, -1`.
    pub fn new(datatype: &'static str, dims: &'static str) -> Pair {
        Pair { datatype, dims, input: "", output: "" }
    }

    pub fn optional(mut self) -> Pair {
        self.input = "optional: true";
        self
    }

    /// The same reshape for input and output, which identity requires.
    pub fn reshape(mut self, reshape: &'static str) -> Pair {
        self.input = reshape;
        self.output = reshape;
        self
    }

    pub fn labels(mut self) -> Pair {
        self.output = "label_filename: \"labels.txt\"";
        self
    }
}

/// The directory for `--model-repository`.
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// An empty repository in the temporary directory of the build.
    pub fn new() -> Repository {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("repository-{}-{count}", std::process::id());
        let root = paths::temporary().join(name);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).expect("the build's temporary directory can be written");
        Repository { root }
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Writes a file of a model, with the directories above it.
    pub fn file(&self, path: &str, contents: impl AsRef<[u8]>) -> &Repository {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a file of a model lies in a directory")).expect("make a directory");
        fs::write(&path, contents).expect("write a file of a model");
        self
    }

    /// A model that consists of a configuration and an empty version directory `1`.
    pub fn model(&self, name: &str, config: &str) -> &Repository {
        self.file(&format!("{name}/config.pbtxt"), config);
        fs::create_dir_all(self.root.join(name).join("1")).expect("make a version directory");
        self
    }

    /// Adds a version directory to a model.
    pub fn version(&self, name: &str, version: &str) -> &Repository {
        fs::create_dir_all(self.root.join(name).join(version)).expect("make a version directory");
        self
    }

    /// An identity model with the pairs as INPUT0 → OUTPUT0, INPUT1 → OUTPUT1, …
    pub fn identity(&self, name: &str, max_batch_size: u32, pairs: &[Pair]) -> &Repository {
        self.identity_of("identity", name, max_batch_size, pairs, "")
    }

    /// The same on another backend, and with further lines of configuration.
    pub fn identity_of(&self, backend: &str, name: &str, batch: u32, pairs: &[Pair], more: &str) -> &Repository {
        self.model(name, &identity_config(backend, name, batch, pairs, more))
    }

    /// `identity_<datatype>` for all 14 datatypes with dims [-1, -1], and `batch_<datatype>` with dims [-1] and
    /// max_batch_size 8.
    pub fn every_datatype(&self) -> &Repository {
        for datatype in TYPES {
            let lower = datatype.name.to_lowercase();
            self.identity(&format!("identity_{lower}"), 0, &[Pair::new(datatype.name, "-1, -1")]);
            self.identity(&format!("batch_{lower}"), 8, &[Pair::new(datatype.name, "-1")]);
        }
        self
    }

    /// A copy of one of the models in model_repository/.
    pub fn example(&self, name: &str) -> &Repository {
        let source = paths::root().join("model_repository").join(name);
        copy_tree(&source, &self.root.join(name));
        self
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The text of an identity model's config.pbtxt.
pub fn identity_config(backend: &str, name: &str, max_batch_size: u32, pairs: &[Pair], more: &str) -> String {
    let mut config = format!("name: \"{name}\"\nbackend: \"{backend}\"\nmax_batch_size: {max_batch_size}\n");
    for (side, prefix) in [("input", "INPUT"), ("output", "OUTPUT")] {
        for (index, pair) in pairs.iter().enumerate() {
            let datatype = TYPES.iter().find(|known| known.name == pair.datatype).expect("a known datatype").config;
            let more = if side == "input" { pair.input } else { pair.output };
            let dims = pair.dims;
            config.push_str(&format!(
                "{side} {{\n  name: \"{prefix}{index}\"\n  data_type: {datatype}\n  dims: [ {dims} ]\n  {more}\n}}\n"
            ));
        }
    }
    config.push_str("instance_group [ { kind: KIND_CPU count: 1 } ]\n");
    config.push_str(more);
    config.push('\n');
    config
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("make a directory");
    for entry in fs::read_dir(from).expect("an example model") {
        let entry = entry.expect("an entry of an example model");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("the kind of an entry").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("copy a file of an example model");
        }
    }
}
