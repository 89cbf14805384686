//! Repositories in Google's and Azure's services: the requests of a store, with listings in pages of two.

use nereid_request::Code;
use serde_json::{Value, json};
use tritonserver::repository::store::Store;

use super::stands::{Mount, Stands, open, tree};

const FILES: [&str; 6] = ["1/model", "1/more", "2/deep/x", "config.pbtxt", "labels", "warmup/data"];
const TREE: [&str; 10] =
    ["1", "1/model", "1/more", "2", "2/deep", "2/deep/x", "config.pbtxt", "labels", "warmup", "warmup/data"];

fn fill(stands: &mut Stands) {
    for file in FILES {
        stands.put(&format!("repo/model/{file}"), file.as_bytes());
    }
    for name in ["a", "b", "c", "d"] {
        stands.put(&format!("repo/{name}/1/"), b"");
    }
}

/// Lists, dates and copies what `fill` put.
fn check(stands: &mut Stands, store: &dyn Store, mount: &Mount) {
    assert_eq!(store.models().expect("models"), ["a", "b", "c", "d", "model"]);
    let first = store.stamp("model").expect("a stamp").expect("a model");
    assert_eq!(first.versions.keys().collect::<Vec<_>>(), [&1, &2]);
    stands.put("repo/model/1/more", b"changed");
    let second = store.stamp("model").expect("a stamp").expect("a model");
    assert!(second.newest_ns >= first.newest_ns && second.versions[&1] != first.versions[&1]);
    assert_eq!((second.versions[&2], second.config), (first.versions[&2], first.config));
    let copy = store.localize("model").expect("a copy");
    assert_eq!(tree(copy.path()), TREE);
    assert_eq!(std::fs::read(copy.path().join("1/more")).expect("a file"), b"changed");
    assert_eq!(std::fs::read(copy.path().join("2/deep/x")).expect("a file"), b"2/deep/x");
    assert_eq!(tree(store.localize("a").expect("a copy").path()), ["1"]);
    assert_eq!(store.stamp("mod"), Ok(None));
    // Gone between the listing and the copy.
    stands.tell(&json!({"do": "lose", "key": "repo/model/labels"}));
    let error = store.localize("model").expect_err("an object is gone");
    assert!(error.message.contains("'repo/model/labels' went away meanwhile"), "{error}");
    drop(copy);
    let leftover: Vec<String> = mount.tree().into_iter().filter(|path| path.contains('/')).collect();
    assert_eq!(leftover, [""; 0], "nothing of a failed copy stays");
}

fn denied(store: &dyn Store, code: &str, advice: &str) {
    let error = store.models().expect_err("refused");
    assert!(error.code == Code::Internal && error.message.contains(&format!("access denied ({code})")), "{error}");
    assert!(error.message.contains(advice) && !error.message.contains("hush"), "{error}");
}

#[test]
fn a_google_bucket_is_read_with_a_service_account() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    stands.authorization("account");
    let (mount, files) = (Mount::new(), Mount::new());
    let path = files.file("account.json", stands.place("google"));
    let location = "gs://models/repo";
    let account = [("GOOGLE_APPLICATION_CREDENTIALS", path.clone())];
    let store = open(location, &mount, &account).expect("a store");
    check(&mut stands, &*store, &mount);

    // The same through a file of credentials, by the longest beginning.
    let text = json!({"gs": {"": "/nowhere", "gs://models": path}}).to_string();
    let credentials = [("TRITON_CLOUD_CREDENTIAL_PATH", files.file("credentials.json", &text))];
    let store = open(location, &mount, &credentials).expect("a store");
    assert_eq!(store.models().expect("models").len(), 5);

    stands.authorization("token");
    denied(
        &*open(location, &mount, &account).expect("a store"),
        "AuthenticationFailed",
        "GOOGLE_APPLICATION_CREDENTIALS",
    );
    stands.authorization("account");
    let store = open("gs://other/repo", &mount, &account).expect("a store");
    assert!(store.models().expect_err("no bucket").message.contains("not found (NoSuchBucket)"));
}

#[test]
fn a_public_google_bucket_needs_no_account() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    stands.authorization("nobody");
    let mount = Mount::new();
    let variables = [("CLOUD_STORAGE_EMULATOR_ENDPOINT", stands.place("other").to_owned())];
    let store = open("gs://models/repo", &mount, &variables).expect("a store");
    check(&mut stands, &*store, &mount);
}

#[test]
fn google_credentials_that_cannot_be_used_are_told_by_file() {
    let (mount, files) = (Mount::new(), Mount::new());
    let table = [
        ("not JSON", "cannot be used: not JSON"),
        (r#"{"type": "external_account"}"#, "its type is 'external_account'"),
        (r#"{"type": "service_account", "private_key": "hush", "private_key_id": "1"}"#, "it has no 'client_email'"),
        (r#"{"type": "authorized_user", "client_id": "hush"}"#, "it has no 'client_secret'"),
    ];
    for (text, expected) in table {
        let path = files.file("account.json", text);
        let account = [("GOOGLE_APPLICATION_CREDENTIALS", path.clone())];
        let error = open("gs://models", &mount, &account).expect("a store").models().expect_err(text);
        assert!(error.message.contains(expected) && error.message.contains(&path), "{error}");
        assert!(!error.message.contains("hush"), "{error}");
    }
    let account = [("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/account.json".to_owned())];
    let error = open("gs://models", &mount, &account).expect("a store").models().expect_err("no file");
    assert!(error.message.contains("'/nowhere/account.json' cannot be used: No such file"), "{error}");
}

/// Where Azure's service is, and `more`.
fn azure(stands: &Stands, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let endpoint = format!("{}/account", stands.place("other"));
    let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
    std::iter::once(("AZURE_STORAGE_ENDPOINT", endpoint)).chain(more).collect()
}

#[test]
fn an_azure_container_is_read_with_the_accounts_key() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    let mount = Mount::new();
    let key = stands.place("azure_key").to_owned();
    let store = open("as://account/models/repo", &mount, &azure(&stands, &[("AZURE_STORAGE_KEY", &key)]));
    check(&mut stands, &*store.expect("a store"), &mount);
    // The variable wins over the location.
    let variables = azure(&stands, &[("AZURE_STORAGE_KEY", &key), ("AZURE_STORAGE_ACCOUNT", "other")]);
    let store = open("as://account/models/repo", &mount, &variables).expect("a store");
    denied(&*store, "AuthenticationFailed", "AZURE_STORAGE_KEY");
    let host = "as://account.blob.core.windows.net/models/repo";
    let store = open(host, &mount, &azure(&stands, &[("AZURE_STORAGE_KEY", &key)])).expect("a store");
    assert_eq!(store.models().expect("models").len(), 5);
    let store = open("as://account/other/repo", &mount, &azure(&stands, &[("AZURE_STORAGE_KEY", &key)]));
    let error = store.expect("a store").models().expect_err("no container");
    assert!(error.message.contains("not found (ContainerNotFound): check the name of the container"), "{error}");
    // A key that is none.
    let variables = azure(&stands, &[("AZURE_STORAGE_KEY", "hush!")]);
    let error = open("as://account/models", &mount, &variables).expect("a store").models().expect_err("no key");
    assert!(!error.message.contains("hush"), "{error}");
}

#[test]
fn an_azure_container_is_read_with_the_hosts_identity_or_by_anybody() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    stands.authorization("token");
    let mount = Mount::new();
    let identity = format!("{}/msi", stands.place("other"));
    for (kind, more) in [("managed_identity", Some("client-1")), ("managed_identity", None), ("default", None)] {
        let mut variables = azure(&stands, &[("AZURE_STORAGE_AUTH_TYPE", kind), ("IDENTITY_ENDPOINT", &identity)]);
        variables.extend(more.map(|client| ("AZURE_STORAGE_CLIENT_ID", client.to_owned())));
        stands.tell(&json!({"do": "asked"}));
        let store = open("as://account/models/repo", &mount, &variables).expect("a store");
        assert_eq!(store.models().expect("models").len(), 5, "{kind}");
        let asked = stands.tell(&json!({"do": "asked"}));
        let token = asked.as_array().expect("requests").iter().find(|request| request["path"] == "/msi");
        let client = &token.expect("a token was asked for")["query"]["client_id"];
        assert_eq!(client, &more.map_or(Value::Null, Value::from), "{kind}");
    }
    stands.authorization("nobody");
    let store = open("as://account/models/repo", &mount, &azure(&stands, &[])).expect("a store");
    check(&mut stands, &*store, &mount);
}
