//! The file of a model version that a configuration names.

use std::path::{Component, Path, PathBuf};

use nereid_request::Status;

use super::ModelContext;

/// `<version>/<name>`, where the name is that of `default_model_filename`, which `for_device` replaces, or else
/// `usual`. A name that leads out of the version's directory is refused; whether there is such a file is not checked.
pub fn model_file(context: &ModelContext, for_device: Option<&str>, usual: &str) -> Result<PathBuf, Status> {
    let of_config = || ("default_model_filename", context.config.default_model_filename.as_str());
    let (field, given) = for_device.map_or_else(of_config, |given| ("cc_model_filenames", given));
    if !stays_inside(given) {
        return Err(Status::invalid(format!(
            "{field} '{given}' of model '{}' is outside its version directory",
            context.name
        )));
    }
    Ok(context.version_directory.join(if given.is_empty() { usual } else { given }))
}

/// [`model_file`], which must exist.
pub fn existing_model_file(context: &ModelContext, for_device: Option<&str>, usual: &str) -> Result<PathBuf, Status> {
    let path = model_file(context, for_device, usual)?;
    if path.exists() { Ok(path) } else { Err(missing(context, &path)) }
}

/// The error for a file of the model that does not exist.
pub fn missing(context: &ModelContext, path: &Path) -> Status {
    Status::unavailable(format!("unable to find '{}' for model instance '{}'", path.display(), context.name))
}

/// False for an absolute path, because joining yields that path, and for one that leaves its directory by `..`.
pub fn stays_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::context;
    use crate::scratch::Scratch;
    use nereid_wire::inference::ModelConfig;

    #[test]
    fn a_file_is_in_the_directory_of_its_version() {
        let scratch = Scratch::new("model-file");
        let file = |given: &str, for_device: Option<&str>| {
            let config = ModelConfig { default_model_filename: given.to_owned(), ..ModelConfig::default() };
            existing_model_file(&context("m", scratch.path(""), config), for_device, "usual")
        };
        let unusual = scratch.file("a/b");
        assert_eq!(file("a/b", None), Ok(unusual.clone()));
        assert_eq!(file("gone", Some("a/b")), Ok(unusual));
        let absent = format!("unable to find '{}' for model instance 'm'", scratch.path("usual").display());
        assert_eq!(file("", None), Err(Status::unavailable(absent)));
        let usual = scratch.file("usual");
        assert_eq!(file("", None), Ok(usual));
        for outside in ["../usual", "/usual", "a/../../usual"] {
            let text = |field: &str| format!("{field} '{outside}' of model 'm' is outside its version directory");
            assert_eq!(file(outside, None), Err(Status::invalid(text("default_model_filename"))));
            assert_eq!(file("a/b", Some(outside)), Err(Status::invalid(text("cc_model_filenames"))));
        }
    }
}
