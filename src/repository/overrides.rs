//! Configuration and files that a load request carries in place of the repository's own (contract/schedulers.md section
//! 10, "override").
//!
//! Errors of this kind are logged; the client receives only that the model's poll failed.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::version::Directory;
use nereid_model_config::json;
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;

/// A parameter of a load request.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub value: ParameterValue,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ParameterValue {
    Text(String),
    Bytes(Vec<u8>),
    Integer(i64),
    Boolean(bool),
    Double(f64),
}

impl ParameterValue {
    /// Triton's name of the type.
    fn type_name(&self) -> &'static str {
        match self {
            ParameterValue::Text(_) => "STRING",
            ParameterValue::Bytes(_) => "BYTES",
            ParameterValue::Integer(_) => "INT",
            ParameterValue::Boolean(_) => "BOOL",
            ParameterValue::Double(_) => "DOUBLE",
        }
    }
}

/// What replaces the repository's configuration or files.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Override {
    /// Nothing: the model is loaded from the repository as it is.
    #[default]
    None,
    Config(Box<ModelConfig>),
    /// These files instead of all files of the repository. Paths are relative and stay inside the model's directory.
    Files {
        config: Box<ModelConfig>,
        files: Vec<(PathBuf, Vec<u8>)>,
    },
}

impl Override {
    pub fn config(&self) -> Option<&ModelConfig> {
        match self {
            Override::None => None,
            Override::Config(config) | Override::Files { config, .. } => Some(config),
        }
    }

    /// Parses the parameters of a load request.
    pub fn read(parameters: Vec<Parameter>) -> Result<Override, Status> {
        let (mut config, mut files) = (None, Vec::new());
        for Parameter { name, value } in parameters {
            match (name.strip_prefix("file:"), value) {
                (None, ParameterValue::Text(text)) if name == "config" => {
                    let read = json::read(text.as_bytes());
                    let read = read.map_err(|error| Status::invalid(format!("Invalid config override: {error}")))?;
                    config = Some(Box::new(read));
                }
                (Some(path), ParameterValue::Bytes(contents)) => files.push((inside(&name, path)?, contents)),
                (Some(_), _) => {
                    return Err(Status::invalid(format!("File parameter '{name}' must have bytes type for its value")));
                }
                (None, _) if name == "config" => {
                    return Err(Status::invalid("Config parameter 'config' must have string type for its value"));
                }
                (_, value) => {
                    let type_name = value.type_name();
                    let text = format!("Unrecognized load parameter '{name}' with type '{type_name}'");
                    return Err(Status::invalid(text));
                }
            }
        }
        match (config, files.is_empty()) {
            (None, true) => Ok(Override::None),
            (Some(config), true) => Ok(Override::Config(config)),
            (Some(config), false) => Ok(Override::Files { config, files }),
            (None, false) => Err(Status::invalid("Load parameter 'config' must be specified for model file override")),
        }
    }
}

/// The path without `.` and `..`, if it stays inside the directory that it is relative to; leading slashes are ignored.
fn inside(parameter: &str, path: &str) -> Result<PathBuf, Status> {
    let path = path.trim_start_matches('/');
    let mut normal = PathBuf::new();
    let mut escapes = path.is_empty() || path.contains('\0');
    for component in Path::new(path).components() {
        match component {
            Component::Normal(part) => normal.push(part),
            Component::CurDir => {}
            Component::ParentDir => escapes |= !normal.pop(),
            Component::RootDir | Component::Prefix(_) => escapes = true,
        }
    }
    if escapes || normal.as_os_str().is_empty() {
        let shown = if escapes { Path::new(path) } else { &normal };
        return Err(Status::invalid(format!(
            "Invalid file parameter '{parameter}' with normalized path '{}' must stay within model directory.",
            shown.display()
        )));
    }
    Ok(normal)
}

/// Names that are tried before this is an error.
const TRIES_MAX: u32 = 100;

/// A directory that is removed with its last holder.
struct TempDirectory(PathBuf);

impl Drop for TempDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!("the temporary directory '{}' cannot be removed: {error}", self.0.display());
        }
    }
}

/// A new private directory. A process that was killed leaves its own behind, and its number is given again, so the name
/// is random, and another one where it is taken.
fn new_directory(parent: &Path, mut random: impl FnMut() -> u64) -> std::io::Result<PathBuf> {
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    for _ in 0..TRIES_MAX {
        let path = parent.join(format!("nereid-override-{:016x}", random()));
        match builder.create(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Writes the files of an override to a temporary directory that has the model's name.
pub fn write_files(model: &str, files: &[(PathBuf, Vec<u8>)]) -> Result<Directory, Status> {
    let cannot = |path: &Path, error: std::io::Error| {
        Status::internal(format!("failed to write the file override '{}': {error}", path.display()))
    };
    let temporary = std::env::temp_dir();
    let root =
        new_directory(&temporary, || RandomState::new().hash_one(0)).map_err(|error| cannot(&temporary, error))?;
    let keep = Arc::new(TempDirectory(root.clone()));
    let path = root.join(model);
    fs::create_dir(&path).map_err(|error| cannot(&path, error))?;
    for (relative, contents) in files {
        let file = path.join(relative);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).map_err(|error| cannot(parent, error))?;
        }
        if file.is_dir() {
            let parameter = format!("file:{}", relative.display());
            let text = "directory has been created as a file";
            return Err(Status::invalid(format!("Invalid file parameter '{parameter}', {text}")));
        }
        fs::write(&file, contents).map_err(|error| cannot(&file, error))?;
    }
    Ok(Directory { path, keep, agents: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, value: &str) -> Parameter {
        Parameter { name: name.to_owned(), value: ParameterValue::Text(value.to_owned()) }
    }

    fn file(name: &str) -> Parameter {
        Parameter { name: name.to_owned(), value: ParameterValue::Bytes(b"contents".to_vec()) }
    }

    #[test]
    fn parameters_are_a_config_and_files() {
        assert_eq!(Override::read(vec![]), Ok(Override::None));
        let config = Box::new(ModelConfig { max_batch_size: 3, ..ModelConfig::default() });
        let given = text("config", r#"{"maxBatchSize": 3}"#);
        assert_eq!(Override::read(vec![given.clone()]), Ok(Override::Config(config.clone())));
        let files = vec![("1/model.onnx".into(), b"contents".to_vec()), ("labels".into(), b"contents".to_vec())];
        for (first, second) in [
            ("file:1/model.onnx", "file:./x/../labels"),
            ("file:/1/model.onnx", "file:/labels"),
            ("file://1/model.onnx", "file:///x//../labels"),
        ] {
            let parameters = vec![file(first), given.clone(), file(second)];
            let expected = Override::Files { config: config.clone(), files: files.clone() };
            assert_eq!(Override::read(parameters), Ok(expected), "{first}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let config = || text("config", "{}");
        let outside = |name: &str, path: &str| {
            format!("Invalid file parameter '{name}' with normalized path '{path}' must stay within model directory.")
        };
        let unknown = |name: &str, kind: &str| format!("Unrecognized load parameter '{name}' with type '{kind}'");
        let no_text = "Config parameter 'config' must have string type for its value".to_owned();
        let other = |value| Parameter { name: "config".to_owned(), value };
        let cases = [
            (vec![file("file:1/m")], "Load parameter 'config' must be specified for model file override".to_owned()),
            (vec![config(), file("file:../m")], outside("file:../m", "../m")),
            (vec![config(), file("file:1/../../m")], outside("file:1/../../m", "1/../../m")),
            (vec![config(), file("file:/../x")], outside("file:/../x", "../x")),
            (vec![config(), file("file:/")], outside("file:/", "")),
            (vec![config(), file("file:1/..")], outside("file:1/..", "")),
            (vec![config(), file("file:")], outside("file:", "")),
            (
                vec![config(), text("file:1/m", "x")],
                "File parameter 'file:1/m' must have bytes type for its value".to_owned(),
            ),
            (vec![text("other", "x")], unknown("other", "STRING")),
            (vec![file("other")], unknown("other", "BYTES")),
            (vec![other(ParameterValue::Integer(1))], no_text.clone()),
            (vec![other(ParameterValue::Boolean(true))], no_text),
        ];
        for (parameters, text) in cases {
            assert_eq!(Override::read(parameters).unwrap_err(), Status::invalid(text));
        }
        let error = Override::read(vec![text("config", r#"{"max_batch_sise": 1}"#)]).unwrap_err();
        assert!(error.message.starts_with("Invalid config override: "), "{error}");
    }

    #[test]
    fn a_directory_that_another_process_left_is_not_in_the_way() {
        let parent = std::env::temp_dir();
        let mut names = [1, 1, 2].into_iter().map(|end| (u64::from(std::process::id()) << 32) | end);
        let first = new_directory(&parent, || names.next().unwrap()).unwrap();
        let second = new_directory(&parent, || names.next().unwrap()).unwrap();
        assert_ne!(first, second);
        assert!(names.next().is_none());
        let taken = |name: &Path| name.file_name().unwrap().to_str().unwrap().ends_with("00000001");
        assert!(taken(&first) && !taken(&second));
        let error = new_directory(&parent, || (u64::from(std::process::id()) << 32) | 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        [first, second].iter().for_each(|path| fs::remove_dir(path).unwrap());
    }

    #[test]
    fn files_are_private_and_go_with_their_holder() {
        let files = [(PathBuf::from("1/model.onnx"), b"x".to_vec()), (PathBuf::from("config.pbtxt"), Vec::new())];
        let directory = write_files("m", &files).unwrap();
        assert_eq!(fs::read(directory.path.join("1/model.onnx")).unwrap(), b"x");
        assert!(directory.path.ends_with("m") && directory.path.join("config.pbtxt").is_file());
        let root = directory.path.parent().unwrap().to_owned();
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&root).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o700);
        drop(directory);
        assert!(!root.exists());
        let name = "x".repeat(300);
        let error = write_files("m", &[(PathBuf::from(&name), Vec::new())]).map(|_| ()).unwrap_err();
        assert!(error.message.contains(&name), "{error}");
    }
}
