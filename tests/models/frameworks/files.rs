//! Writes the models of the suite into a repository: files that tests/python/frameworks/make.py has made, and
//! configurations.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::table::{Format, Framework, ModelKind, Runtime};
use nereid_test_support::is_large_runtime_wanted;
use nereid_test_support::prepared::{fingerprint, prepared, source, step};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Repository, TYPES};
use nereid_test_support::skip::skip;

/// The models of a format; `None`, after a visible skip, if they cannot be made here. They are made once and kept.
pub fn made(format: &Format) -> Option<PathBuf> {
    let interpreter = match format.requirements {
        Some(requirements) => Python::with(requirements)?.interpreter(),
        None => PathBuf::from("python3"),
    };
    let scripts = source("tests/python/frameworks");
    let mut sources = Vec::new();
    for folder in [scripts.clone(), scripts.join("models")] {
        let mut files = files_in(&folder);
        files.sort();
        sources.extend(files.iter().map(|file| fs::read(file).unwrap_or_else(|error| panic!("{file:?}: {error}"))));
    }
    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    let root = prepared(&format!("frameworks-{}-{}", format.name, fingerprint(&sources)), |root| {
        let mut make = Command::new(&interpreter);
        step(make.arg("-B").arg(scripts.join("make.py")).arg(root).arg(format.name)).map(|_| ())
    });
    match root {
        Ok(root) => Some(root.join(format.folder)),
        Err(reason) => {
            skip(&format!("the models of {} cannot be made: {reason}", format.name));
            None
        }
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect()
}

/// Adds the framework's model of this kind as `model`: its files, and a configuration that ends with `more`. `None` if
/// the files cannot be made.
pub fn add(repository: &Repository, framework: &Framework, kind: ModelKind, model: &str, more: &str) -> Option<()> {
    add_files(repository, framework, kind, model)?;
    repository.file(&format!("{model}/config.pbtxt"), config(framework, kind, more));
    Some(())
}

/// The files alone.
pub fn add_files(repository: &Repository, framework: &Framework, kind: ModelKind, model: &str) -> Option<()> {
    repository.version(model, "1");
    if let Some(format) = &framework.format {
        // The package that makes such a file is the large runtime.
        if let Runtime::Library { name, is_large: true, .. } = framework.runtime
            && format.requirements.is_some()
            && !is_large_runtime_wanted(name)
        {
            return None;
        }
        let folder = made(format)?.join(kind.folder());
        copy(&folder, &repository.path().join(model).join("1"));
    }
    Some(())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("make a directory");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{from:?}: {error}")) {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => {
                fs::copy(&path, &target).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            }
        }
    }
}

fn config(framework: &Framework, kind: ModelKind, more: &str) -> String {
    let tensor = |side: &str, name: String, datatype: &str, dims: &str, more: &str| {
        let datatype = TYPES.iter().find(|known| known.name == datatype).expect("a known datatype").config;
        format!("{side} {{ name: \"{name}\" data_type: {datatype} dims: [ {dims} ] {more} }}\n")
    };
    let input = |at, datatype: &str, dims: &str, more: &str| tensor("input", framework.input(at), datatype, dims, more);
    let output = |at, datatype: &str, dims: &str| tensor("output", framework.output(at), datatype, dims, "");
    let (max_batch_size, tensors) = match kind {
        ModelKind::Network => {
            let (inputs, outputs) = (framework.function.inputs(), framework.function.outputs());
            (8, input(0, "FP32", &inputs.to_string(), "") + &output(0, "FP32", &outputs.to_string()))
        }
        ModelKind::AddSub => {
            let pair = |at| input(at, "FP32", "-1", "") + &output(at, "FP32", "-1");
            (8, pair(0) + &pair(1))
        }
        ModelKind::InPlace => (8, input(0, "FP32", "-1", "") + &output(0, "FP32", "-1")),
        ModelKind::Types => {
            let numbered = || framework.datatypes.iter().enumerate();
            let inputs: String = numbered().map(|(at, datatype)| input(at, datatype, "-1", "")).collect();
            let outputs: String = numbered().map(|(at, datatype)| output(at, datatype, "-1")).collect();
            (0, inputs + &outputs)
        }
        ModelKind::Optional { .. } => {
            (0, input(0, "FP32", "2", "") + &input(1, "FP32", "2", "optional: true") + &optional_outputs(framework))
        }
        ModelKind::Ragged => {
            let (source, target) = (framework.input(0), framework.input(1));
            let counts = format!(
                "batch_input {{ kind: BATCH_ELEMENT_COUNT target_name: \"{target}\" data_type: TYPE_FP32 \
                 source_input: \"{source}\" }}\nbatch_output {{ target_name: \"{}\" \
                 kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"{source}\" }}\n",
                framework.output(0)
            );
            (8, input(0, "FP32", "-1", "allow_ragged_batch: true") + &output(0, "FP32", "-1") + &counts)
        }
    };
    let groups = if more.contains("instance_group") { "" } else { "instance_group { kind: KIND_CPU count: 1 }\n" };
    format!("{}\nmax_batch_size: {max_batch_size}\n{tensors}{groups}{more}\n", framework.backend)
}

/// A framework that computes gives the sum of both inputs, one that copies gives each back.
fn optional_outputs(framework: &Framework) -> String {
    let output = |at| format!("output {{ name: \"{}\" data_type: TYPE_FP32 dims: [ 2 ] }}\n", framework.output(at));
    match framework.function {
        super::reference::Function::Copy => output(0) + &output(1),
        _ => output(0),
    }
}
