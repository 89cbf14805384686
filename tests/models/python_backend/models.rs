//! Repositories of the models under tests/python_models, and servers whose workers find numpy.

use std::fs;
use std::path::{Path, PathBuf};

use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::Variant;

/// The interpreter of the tests' own environment, which has numpy.
pub fn interpreter() -> Option<PathBuf> {
    Python::get().map(|python| python.interpreter())
}

/// A repository of these models of tests/python_models.
pub fn repository(models: &[&str]) -> Repository {
    let repository = Repository::new();
    models.iter().for_each(|model| add(&repository, model, model));
    repository
}

/// Adds the model `source` of tests/python_models under the name `name`.
pub fn add(repository: &Repository, source: &str, name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models").join(source);
    copy(repository, &from, name);
}

fn copy(repository: &Repository, from: &Path, to: &str) {
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let path = entry.expect("an entry").path();
        let place = format!("{to}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        match path.is_dir() {
            true => copy(repository, &path, &place),
            false => {
                repository.file(&place, fs::read(&path).expect("a file that can be read"));
            }
        }
    }
}

/// A server of that repository; `None`, after a visible skip, where there is no interpreter with numpy.
pub fn serve(variant: Variant, repository: &Repository, flags: &[&str]) -> Option<Server> {
    let interpreter = format!("--backend-config=python,interpreter={}", interpreter()?.display());
    let mut all = vec![interpreter.as_str()];
    all.extend(flags);
    Some(Server::start(variant, repository.path(), &all))
}

/// The processes of a model's instances.
pub fn workers(server: &Server, model: &str) -> Vec<u32> {
    let parent = format!("\nPPid:\t{}\n", server.pid());
    let is_ours = |id: &u32| fs::read_to_string(format!("/proc/{id}/status")).is_ok_and(|text| text.contains(&parent));
    workers_of_any(model).into_iter().filter(is_ours).collect()
}

/// The same whatever server had them, also one that is no more.
pub fn workers_of_any(model: &str) -> Vec<u32> {
    let title = format!("{model}_");
    let is_worker = |id: &u32| {
        let words = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let last = words.split(|byte| *byte == 0).rfind(|word| !word.is_empty()).unwrap_or_default();
        last.starts_with(title.as_bytes())
    };
    let all = fs::read_dir("/proc").expect("processes").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_worker).collect()
}
