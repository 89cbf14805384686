//! The next step for a model that the library cannot load, added to the library's own text.
//!
//! The library reports where in its sources it failed. What its user can do about it depends on a few kinds of
//! failures, which its text tells apart, and on what the file is instead of an ONNX model.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::runtime::{Runtime, RuntimeError};
use nereid_request::Status;

/// The numbers of the fields of a model (ModelProto): what has others is no model.
const FIELDS: [u64; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26];
/// Fields of a file that are examined; a model has about ten, and more with local functions and metadata.
const FIELDS_MAX: usize = 4_096;

/// The error of a model whose file at `path` could not be loaded.
pub fn load_error(error: &RuntimeError, path: &Path, runtime: &Runtime) -> Status {
    let text = error.to_string();
    match next_step(&error.text, path, runtime.version()) {
        None => Status::internal(text),
        Some(step) => Status::internal(format!("{}. {step}", text.trim_end().trim_end_matches('.'))),
    }
}

fn next_step(text: &str, path: &Path, version: &str) -> Option<String> {
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if has(&["Protobuf parsing failed", "No graph was found"]) {
        return Some(of_file(path));
    }
    if has(&["out of bounds or can not be read in full"]) {
        return Some(format!(
            "A file of external data beside {} is shorter than the model says: copy it again, or export the model \
             again",
            path.display()
        ));
    }
    // Each version of the library has its own text for a file that is absent, outside or a directory.
    if has(&[
        "External data",
        "External initializer",
        "external data",
        "GetFileLength",
        "cannot get file size",
        "require a regular file",
    ]) {
        return Some(format!(
            "Put all files of external data beside {}, under the names that the model gives them",
            path.display()
        ));
    }
    if has(&["is not a registered function/op", "No Op registered for"]) {
        return Some(format!(
            "ONNX Runtime {version} does not have this operator: list the library that has it in model_operations {{ \
             op_library_filename }}, install a newer version with {} --version=<version>, or export the model without \
             it",
            super::RUNTIME.install_command()
        ));
    }
    if has(&["Unsupported model IR version", "under development and support for this is limited"]) {
        return Some(format!(
            "The model is newer than ONNX Runtime {version}: install a newer version with {} --version=<version>, or \
             export the model for an older opset",
            super::RUNTIME.install_command()
        ));
    }
    if has(&["Could not find an implementation for"]) {
        return Some(format!(
            "ONNX Runtime {version} at hand has no kernel for this operator with these types: install another version \
             with {} --version=<version>, or export the model for another opset or with other types",
            super::RUNTIME.install_command()
        ));
    }
    if has(&["Failed to load library", "RegisterCustomOps"]) {
        return Some(
            "Check op_library_filename of model_operations: a path, or the name of a file beside the model, of a \
             library that has the function RegisterCustomOps and fits this host"
                .to_owned(),
        );
    }
    None
}

/// What the file is instead of an ONNX model.
fn of_file(path: &Path) -> String {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut head));
    let found = match read {
        Err(error) => format!("The file cannot be read ({error})"),
        Ok(_) => match format_of(&head) {
            Some(found) => found.to_owned(),
            None => cut_off(path).unwrap_or_else(|| {
                "The file is not an ONNX model, or it was changed on its way: copy it in binary, or export the model \
                 again"
                    .to_owned()
            }),
        },
    };
    format!("{found} ({})", path.display())
}

/// The format of a file with this beginning, if it is a known one, and how its model is served.
fn format_of(head: &[u8]) -> Option<&'static str> {
    let begins = |magic: &[u8]| head.starts_with(magic);
    let at_four = |magic: &[u8]| head.get(4..).is_some_and(|rest| rest.starts_with(magic));
    Some(match head {
        [] => "The file is empty: copy or export the model again",
        _ if begins(b"version https://git-lfs") => {
            "The file is a pointer of Git LFS, not the model: fetch it with git lfs pull"
        }
        _ if begins(b"PK\x03\x04") => {
            "The file is a ZIP archive, such as a model of PyTorch: serve it with another backend, or export it to ONNX"
        }
        _ if begins(b"\x89HDF") => "The file is HDF5, such as a model of Keras: convert it to ONNX (tf2onnx)",
        _ if begins(b"\x1f\x8b") => "The file is compressed with gzip: decompress it",
        _ if at_four(b"ORTM") => {
            "The file is in ONNX Runtime's own format: set the parameter session.load_model_format to ORT"
        }
        _ if at_four(b"TFL3") => "The file is a model of TensorFlow Lite: convert it to ONNX (tf2onnx)",
        _ if begins(b"ptrt") || begins(b"ftrt") => "The file is a plan of TensorRT: serve it with backend \"tensorrt\"",
        _ if begins(b"<?xml") => "The file is XML, such as a model of OpenVINO: serve it with backend \"openvino\"",
        _ if begins(b"{") => "The file is JSON, such as a model of XGBoost: serve it with backend \"fil\"",
        [0x80, 2..=5, ..] => "The file is a pickle of Python: export the model in it to ONNX",
        _ => return None,
    })
}

/// Where the file ends in the middle of a field, if it does: the fields of a protobuf message say how long they are.
fn cut_off(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let mut at = 0u64;
    for _ in 0..FIELDS_MAX {
        if at == len {
            return None;
        }
        file.seek(SeekFrom::Start(at)).ok()?;
        let mut bytes = [0u8; 20];
        let filled = read_up_to(&mut file, &mut bytes)?;
        let head = bytes.get(..filled)?;
        let (tag, tag_len) = varint(head).filter(|(tag, _)| FIELDS.contains(&(tag >> 3)))?;
        let given = varint(head.get(tag_len..)?);
        if given.is_none() && matches!(tag & 7, 0 | 2) && filled < bytes.len() {
            return Some(format!(
                "The file ends after {len} bytes, in the middle of its field {}: copy or export the model again",
                tag >> 3
            ));
        }
        let (value, value_len) = given.unwrap_or((0, 0));
        let body = match tag & 7 {
            0 => value_len as u64,
            1 => 8,
            2 => (value_len as u64).checked_add(value)?,
            5 => 4,
            _ => return None,
        };
        at = at.checked_add(tag_len as u64)?.checked_add(body)?;
        if at > len {
            return Some(format!(
                "The file ends after {len} bytes, in the middle of its field {}, which goes on to byte {at}: copy or \
                 export the model again",
                tag >> 3
            ));
        }
    }
    None
}

fn read_up_to(file: &mut File, bytes: &mut [u8]) -> Option<usize> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest).ok()? {
            0 => break,
            more => filled += more,
        }
    }
    Some(filled)
}

/// A number of protobuf and its length in bytes.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnxruntime::fixtures::folder;
    use crate::scratch::Scratch;

    #[test]
    fn other_formats_are_named_with_what_to_do() {
        let scratch = Scratch::new("explain-formats");
        for (content, text) in [
            (&b""[..], "The file is empty"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
            (b"PK\x03\x04rest", "ZIP archive"),
            (b"\x89HDF\r\n", "HDF5"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"\x18\0\0\0ORTM", "session.load_model_format"),
            (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
            (b"ptrt\0\0", "tensorrt"),
            (b"<?xml version=\"1.0\"?><net/>", "openvino"),
            (b"{\"learner\": {}}", "fil"),
            (b"\x80\x04\x95", "pickle"),
            (b"\x00\x01\x02\x03", "not an ONNX model"),
            (&[0x5a; 100], "not an ONNX model"),
        ] {
            let file = scratch.write("model.onnx", content);
            let step = next_step("Load model from x failed:Protobuf parsing failed.", &file, "1.31.1").unwrap();
            assert!(step.contains(text), "{step}");
            assert!(step.ends_with(&format!("({})", file.display())), "{step}");
        }
        let gone = next_step("No graph was found in the protobuf.", &scratch.path("gone"), "1").unwrap();
        assert!(gone.contains("cannot be read"), "{gone}");
    }

    #[test]
    fn every_cut_through_a_field_is_noticed() {
        let whole = std::fs::read(folder().join("add_sub.onnx")).unwrap();
        let scratch = Scratch::new("explain-cut");
        let mut noticed = 0;
        for len in 1..whole.len() {
            let file = scratch.write("model.onnx", &whole[..len]);
            if let Some(text) = cut_off(&file) {
                assert!(text.starts_with(&format!("The file ends after {len} bytes")), "{text}");
                noticed += 1;
            }
        }
        // A cut between two fields, or within a tag, shows nothing.
        assert!(noticed > whole.len() - 20, "{noticed} of {}", whole.len());
        assert_eq!(cut_off(&scratch.write("model.onnx", &whole)), None);
        // Lengths beyond every file, and numbers without an end.
        assert!(cut_off(&scratch.write("model.onnx", &[0x3a, 0xff, 0xff, 0xff, 0xff, 0x7f])).is_some());
        for odd in [&[0xff; 40][..], &[0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], &[0x07]] {
            assert_eq!(cut_off(&scratch.write("model.onnx", odd)), None);
        }
    }

    #[test]
    fn texts_of_the_library_lead_to_the_next_step() {
        let path = Path::new("/r/m/1/model.onnx");
        for (text, step) in [
            ("Fatal error: com.acme:Nope(-1) is not a registered function/op", "op_library_filename"),
            ("Error No Op registered for Nope with domain_version of 17", "op_library_filename"),
            ("Unsupported model IR version: 99, max supported IR version: 13", "export the model for an older opset"),
            ("Opset 99 is under development and support for this is limited.", "install a newer version"),
            ("External data path does not exist: \"/r/m/1/w\"", "beside /r/m/1/model.onnx"),
            ("filesystem error: cannot get file size: No such file or directory [/r/m/1/w]", "of external data"),
            ("Random-access reads require a regular file: /r/m/1/w", "of external data"),
            ("size to read: 16 given file_length: 8 are out of bounds or can not be read in full.", "is shorter than"),
            ("NOT_IMPLEMENTED : Could not find an implementation for Sin(7)", "no kernel"),
            ("Failed to load library /x.so with error: /x.so: cannot open", "RegisterCustomOps"),
        ] {
            let found = next_step(text, path, "1.31.1").unwrap_or_else(|| panic!("nothing for {text}"));
            assert!(found.contains(step), "{found}");
        }
        assert_eq!(next_step("Type Error: Type parameter (T) of Optype (Add)", path, "1.31.1"), None);
    }
}
