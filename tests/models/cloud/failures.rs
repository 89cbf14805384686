//! Buckets that cannot be read: the error names the service's reason and the setting to check.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;

use nereid_request::Code;
use serde_json::json;

use super::stands::{Mount, Stands, open};
use nereid_test_support::server::free_port;

fn variables(pairs: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

#[test]
fn refused_credentials_are_told_without_them() {
    let Some(mut stands) = Stands::start() else { return };
    stands.put("repo/model/config.pbtxt", b"");
    stands.sign(true);
    let mount = Mount::new();
    let location = stands.s3_location("models/repo");
    let key_id = stands.place("key_id").to_owned();
    for (key_id, code) in [("AKIAIOSFODNN7EXAMPLE", "InvalidAccessKeyId"), (&key_id, "SignatureDoesNotMatch")] {
        let keys = variables(&[("AWS_ACCESS_KEY_ID", key_id), ("AWS_SECRET_ACCESS_KEY", "hush")]);
        let store = open(&location, &mount, &keys).expect("a store");
        let error = store.models().expect_err("refused");
        let start = format!(
            "Unable to create S3 filesystem client. Check account credentials. Exception: '{code}' Message: 'failed to \
             list the models of '{location}': access denied ({code}): check AWS_ACCESS_KEY_ID"
        );
        assert!(error.code == Code::Internal && error.message.starts_with(&start), "{error}");
        assert!(!error.message.contains("hush"), "{error}");
        assert!(!format!("{store:?}").contains("hush"));
        assert_eq!(store.stamp("model").expect_err("refused").code, Code::Internal);
        assert_eq!(store.localize("model").expect_err("refused").code, Code::Internal);
    }
}

#[test]
fn replaced_credentials_are_taken_up_without_a_restart() {
    let Some(mut stands) = Stands::start() else { return };
    stands.put("repo/model/config.pbtxt", b"");
    stands.sign(true);
    let (mount, files) = (Mount::new(), Mount::new());
    let location = stands.s3_location("models/repo");
    let file = |key_id: &str, secret_key: &str| {
        let entry = json!({"key_id": key_id, "secret_key": secret_key, "region": "us-east-1"});
        let prefix = location.trim_end_matches("repo");
        let text = json!({"s3": {"": {"key_id": "nobody", "secret_key": "x"}, prefix: entry}}).to_string();
        files.file("credentials.json", &text)
    };
    let path = file("AKIAIOSFODNN7EXAMPLE", "old");
    let store = open(&location, &mount, &variables(&[("TRITON_CLOUD_CREDENTIAL_PATH", &path)])).expect("a store");
    assert_eq!(store.models().expect_err("refused").code, Code::Internal);
    file(stands.place("key_id"), stands.place("secret_key"));
    assert_eq!(store.models().expect("models"), ["model"]);
    // What is refused after it worked is tried once more with what the file says then.
    file("AKIAIOSFODNN7EXAMPLE", "old");
    assert_eq!(store.models().expect("the client keeps its credentials"), ["model"]);
    // A file that is wrong is told when it is needed.
    files.file("credentials.json", "{");
    let error = open(&location, &mount, &variables(&[("TRITON_CLOUD_CREDENTIAL_PATH", &path)])).expect_err("no JSON");
    assert!(error.message.contains("is not JSON"), "{error}");
}

#[test]
fn profiles_hosts_and_public_buckets_need_no_keys() {
    let Some(mut stands) = Stands::start() else { return };
    stands.put("repo/model/config.pbtxt", b"");
    let (mount, files) = (Mount::new(), Mount::new());
    let location = stands.s3_location("models/repo");
    // Nothing at all: a public bucket.
    let store = open(&location, &mount, &[]).expect("a store");
    assert_eq!(store.models().expect("models"), ["model"]);

    stands.tell(&json!({"do": "role"}));
    stands.sign(true);
    let (key_id, secret_key) = (stands.place("key_id").to_owned(), stands.place("secret_key").to_owned());
    let text = format!("[reader]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret_key}\n");
    let path = files.file("credentials", &text);
    let profile = [("AWS_SHARED_CREDENTIALS_FILE", path.as_str()), ("AWS_PROFILE", "reader")];
    let store = open(&location, &mount, &variables(&profile)).expect("a store");
    assert_eq!(store.models().expect("models"), ["model"]);
    let unknown = [("AWS_SHARED_CREDENTIALS_FILE", path.as_str()), ("AWS_PROFILE", "writer")];
    let error = open(&location, &mount, &variables(&unknown)).expect("a store").models().expect_err("no profile");
    assert!(error.message.contains("there is no AWS profile 'writer' in"), "{error}");

    // What the host grants its processes.
    let metadata = format!("{}/ec2", stands.place("other"));
    let host = [("AWS_EC2_METADATA_DISABLED", "false"), ("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.as_str())];
    let store = open(&location, &mount, &variables(&host)).expect("a store");
    assert_eq!(store.models().expect("models"), ["model"]);
}

#[test]
fn a_bucket_that_is_not_there_and_a_host_that_is_down() {
    let Some(stands) = Stands::start() else { return };
    let mount = Mount::new();
    let location = stands.s3_location("no-such-bucket/repo");
    let store = open(&location, &mount, &stands.s3_keys()).expect("a store");
    for error in [
        store.models().expect_err("no bucket"),
        store.stamp("model").expect_err("no bucket"),
        store.localize("model").expect_err("no bucket"),
    ] {
        assert!(error.code == Code::Internal && error.message.contains("not found (NoSuchBucket)"), "{error}");
        let start = "Unable to create S3 filesystem client. Check account credentials. Exception: 'NoSuchBucket' ";
        assert!(error.message.starts_with(start), "{error}");
        assert!(error.message.contains("check the name of the bucket"), "{error}");
    }
    // Nobody listens there, nor gets it meanwhile.
    let port = free_port();
    let location = format!("s3://127.0.0.1:{port}/models/repo");
    let store = open(&location, &mount, &stands.s3_keys()).expect("a store");
    let error = store.models().expect_err("nobody");
    let start = format!(
        "Unable to create S3 filesystem client. Check account credentials. Exception: '' Message: 'failed to list the \
         models of '{location}': no answer: "
    );
    assert!(error.code == Code::Internal && error.message.starts_with(&start), "{error}");
    assert!(error.message.ends_with("check the host and port and the network'"), "{error}");
}

#[test]
fn a_service_that_speaks_another_language_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
    });
    let mount = Mount::new();
    let keys = variables(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "hush")]);
    let store = open(&format!("s3://127.0.0.1:{port}/models/repo"), &mount, &keys).expect("a store");
    let error = store.models().expect_err("no listing");
    assert!(error.code == Code::Internal && !error.message.contains("hush"), "{error}");
    peer.join().expect("the peer");
}

#[test]
fn an_answer_without_end_is_cut_off() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let _ = stream.read(&mut [0; 4096]);
        let mut sent_bytes = 0u64;
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult>";
        let mut outcome = stream.write_all(head);
        while outcome.is_ok() {
            outcome = stream.write_all(&[b' '; 1 << 16]);
            sent_bytes += 1 << 16;
        }
        sent_bytes
    });
    let mount = Mount::new();
    let keys = variables(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]);
    let store = open(&format!("s3://127.0.0.1:{port}/models/repo"), &mount, &keys).expect("a store");
    let error = store.models().expect_err("no listing");
    assert!(error.message.contains("longer than 64 MiB"), "{error}");
    drop(store);
    let sent_bytes = peer.join().expect("the peer");
    assert!(sent_bytes < 128 << 20, "{sent_bytes} bytes were taken");
}

#[test]
fn what_a_killed_server_left_is_removed_by_the_next() {
    let mount = Mount::new();
    let leftover = mount.path().join("nereid-models-1-0");
    std::fs::create_dir_all(leftover.join("0/model/1")).expect("a leftover");
    mount.file("nereid-models-1-0.lock", "");
    // Another server's, which lives: its lock is held.
    std::fs::create_dir(mount.path().join("nereid-models-2-0")).expect("a directory");
    let held = mount.file("nereid-models-2-0.lock", "");
    let lock = File::open(&held).expect("the lock file");
    lock.lock().expect("a lock");
    let store = open("s3://127.0.0.1:1/models", &mount, &[]).expect("a store");
    assert!(!leftover.exists() && !mount.path().join("nereid-models-1-0.lock").exists());
    assert!(mount.path().join("nereid-models-2-0").exists());
    drop(store);
    assert_eq!(mount.tree(), ["nereid-models-2-0", "nereid-models-2-0.lock"]);
}

#[test]
fn a_place_for_copies_that_is_not_there_is_told_at_once() {
    let mount = Mount::new();
    let missing = mount.path().join("missing");
    let missing = missing.to_str().expect("UTF-8");
    let read = |name: &str| (name == "TRITON_GCS_MOUNT_DIRECTORY").then(|| missing.into());
    let error = tritonserver::repository::store::open("gs://bucket/repo", &read).expect_err("no directory");
    let start = format!("copies of models cannot be kept in '{missing}' (set by TRITON_GCS_MOUNT_DIRECTORY): ");
    assert!(error.message.starts_with(&start), "{error}");
}
