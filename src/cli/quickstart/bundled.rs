//! The three example models, inside the program: quickstart needs no checkout.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cli::install::{Content, File};

macro_rules! model_files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../model_repository/", $name)).as_slice())),*]
    };
}

const FILES: [(&str, &[u8]); 7] = model_files![
    "digits/config.pbtxt",
    "digits/digits_labels.txt",
    "digits/1/model.onnx",
    "simple/config.pbtxt",
    "simple/1/model.onnx",
    "identity/config.pbtxt",
    "identity/1/README",
];

/// The folder of the models, which users may read and change: in the user's data folder, or in a fresh temporary folder
/// where there is none or it cannot be written to. Changed files are written again.
pub(super) fn repository(data_home: Option<&Path>) -> io::Result<PathBuf> {
    if let Some(data_home) = data_home {
        let folder = data_home.join("nereid/examples/quickstart");
        if write_to(&folder).is_ok() {
            return Ok(folder);
        }
    }
    let folder = std::env::temp_dir().join(format!("nereid-quickstart-{}", std::process::id()));
    // No other user may have put a file there, or write there later.
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    write_to(&folder).map(|()| folder)
}

fn write_to(folder: &Path) -> io::Result<()> {
    for (name, content) in FILES {
        let path = folder.join(name);
        // A running server does not poll this folder; still, an unchanged file is not written again.
        if fs::read(&path).is_ok_and(|found| found == content) {
            continue;
        }
        File { path, content: Content::Bytes(content), mode: 0o644 }.put(true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_are_written_and_kept() {
        let home = std::env::temp_dir().join(format!("nereid-bundled-{}", std::process::id()));
        let folder = repository(Some(&home)).unwrap();
        assert!(folder.starts_with(&home));
        let model = folder.join("digits/1/model.onnx");
        let written = fs::metadata(&model).unwrap().modified().unwrap();
        fs::write(folder.join("simple/config.pbtxt"), "changed").unwrap();
        assert_eq!(repository(Some(&home)).unwrap(), folder);
        assert_eq!(fs::metadata(&model).unwrap().modified().unwrap(), written, "written again");
        for (name, content) in FILES {
            assert_eq!(fs::read(folder.join(name)).unwrap(), content, "{name}");
        }
        fs::remove_dir_all(&home).unwrap();
        // A home that is a file cannot hold anything.
        fs::write(&home, "").unwrap();
        let elsewhere = repository(Some(&home)).unwrap();
        assert!(elsewhere.join("identity/1/README").is_file() && !elsewhere.starts_with(&home));
        fs::remove_dir_all(elsewhere).unwrap();
        fs::remove_file(&home).unwrap();
    }
}
