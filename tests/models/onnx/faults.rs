//! Files that are no models that the library at hand can run: each is the reason of its model alone, with the next
//! step.

use super::{fixture, fp32, infer, put, start_probing};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use serde_json::json;

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
    let reason = |name: &str| {
        let rows = index.as_array().cloned().unwrap_or_default();
        let row = rows.into_iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} in {index}"));
        assert_eq!(row["state"], "UNAVAILABLE", "{row}");
        row["reason"].as_str().unwrap_or_default().to_owned()
    };
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
