//! Credentials from files and variables, and the errors of wrong ones.

use std::ffi::OsString;

use super::super::location;
use super::super::tests::{Folder, folder};
use super::*;

fn with(variables: &[(&str, &str)]) -> Environment {
    let read = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
    Environment::capture(&read)
}

fn find_in(location: &str, environment: &Environment) -> Result<Credential, Status> {
    let place = location::parse(location).expect("a location").expect("a bucket");
    find(location, &place, environment)
}

fn with_file(folder: &Folder, text: &str) -> Environment {
    let path = folder.file("credentials.json", text);
    with(&[(FILE_VARIABLE, path.to_str().expect("UTF-8")), ("AWS_ACCESS_KEY_ID", "of the environment")])
}

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.to_owned()))
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn the_environment_speaks_where_no_file_is_named() {
    let environment = with(&[
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "key"),
        ("AWS_SESSION_TOKEN", "token"),
        ("AWS_DEFAULT_REGION", "eu-west-1"),
        ("AWS_REGION", "us-west-2"),
        ("AWS_PROFILE", "me"),
        ("AWS_S3_ADDRESSING_STYLE", "virtual"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/g.json"),
        ("AZURE_STORAGE_ACCOUNT", "account"),
        ("AZURE_STORAGE_KEY", "a2V5"),
        ("AZURE_STORAGE_AUTH_TYPE", "managed_identity"),
        ("AZURE_STORAGE_CLIENT_ID", "client"),
    ]);
    let s3 = S3Credential {
        key_id: secret("id"),
        secret_key: secret("key"),
        session_token: secret("token"),
        region: some("eu-west-1"),
        profile: some("me"),
        addressing: Addressing::Virtual,
    };
    assert_eq!(find_in("s3://bucket/a", &environment), Ok(Credential::S3(s3)));
    let google = GoogleCredential { path: Some(PathBuf::from("/g.json")) };
    assert_eq!(find_in("gs://bucket/a", &environment), Ok(Credential::Google(google)));
    let azure = AzureCredential {
        account: some("account"),
        account_key: secret("a2V5"),
        auth_type: AzureAuthType::ManagedIdentity,
        client_id: some("client"),
    };
    assert_eq!(find_in("as://other/container", &environment), Ok(Credential::Azure(azure)));

    let nothing = with(&[("AWS_REGION", "us-west-2")]);
    let s3 = S3Credential { region: some("us-west-2"), ..S3Credential::default() };
    assert_eq!(find_in("s3://bucket", &nothing), Ok(Credential::S3(s3)));
    assert_eq!(find_in("as://account/c", &nothing), Ok(Credential::Azure(AzureCredential::default())));
    let error = find_in("as://account/c", &with(&[("AZURE_STORAGE_AUTH_TYPE", "magic")])).expect_err("unknown");
    let text = "AZURE_STORAGE_AUTH_TYPE is 'magic', but must be 'key', 'managed_identity' or 'default'";
    assert_eq!(error, Status::invalid(text));
}

#[test]
fn the_longest_beginning_of_a_location_counts() {
    let folder = folder();
    let environment = with_file(
        &folder,
        r#"{
            "s3": {
                "": {"key_id": "all", "secret_key": "k", "region": "", "more": 1},
                "s3://bucket": {"key_id": "bucket", "secret_key": "k", "session_token": "t", "profile": "p",
                    "addressing_style": "auto"},
                "s3://bucket/deep": {"key_id": "deep", "secret_key": null}
            },
            "gs": {"gs://one": "/one.json", "gs://none": ""},
            "as": {"": {"account_str": "a", "account_key": "k", "auth_type": "default", "client_id": "c"}}
        }"#,
    );
    let table = [
        ("s3://other/a", "all"),
        ("s3://bucket", "bucket"),
        ("s3://bucket/a", "bucket"),
        // A prefix of the text, wherever it ends.
        ("s3://bucket2/a", "bucket"),
        ("s3://bucket/deeper/a", "deep"),
        ("s3://http://host:1/bucket", "all"),
    ];
    for (location, key_id) in table {
        let Ok(Credential::S3(found)) = find_in(location, &environment) else { panic!("{location}") };
        assert_eq!(found.key_id, secret(key_id), "{location}");
        // Nothing is taken from the environment, and an empty value counts as unset.
        assert_eq!(found.region, None);
        let addressing = if key_id == "bucket" { Addressing::Auto } else { Addressing::Path };
        assert_eq!(found.addressing, addressing, "{location}");
    }
    let google = |path: Option<&str>| Ok(Credential::Google(GoogleCredential { path: path.map(PathBuf::from) }));
    assert_eq!(find_in("gs://one/a", &environment), google(Some("/one.json")));
    assert_eq!(find_in("gs://none/a", &environment), google(None));
    let azure = AzureCredential {
        account: some("a"),
        account_key: secret("k"),
        auth_type: AzureAuthType::Default,
        client_id: some("c"),
    };
    assert_eq!(find_in("as://x/y", &environment), Ok(Credential::Azure(azure)));

    let error = find_in("gs://two", &environment).expect_err("no entry");
    assert_eq!(error.code, nereid_request::Code::NotFound);
    assert!(error.message.starts_with("Cannot match credential for path  gs://two: "), "{error}");
}

#[test]
fn the_error_of_a_wrong_file_names_the_field_and_no_secrets() {
    let table = [
        ("{\"s3\": hush", "is not JSON, at line 1 column 8"),
        ("[]", "the value of the whole file must be an object"),
        (r#"{"s3": "hush"}"#, "the value of 's3' must be an object"),
        (r#"{"s3": {"": "hush"}}"#, "the value of 's3' → '' must be an object"),
        (r#"{"s3": {"": {"key_id": 1}}}"#, "'key_id' of 's3' → '' must be a string"),
        (r#"{"s3": {"s3://b": {"secret_key": ["hush"]}}}"#, "'secret_key' of 's3' → 's3://b' must be a string"),
        (
            r#"{"s3": {"": {"addressing_style": "x"}}}"#,
            "addressing_style of '' is 'x', but must be 'path', 'virtual' or",
        ),
        ("{}", "has no entry under 's3' whose name begins it"),
    ];
    for (text, expected) in table {
        let folder = folder();
        let error = find_in("s3://b/a", &with_file(&folder, text)).expect_err(text);
        assert!(error.message.contains(expected), "{text}: {error}");
        assert!(error.message.contains("credentials.json"), "{text}: {error}");
        assert!(!error.message.contains("hush"), "{text}: {error}");
    }
    let folder = folder();
    let error = find_in("gs://b", &with_file(&folder, r#"{"gs": {"": {}}}"#)).expect_err("an object");
    assert!(error.message.contains("the value of 'gs' → '' must be a string"), "{error}");
    let error = find_in("as://a/b", &with_file(&folder, r#"{"as": {"": {"auth_type": "x"}}}"#)).expect_err("a type");
    assert!(error.message.contains("auth_type of '' is 'x', but must be"), "{error}");
    for place in ["missing.json", ""] {
        let path = folder.path().join(place);
        let environment = with(&[(FILE_VARIABLE, path.to_str().expect("UTF-8"))]);
        let error = find_in("s3://b", &environment).expect_err(place);
        assert!(error.message.starts_with(&format!("TRITON_CLOUD_CREDENTIAL_PATH: '{}': ", path.display())), "{error}");
    }
}

#[test]
fn a_file_has_a_bound() {
    let folder = folder();
    let path = folder.file("large", &" ".repeat(FILE_BYTES_MAX as usize));
    assert_eq!(read_small(&path).map(|bytes| bytes.len() as u64), Ok(FILE_BYTES_MAX));
    let path = folder.file("larger", &" ".repeat(FILE_BYTES_MAX as usize + 1));
    assert_eq!(read_small(&path), Err("longer than 1048576 bytes".to_owned()));
}
