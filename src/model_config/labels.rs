//! The class labels of a model's outputs: one a line, the line's number is the class
//! (contract/model_config.md section 4).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use super::Error;
use nereid_wire::inference::ModelOutput;

/// Longest label file in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// The labels of one output, as bytes: a file need not be UTF-8. Labels of one file share one allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    text: Vec<u8>,
    /// Where each line ends in `text`: before its newline, or at the end of the text.
    ends: Vec<usize>,
}

impl Labels {
    /// Takes a file's contents apart. A carriage return at the end of a line is kept, as Triton keeps it.
    pub fn from_text(text: Vec<u8>) -> Labels {
        let mut ends: Vec<usize> = memchr::memchr_iter(b'\n', &text).collect();
        if text.last().is_some_and(|byte| *byte != b'\n') {
            ends.push(text.len());
        }
        Labels { text, ends }
    }

    /// The label of a class; none beyond the last line.
    pub fn get(&self, class: usize) -> Option<&[u8]> {
        let start = match class.checked_sub(1) {
            None => 0,
            Some(before) => self.ends.get(before)?.checked_add(1)?,
        };
        self.text.get(start..*self.ends.get(class)?)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// Reads the label files of all outputs that have one, by output name.
pub fn load(model: &str, model_dir: &Path, outputs: &[ModelOutput]) -> Result<BTreeMap<String, Labels>, Error> {
    let mut labels = BTreeMap::new();
    for output in outputs.iter().filter(|output| !output.label_filename.is_empty()) {
        let file = &output.label_filename;
        if escapes(model_dir, file) {
            return Err(Error::unsupported(format!(
                "label file path '{file}' for output '{}' in model '{model}' is outside model directory",
                output.name
            )));
        }
        if labels.contains_key(&output.name) {
            return Err(Error::internal(format!("multiple label files for '{}'", output.name)));
        }
        labels.insert(output.name.clone(), Labels::from_text(read(&model_dir.join(file))?));
    }
    Ok(labels)
}

/// Does `relative` lead out of `directory`, by its own parts or through a link?
pub(super) fn escapes(directory: &Path, relative: &str) -> bool {
    let mut depth = 0usize;
    for component in Path::new(relative).components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    // A missing path is accepted here; reading it returns the error.
    match (directory.canonicalize(), directory.join(relative).canonicalize()) {
        (Ok(directory), Ok(file)) => !file.starts_with(directory),
        _ => false,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error: std::io::Error| {
        Error::internal(format!("failed to open text file for read {}: {error}", path.display()))
    };
    let file = File::open(path).map_err(failed)?;
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(Error::invalid(format!(
            "label file {} exceeds the maximum of {MAX_FILE_BYTES} bytes",
            path.display()
        )));
    }
    Ok(text)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A directory that goes away with the test.
    pub(in super::super) struct Scratch(PathBuf);

    impl Scratch {
        pub fn new(name: &str) -> Scratch {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("nereid_{name}_{}_{number}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        pub fn path(&self) -> &Path {
            &self.0
        }

        pub fn write(&self, relative: &str, contents: &[u8]) {
            let path = self.0.join(relative);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn output(name: &str, file: &str) -> ModelOutput {
        ModelOutput { name: name.into(), label_filename: file.into(), ..Default::default() }
    }

    #[test]
    fn lines_are_classes() {
        let cases: [(&[u8], &[&[u8]]); 7] = [
            (b"", &[]),
            (b"cat", &[b"cat"]),
            (b"cat\n", &[b"cat"]),
            (b"cat\ndog", &[b"cat", b"dog"]),
            (b"cat\r\ndog\n", &[b"cat\r", b"dog"]),
            (b"\n\nx\n\n", &[b"", b"", b"x", b""]),
            (b"\xff\n", &[b"\xff"]),
        ];
        for (text, expected) in cases {
            let labels = Labels::from_text(text.to_vec());
            let got: Vec<&[u8]> = (0..labels.len()).map(|class| labels.get(class).unwrap()).collect();
            assert_eq!(got, expected);
            assert_eq!(labels.get(expected.len()), None);
            assert_eq!(labels.is_empty(), expected.is_empty());
        }
    }

    #[test]
    fn files_of_the_model_are_read() {
        let scratch = Scratch::new("labels");
        scratch.write("labels.txt", b"a\nb\n");
        scratch.write("sub/more.txt", b"c");
        let outputs = [output("OUT0", "labels.txt"), output("OUT1", ""), output("OUT2", "./sub/../sub/more.txt")];
        let labels = load("m", scratch.path(), &outputs).unwrap();
        assert_eq!(labels.keys().collect::<Vec<_>>(), ["OUT0", "OUT2"]);
        assert_eq!(labels["OUT0"].get(1), Some(&b"b"[..]));
        assert_eq!(labels["OUT2"].get(0), Some(&b"c"[..]));
    }

    #[test]
    fn a_path_may_not_leave_the_model() {
        let scratch = Scratch::new("labels_escape");
        scratch.write("model/config.pbtxt", b"");
        scratch.write("secret.txt", b"s");
        let model_dir = scratch.path().join("model");
        std::os::unix::fs::symlink("../secret.txt", model_dir.join("link.txt")).unwrap();
        let absolute = scratch.path().join("secret.txt").display().to_string();
        for file in ["../secret.txt", "a/../../secret.txt", "..", "link.txt", absolute.as_str(), "/etc/passwd"] {
            let error = load("m", &model_dir, &[output("OUT", file)]).unwrap_err();
            assert_eq!(
                error,
                Error::unsupported(format!(
                    "label file path '{file}' for output 'OUT' in model 'm' is outside model directory"
                ))
            );
        }
    }

    #[test]
    fn two_files_for_one_output_and_none_at_all() {
        let scratch = Scratch::new("labels_twice");
        scratch.write("labels.txt", b"a");
        let twice = [output("OUT", "labels.txt"), output("OUT", "labels.txt")];
        let error = load("m", scratch.path(), &twice).unwrap_err();
        assert_eq!(error, Error::internal("multiple label files for 'OUT'"));
        let error = load("m", scratch.path(), &[output("OUT", "absent.txt")]).unwrap_err();
        assert!(matches!(error, Error::Internal { .. }), "{error:?}");
        let error = load("m", scratch.path(), &[output("OUT", ".")]).unwrap_err();
        assert!(matches!(error, Error::Internal { .. }), "{error:?}");
    }
}
