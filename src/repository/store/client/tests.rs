//! The credentials that are chosen, and the URLs of requests.

use std::ffi::OsString;

use http::Method;
use object_store::path::Path as Key;
use object_store::signer::Signer;
use tokio::runtime::Builder;

use super::super::addressing::Addressing;
use super::super::environment::Secret;
use super::super::tests::folder;
use super::*;
use nereid_test_support::skip::skip;

type Variables<'a> = &'a [(&'a str, &'a str)];

fn with(variables: Variables<'_>) -> Environment {
    let read = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
    Environment::capture(&read)
}

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.to_owned()))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    install_crypto_provider();
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// The URL of a request for `repo/model`, signed with the store's credentials; `None`, after a visible skip, on a host
/// without certificates, where TLS is impossible.
fn url_of<S: Signer>(store: Result<S, Failure>) -> Option<String> {
    let store = match store {
        Err(Failure::Other { cause }) if cause.contains("No CA certificates") => {
            skip(&cause);
            return None;
        }
        store => store.expect("a store"),
    };
    let key = Key::parse("repo/model").expect("a key");
    Some(run(store.signed_url(Method::GET, &key, Duration::from_secs(60))).expect("a signed URL").to_string())
}

#[test]
fn keys_come_before_profiles_and_those_before_tokens() {
    let home = folder();
    home.file(".aws/credentials", "[default]\naws_access_key_id = d\naws_secret_access_key = s\n");
    home.file(".aws/config", "[default]\nregion = eu-west-1\n[profile sso]\nsso_session = x\n[profile empty]\n");
    let home = ("HOME", home.path().to_str().expect("UTF-8"));
    let token = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), ("AWS_ROLE_ARN", "arn"), ("AWS_ROLE_SESSION_NAME", "n")];
    let keys = S3Credential { key_id: secret("k"), secret_key: secret("s"), ..S3Credential::default() };
    let half = S3Credential { key_id: secret("k"), region: Some("us-west-2".to_owned()), ..S3Credential::default() };
    let profile = |name: &str| S3Credential { profile: Some(name.to_owned()), ..S3Credential::default() };
    let everything = [&[home][..], &token].concat();
    let table: [(&S3Credential, Variables<'_>, &str); 7] = [
        (&keys, &everything, "keys k in -"),
        (&half, &everything, "keys d in us-west-2"),
        (&S3Credential::default(), &everything, "keys d in eu-west-1"),
        (&S3Credential::default(), &token, "token /token for arn as n in -"),
        (&profile("empty"), &everything, "token /token for arn as n in -"),
        (&profile("empty"), &[home], "host in -"),
        (&S3Credential::default(), &[], "host in -"),
    ];
    for (credential, variables, expected) in table {
        let identity = s3_identity(credential, &with(variables)).expect(expected);
        let source = match identity.source {
            S3Source::Keys(keys) => format!("keys {}", keys.key_id.reveal()),
            S3Source::WebIdentity(identity) => {
                let name = identity.session_name.unwrap_or_default();
                format!("token {} for {} as {name}", identity.token_file, identity.role_arn)
            }
            S3Source::Host => "host".to_owned(),
        };
        assert_eq!(format!("{source} in {}", identity.region.as_deref().unwrap_or("-")), expected);
    }
    let Err(Failure::Local(text)) = s3_identity(&profile("sso"), &with(&[home])) else { panic!("not supported") };
    assert!(text.starts_with("the AWS profile 'sso' gets its keys by 'sso_session', which is not supported"), "{text}");
    let Err(Failure::Local(text)) = s3_identity(&profile("who"), &with(&[home])) else { panic!("no such profile") };
    assert!(text.starts_with("there is no AWS profile 'who' in "), "{text}");
}

#[test]
fn requests_to_s3_name_the_bucket_in_the_path_or_in_the_host() {
    let credential = S3Credential {
        key_id: secret("AKIA"),
        secret_key: secret("hush"),
        session_token: secret("token"),
        region: Some("eu-west-1".to_owned()),
        ..S3Credential::default()
    };
    let url_by = |credential: &S3Credential, endpoint: Option<&str>| {
        run(async { s3("models", endpoint.map(str::to_owned), credential, &Environment::default()).await })
    };
    let url = |endpoint: Option<&str>| url_by(&credential, endpoint);
    if let Some(url) = url_of(url(None)) {
        assert!(url.starts_with("https://s3.eu-west-1.amazonaws.com/models/repo/model?"), "{url}");
        assert!(url.contains("AKIA%2F") && url.contains("%2Feu-west-1%2Fs3%2F"), "{url}");
        assert!(url.contains("X-Amz-Security-Token=token") && !url.contains("hush"), "{url}");
    }
    let url = url_of(url(Some("http://localhost:9000"))).expect("nothing is encrypted");
    assert!(url.starts_with("http://localhost:9000/models/repo/model?"), "{url}");

    // Unless a credential selects the form with the bucket in the host.
    let virtual_hosts = S3Credential { addressing: Addressing::Virtual, ..credential.clone() };
    if let Some(url) = url_of(url_by(&virtual_hosts, None)) {
        assert!(url.starts_with("https://models.s3.eu-west-1.amazonaws.com/repo/model?"), "{url}");
    }
    let url = url_of(url_by(&virtual_hosts, Some("http://localhost:9000"))).expect("nothing is encrypted");
    assert!(url.starts_with("http://models.localhost:9000/repo/model?"), "{url}");
}

#[test]
fn requests_to_azure_go_to_the_accounts_own_host() {
    let credential = |account: Option<&str>| AzureCredential {
        account: account.map(str::to_owned),
        account_key: secret("a2V5"),
        ..AzureCredential::default()
    };
    for (account, host) in [(None, "place"), (Some("variable"), "variable")] {
        let store = azure("models", "place", &credential(account), &with(&[]));
        let Some(url) = url_of(store) else { return };
        let start = format!("https://{host}.blob.core.windows.net/models/repo/model?");
        assert!(url.starts_with(&start) && url.contains("sig="), "{url}");
    }
    let endpoint = with(&[("AZURE_STORAGE_ENDPOINT", "http://localhost:10000/place")]);
    let url = url_of(azure("models", "place", &credential(None), &endpoint)).expect("nothing is encrypted");
    assert!(url.starts_with("http://localhost:10000/place/models/repo/model?"), "{url}");
}

#[test]
fn every_way_to_a_token_of_azure_is_taken() {
    install_crypto_provider();
    let application = ("AZURE_CLIENT_ID", "id");
    let tenant = ("AZURE_TENANT_ID", "tenant");
    let host = ("AZURE_AUTHORITY_HOST", "https://login.example.com");
    let table: [(AzureAuthType, Variables<'_>, &str); 4] = [
        (AzureAuthType::Default, &[application, tenant, ("AZURE_CLIENT_SECRET", "hush"), host], "ClientSecret"),
        (
            AzureAuthType::Default,
            &[application, tenant, ("AZURE_FEDERATED_TOKEN_FILE", "/t"), host],
            "WorkloadIdentity",
        ),
        (AzureAuthType::Default, &[application, tenant], "ManagedIdentity"),
        (AzureAuthType::ManagedIdentity, &[application, tenant, ("AZURE_CLIENT_SECRET", "hush")], "ManagedIdentity"),
    ];
    for (auth_type, variables, expected) in table {
        let credential = AzureCredential { auth_type, ..AzureCredential::default() };
        let store = match azure("models", "place", &credential, &with(variables)) {
            Err(Failure::Other { cause }) if cause.contains("No CA certificates") => return,
            store => store.expect("a store"),
        };
        let provider = format!("{:?}", store.credentials());
        assert!(provider.contains(expected), "{variables:?}: {provider}");
    }
}
