//! The file of a model version, and the format that its content has.

use std::path::PathBuf;

use crate::settings::{ModelType, Settings};
use crate::treelite::{Content, Format, Handle, Library};
use crate::validation::validate;
use nereid_backend::ModelContext;
use nereid_backend::model_file::model_file;
use nereid_request::Status;

/// `<version>/<default_model_filename>`; if that is a directory, or nothing is named, the type's usual file in it.
fn path(context: &ModelContext, model_type: ModelType) -> Result<PathBuf, Status> {
    let usual = model_type.default_file();
    let path = model_file(context, None, usual)?;
    Ok(if path.is_dir() { path.join(usual) } else { path })
}

/// The same, if there is such a file.
pub fn existing_path(context: &ModelContext, model_type: ModelType) -> Result<PathBuf, Status> {
    let path = path(context, model_type)?;
    match path.is_file() {
        true => Ok(path),
        false => Err(Status::unavailable(format!("Could not open model file \"{}\"", path.display()))),
    }
}

/// Validates the file and lets treelite read it.
pub fn read(library: &'static Library, context: &ModelContext, settings: &Settings) -> Result<Handle, Status> {
    let path = path(context, settings.model_type)?;
    let content = match Content::read(&path) {
        Ok(content) => content,
        Err(_) if settings.model_type == ModelType::TreeliteCheckpoint => {
            return Err(Status::unavailable(format!("Could not open model file \"{}\"", path.display())));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(library.missing_file(&path).into());
        }
        Err(error) => {
            return Err(Status::unavailable(format!("model file '{}' cannot be read: {error}", path.display())));
        }
    };
    let format = format_of(settings.model_type, content.bytes());
    validate(format, content.bytes())?;
    Ok(library.read(format, &content, settings.allow_unknown_field)?)
}

/// XGBoost since 2.1 writes UBJSON, or JSON, into files of any name, so its three types are told apart by the content.
fn format_of(model_type: ModelType, bytes: &[u8]) -> Format {
    let declared = match model_type {
        ModelType::LightGbm => return Format::LightGbm,
        ModelType::TreeliteCheckpoint => return Format::Checkpoint,
        ModelType::Xgboost => Format::XgboostLegacy,
        ModelType::XgboostJson => Format::XgboostJson,
        ModelType::XgboostUbj => Format::XgboostUbjson,
    };
    match bytes.trim_ascii_start() {
        // UBJSON's types of lengths, and its signs of a counted object.
        [b'{', b'i' | b'U' | b'I' | b'l' | b'L' | b'$' | b'#', ..] => Format::XgboostUbjson,
        [b'{', b'"' | b' ' | b'\t' | b'\r' | b'\n' | b'}', ..] => Format::XgboostJson,
        _ => declared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::fixtures;
    use nereid_backend::scratch::Scratch;
    use nereid_wire::inference::ModelConfig;

    #[test]
    fn a_model_has_the_file_of_its_type_or_the_one_that_it_names() {
        let scratch = Scratch::new("fil-paths");
        scratch.file("own.bin");
        scratch.file("folder/model.txt");
        let path = |name: &str, model_type| {
            let config = ModelConfig { default_model_filename: name.to_owned(), ..ModelConfig::default() };
            path(&fixtures::context("m", scratch.path(""), config), model_type)
        };
        assert_eq!(path("", ModelType::Xgboost), Ok(scratch.path("xgboost.model")));
        assert_eq!(path("own.bin", ModelType::Xgboost), Ok(scratch.path("own.bin")));
        assert_eq!(path("folder", ModelType::LightGbm), Ok(scratch.path("folder/model.txt")));
        assert_eq!(path("absent", ModelType::LightGbm), Ok(scratch.path("absent")));
        for outside in ["../own.bin", "/etc/passwd"] {
            let text = format!("default_model_filename '{outside}' of model 'm' is outside its version directory");
            assert_eq!(path(outside, ModelType::Xgboost), Err(Status::invalid(text)));
        }
    }

    #[test]
    fn the_content_tells_the_formats_of_xgboost_apart() {
        let types = [ModelType::Xgboost, ModelType::XgboostJson, ModelType::XgboostUbj];
        for model_type in types {
            assert_eq!(format_of(model_type, b"{\"learner\":{}}"), Format::XgboostJson);
            assert_eq!(format_of(model_type, b"\n{ \"learner\":{}}"), Format::XgboostJson);
            assert_eq!(format_of(model_type, b"{L\0\0\0\0\0\0\0\x07learner{"), Format::XgboostUbjson);
        }
        let unclear = [Format::XgboostLegacy, Format::XgboostJson, Format::XgboostUbjson];
        assert_eq!(types.map(|model_type| format_of(model_type, b"garbage")), unclear);
        assert_eq!(types.map(|model_type| format_of(model_type, b"")), unclear);
        assert_eq!(format_of(ModelType::LightGbm, b"{\"a\":1}"), Format::LightGbm);
        assert_eq!(format_of(ModelType::TreeliteCheckpoint, b"{\"a\":1}"), Format::Checkpoint);
    }
}
