//! Files that are no models that the library at hand can run: each is the reason of its model alone, with the next
//! step.

use super::{fixture, fp32, infer, put, start_probing};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use serde_json::{Value, json};

/// Why a model is not served, by an answer of the index.
fn reason_of(index: &Value, name: &str) -> String {
    let rows = index.as_array().cloned().unwrap_or_default();
    let row = rows.into_iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {index}"));
    assert_eq!(row["state"], "UNAVAILABLE", "{row}");
    row["reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_bad_file_is_the_reason_of_its_model_and_the_others_are_served() {
    let whole = fixture("add_sub.onnx");
    let repository = Repository::new();
    put(&repository, "good", "add_sub");
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("cut", &whole[..whole.len() / 2]),
        ("archive", b"PK\x03\x04rest of an archive"),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"),
        ("noise", &[0x5a; 300]),
    ] {
        repository.file(&format!("{name}/1/model.onnx"), bytes);
    }
    for name in ["unknown_operator", "future_ir", "future_opset", "map_input", "external"] {
        put(&repository, name, name);
    }
    let flags = ["--exit-on-error=false"];
    let Some(server) = start_probing(&repository, &flags, "/v2/health/live") else { return };
    let mut peer = Peer::connect(server.http);
    let index = peer.post("/v2/repository/index", &[], b"").json();
    let reason = |name: &str| reason_of(&index, name);
    for (name, parts) in [
        ("empty", &["onnx runtime error ", "The file is empty"][..]),
        ("cut", &["onnx runtime error 7: ", "in the middle of its field 7"]),
        ("archive", &["onnx runtime error 7: ", "The file is a ZIP archive"]),
        ("pointer", &["onnx runtime error 7: ", "git lfs pull"]),
        ("noise", &["onnx runtime error 7: ", "The file is not an ONNX model"]),
        ("unknown_operator", &["onnx runtime error ", "Unheard", "op_library_filename"]),
        ("future_ir", &["onnx runtime error 1: ", "Unsupported model IR version: 99", "export the model for an older"]),
        ("future_opset", &["onnx runtime error 1: ", "Opset 99", "nereid runtime install onnxruntime --version="]),
        ("map_input", &["Unsupported ONNX Type 'ONNX_TYPE_MAP' for I/O 'INPUT', expected 'ONNX_TYPE_TENSOR'."]),
        ("external", &["onnx runtime error ", "external.weights", "Put all files of external data beside"]),
    ] {
        let reason = reason(name);
        for part in parts {
            assert!(reason.contains(part), "{name}: expected {part:?} in {reason:?}");
        }
    }
    let inputs = json!([fp32("INPUT0", &[1, 4], &[1.0; 4]), fp32("INPUT1", &[1, 4], &[2.0; 4])]);
    assert_eq!(infer(&mut peer, "good", &inputs, &["OUTPUT0"])["OUTPUT0"]["data"], json!([3.0, 3.0, 3.0, 3.0]));
    server.stop();
}

/// `bytes` with the only occurrence of a text replaced by one of the same length, so that no length around it changes.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let found: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(old)).collect();
    let [at] = found[..] else { panic!("{found:?}") };
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    const PLACES: usize = 20;
    let repository = Repository::new();
    put(&repository, "good", "add_sub");
    let mut lengths = Vec::new();
    for file in ["add_sub", "external", "strings"] {
        let whole = fixture(&format!("{file}.onnx"));
        for place in 0..PLACES {
            let length = whole.len() * place / PLACES;
            repository.file(&format!("{file}_{length}/1/model.onnx"), &whole[..length]);
            repository.file(&format!("{file}_{length}/1/external.weights"), fixture("external.weights"));
            lengths.push(format!("{file}_{length}"));
        }
    }
    let Some(server) = start_probing(&repository, &["--exit-on-error=false"], "/v2/health/live") else { return };
    let mut peer = Peer::connect(server.http);
    let index = peer.post("/v2/repository/index", &[], b"").json();
    for name in lengths {
        let reason = reason_of(&index, &name);
        let is_known = ["The file is empty", "in the middle of its field"];
        assert!(
            reason.contains("onnx runtime error ") && is_known.iter().any(|text| reason.contains(text)),
            "{name}: {reason}"
        );
    }
    let inputs = json!([fp32("INPUT0", &[1, 4], &[1.0; 4]), fp32("INPUT1", &[1, 4], &[2.0; 4])]);
    assert_eq!(infer(&mut peer, "good", &inputs, &["OUTPUT0"])["OUTPUT0"]["data"], json!([3.0, 3.0, 3.0, 3.0]));
    server.stop();
}

#[test]
fn external_data_must_be_whole_and_beside_the_model() {
    let whole = fixture("external.onnx");
    let weights = fixture("external.weights");
    let location = |path: &str| replaced(&whole, b"external.weights", path.as_bytes());
    let repository = Repository::new();
    // Files that exist and fit, outside the directory of the model.
    repository.file("good/data", &weights).file("good/1/model.onnx", &whole).file("good/1/external.weights", &weights);
    let absolute = Repository::new();
    let elsewhere = absolute.path().join("data");
    absolute.file("data", &weights);
    repository.file("above/1/model.onnx", location("../.././././data")).file("data", &weights);
    repository.file("beside/1/model.onnx", location("../../good/.data")).file("good/.data", &weights);
    // A link leads out of the directory.
    repository.file("linked/1/model.onnx", &whole);
    std::os::unix::fs::symlink(&elsewhere, repository.path().join("linked/1/external.weights")).expect("a link");
    repository.file("absent/1/model.onnx", &whole);
    repository.file("empty/1/model.onnx", &whole).file("empty/1/external.weights", "");
    repository.file("short/1/model.onnx", &whole).file("short/1/external.weights", &weights[..8]);
    repository.file("folder/1/model.onnx", &whole).file("folder/1/external.weights/file", "");
    // The tensor has 127 elements, its file four; the graph's output is of two dimensions, its inputs of one.
    let larger = replaced(&whole, b"\x08\x04\x10\x01B\x07WEIGHTS", b"\x08\x7f\x10\x01B\x07WEIGHTS");
    repository.file("larger/1/model.onnx", larger).file("larger/1/external.weights", &weights);
    let Some(server) = start_probing(&repository, &["--exit-on-error=false"], "/v2/health/live") else { return };
    let mut peer = Peer::connect(server.http);
    let index = peer.post("/v2/repository/index", &[], b"").json();
    for name in ["above", "beside", "linked", "absent", "empty", "short", "folder", "larger"] {
        let reason = reason_of(&index, name);
        let is_known = match name {
            "larger" => reason.contains("ShapeInferenceError"),
            "empty" | "short" => reason.contains("is shorter than the model says: copy it again"),
            _ => reason.contains("Put all files of external data beside"),
        };
        assert!(reason.contains("onnx runtime error ") && is_known, "{name}: {reason}");
    }
    let answer = infer(&mut peer, "good", &json!([fp32("INPUT", &[1, 4], &[1.0; 4])]), &[]);
    assert_eq!(answer["OUTPUT"]["data"], json!([101.0, 201.0, 301.0, 401.0]));
    server.stop();
}
