//! Files that are no model: the load says what is wrong with them, and nothing else suffers.

use std::fs;
use std::path::{Path, PathBuf};

use super::bench::{Bench, EXPLICIT, repository_of};
use super::files::{add, made};
use super::table::{Broken, Damage, FRAMEWORKS, Format, Framework, ModelKind};
use super::tensors::Form;
use nereid_test_support::variant::is_second_run;

pub fn a_file_that_cannot_be_loaded_is_an_error_of_its_load_alone(framework: &Framework) {
    let Some(format) = &framework.format else { return };
    if is_second_run() {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::Network], "") else { return };
    let (good, model) = (framework.model(ModelKind::Network), format!("{}_broken", framework.name));
    let Some(mut bench) = Bench::start(&[framework], &repository, &[EXPLICIT]) else { return };
    bench.must_load(&good);
    for Broken { damage, text } in framework.broken {
        let Some(()) = add(&repository, framework, ModelKind::Network, &model, "") else { return };
        let file = main_file(&repository.path().join(&model).join("1").join(format.file));
        let Some(()) = break_file(&file, *damage) else { return };
        let answer = bench.load(&model);
        let what = format!("{model}, {damage:?}");
        let error = answer.error();
        assert_eq!(answer.status, 400, "{what}: {error}");
        let start = format!("load failed for model '{model}': version 1 is at UNAVAILABLE state: ");
        assert!(error.starts_with(&start), "{what}: {error}");
        assert!(error.contains(text), "{what}: expected {text:?} in {error}");
        assert_ne!(bench.client.http.get(&format!("/v2/models/{model}/ready")).status, 200, "{what}");
        bench.check_rows(framework, Form::Binary, &good, 2, 3);
        fs::remove_dir_all(repository.path().join(&model)).expect("remove the model");
    }
    // The name is not spoilt.
    let Some(()) = add(&repository, framework, ModelKind::Network, &model, "") else { return };
    bench.must_load(&model);
    bench.check_rows(framework, Form::Json, &model, 1, 4);
    bench.stop();
}

/// The file itself, or the one in its directory.
fn main_file(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => fs::read_dir(path).expect("a directory").next().expect("a file").expect("an entry").path(),
        false => path.to_owned(),
    }
}

fn break_file(file: &Path, damage: Damage) -> Option<()> {
    let contents = fs::read(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let broken = match damage {
        Damage::Missing => {
            fs::remove_file(file).expect("remove the file");
            return Some(());
        }
        Damage::Empty => Vec::new(),
        Damage::Garbage => (0..1000u32).map(|at| (at * at % 251) as u8).collect(),
        Damage::Truncated => contents[..contents.len() / 2].to_vec(),
        Damage::Foreign(name) => fs::read(foreign_file(name)?).expect("the file of another framework"),
    };
    fs::write(file, broken).expect("write the file");
    Some(())
}

/// The file of the network of another framework.
fn foreign_file(name: &str) -> Option<PathBuf> {
    let other = FRAMEWORKS.into_iter().find(|framework| framework.name == name);
    let format: &Format = other.and_then(|other| other.format.as_ref()).expect("a framework with files");
    Some(main_file(&made(format)?.join(ModelKind::Network.folder()).join(format.file)))
}
