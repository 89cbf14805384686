//! `nereid check --deep` on models in a bucket: each process copies its model, and leaves nothing.

use super::stands::{Mount, Stands};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, identity_config};
use nereid_test_support::server::{binary, run_to_end_under};

#[test]
fn models_of_a_bucket_are_loaded() {
    let Some(mut stands) = Stands::start() else { return };
    let Some(python) = Python::get() else { return };
    let interpreters = python.interpreter().parent().expect("the folder of the interpreter").display().to_string();
    let config = |more: &str| identity_config("identity", "m", 0, &[Pair::new("FP32", "-1")], more);
    for (name, text) in [("good", config("")), ("bad", config("").replace("identity", "identiti"))] {
        stands.put(&format!("repo/{name}/config.pbtxt"), text.replace("\"m\"", &format!("\"{name}\"")).as_bytes());
        stands.put(&format!("repo/{name}/1/"), b"");
    }
    // Only the load finds this: the file's content is no model.
    let python = "backend: \"python\"\ninput { name: \"X\" data_type: TYPE_FP32 dims: [ 1 ] }\n\
                  output { name: \"Y\" data_type: TYPE_FP32 dims: [ 1 ] }\n";
    stands.put("repo/classless/config.pbtxt", python.as_bytes());
    stands.put("repo/classless/1/model.py", b"value = 1\n");
    stands.sign(true);
    let mount = Mount::new();
    let check = |keys: &[(&str, String)], location: &str| {
        let program = binary().into_string().expect("the binary's path is UTF-8");
        let mut words = vec!["env".to_owned(), format!("TRITON_AWS_MOUNT_DIRECTORY={}", mount.text())];
        // The check takes the interpreter from the PATH.
        words.push(format!("PATH={interpreters}:{}", std::env::var("PATH").unwrap_or_default()));
        words.extend(keys.iter().map(|(name, value)| format!("{name}={value}")));
        words.push(program);
        let (status, out, err) = run_to_end_under(&words, &["check", "--deep", location]);
        (status.code(), format!("{}{err}", out.replace(location, "~")))
    };
    let location = stands.s3_location("models/repo");
    let (code, out) = check(&stands.s3_keys(), &location);
    assert_eq!(code, Some(1), "{out}");
    for line in [
        "good in ~: would load\n",
        "bad in ~: 1 problem\n",
        "classless in ~: 1 problem\n  version 1 is at UNAVAILABLE state: Internal: ",
        "1 of 3 models would load\n",
    ] {
        assert!(out.contains(line), "expected {line:?} in\n{out}");
    }
    let left: Vec<String> = mount.tree().into_iter().filter(|path| path.contains('/')).collect();
    assert_eq!(left, [""; 0], "copies are gone with the check");
    // A repository that cannot be read is a finding of its own.
    let (code, out) = check(&stands.s3_keys(), &stands.s3_location("no-such-bucket/repo"));
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("NoSuchBucket") && out.contains("0 of 0 models would load"), "{out}");
}
