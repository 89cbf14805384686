//! A connection to a bucket, made from a bucket location and a credential.
//!
//! Where several sources of credentials are possible, they are tried in the order of the provider's own libraries,
//! which Triton uses. The last is anonymous access: public buckets are read without a signature.

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, resolve_bucket_region};
use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use serde_json::Value;
use tracing::debug;

use super::addressing::UrlForm;
use super::credentials::{AzureAuthType, AzureCredential, Credential, GoogleCredential, S3Credential, read_small};
use super::environment::Environment;
use super::failure::Failure;
use super::location::{BucketLocation, Provider};
use super::profile::{self, Keys, WebIdentity};
use super::transport::BoundedConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two pieces of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES_MAX: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the metadata service of a cloud host may take to answer; other hosts have none.
const METADATA_TIMEOUT: Duration = Duration::from_secs(3);
const REGION_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects; may query several sources of credentials.
pub async fn connect(
    place: &BucketLocation,
    credential: &Credential,
    environment: &Environment,
) -> Result<Arc<dyn ObjectStore>, Failure> {
    install_crypto_provider();
    match (&place.provider, credential) {
        (Provider::S3 { endpoint }, Credential::S3(credential)) => {
            let endpoint = match endpoint {
                Some(endpoint) => Some(endpoint.clone()),
                None => text(environment, "AWS_ENDPOINT_URL_S3")?.or(text(environment, "AWS_ENDPOINT_URL")?),
            };
            Ok(Arc::new(s3(&place.bucket, endpoint, credential, environment).await?))
        }
        (Provider::Google, Credential::Google(credential)) => {
            Ok(Arc::new(google(&place.bucket, credential, environment).await?))
        }
        (Provider::Azure { account }, Credential::Azure(credential)) => {
            Ok(Arc::new(azure(&place.bucket, account, credential, environment)?))
        }
        // `credentials::find` returns the provider's own kind.
        _ => Err(Failure::Other { cause: "the credential is another provider's".to_owned() }),
    }
}

/// rustls is built without a default provider, and takes the one that is installed for the process.
fn install_crypto_provider() {
    static NAMED: Once = Once::new();
    NAMED.call_once(|| {
        // An error means that the process has one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

async fn s3(
    bucket: &str,
    endpoint: Option<String>,
    credential: &S3Credential,
    environment: &Environment,
) -> Result<AmazonS3, Failure> {
    let identity = s3_identity(credential, environment)?;
    let is_token_fetched = matches!(identity.source, S3Source::WebIdentity(_));
    let options = client_options(endpoint.as_deref(), is_token_fetched);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_http_connector(BoundedConnector)
        .with_client_options(options.clone())
        .with_retry(retry_config())
        .with_region(match (identity.region, &endpoint) {
            (Some(region), _) => region,
            // A private service has no regions; Amazon's can be queried for the region of a bucket.
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => region_of(bucket, &options).await,
        });
    let endpoint = match credential.addressing.form(bucket, endpoint.as_deref())? {
        UrlForm::Path => endpoint,
        UrlForm::Virtual { endpoint } => {
            builder = builder.with_virtual_hosted_style_request(true);
            endpoint
        }
    };
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    match identity.source {
        S3Source::Keys(keys) => {
            builder = builder.with_access_key_id(keys.key_id.reveal()).with_secret_access_key(keys.secret_key.reveal());
            if let Some(token) = &keys.session_token {
                builder = builder.with_token(token.reveal());
            }
            build(builder.build())
        }
        S3Source::WebIdentity(identity) => {
            builder = builder
                .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, identity.token_file)
                .with_config(AmazonS3ConfigKey::RoleArn, identity.role_arn);
            if let Some(name) = identity.session_name {
                builder = builder.with_config(AmazonS3ConfigKey::RoleSessionName, name);
            }
            if let Some(endpoint) = text(environment, "AWS_ENDPOINT_URL_STS")? {
                builder = builder.with_config(AmazonS3ConfigKey::StsEndpoint, endpoint);
            }
            build(builder.build())
        }
        S3Source::Host => s3_of_host(builder, environment).await,
    }
}

struct S3Identity {
    source: S3Source,
    region: Option<String>,
}

enum S3Source {
    Keys(Keys),
    WebIdentity(WebIdentity),
    /// The credentials that the container or host grants its processes, or none.
    Host,
}

/// The keys of the credential, then the profile's, then the token settings of the environment.
fn s3_identity(credential: &S3Credential, environment: &Environment) -> Result<S3Identity, Failure> {
    if let (Some(key_id), Some(secret_key)) = (&credential.key_id, &credential.secret_key) {
        let keys = Keys {
            key_id: key_id.clone(),
            secret_key: secret_key.clone(),
            session_token: credential.session_token.clone(),
        };
        return Ok(S3Identity { source: S3Source::Keys(keys), region: credential.region.clone() });
    }
    let profile = profile::read(credential.profile.as_deref(), environment).map_err(local)?;
    let region = credential.region.clone().or(profile.region);
    let source = match (profile.keys, profile.web_identity) {
        (Some(keys), _) => S3Source::Keys(keys),
        (None, Some(identity)) => S3Source::WebIdentity(identity),
        (None, None) => match web_identity(environment)? {
            Some(identity) => S3Source::WebIdentity(identity),
            None => match (&credential.profile, profile.unsupported) {
                (Some(name), Some(setting)) => {
                    let cause = format!(
                        "the AWS profile '{name}' gets its keys by '{setting}', which is not supported: give it \
                         aws_access_key_id and aws_secret_access_key"
                    );
                    return Err(Failure::Local(cause));
                }
                _ => S3Source::Host,
            },
        },
    };
    Ok(S3Identity { source, region })
}

fn web_identity(environment: &Environment) -> Result<Option<WebIdentity>, Failure> {
    let token_file = text(environment, "AWS_WEB_IDENTITY_TOKEN_FILE")?;
    let role_arn = text(environment, "AWS_ROLE_ARN")?;
    let session_name = text(environment, "AWS_ROLE_SESSION_NAME")?;
    Ok(match (token_file, role_arn) {
        (Some(token_file), Some(role_arn)) => Some(WebIdentity { token_file, role_arn, session_name }),
        _ => None,
    })
}

/// The credentials of the container, else those of the host, else none.
async fn s3_of_host(builder: AmazonS3Builder, environment: &Environment) -> Result<AmazonS3, Failure> {
    if let Some(uri) = text(environment, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")? {
        return build(builder.with_config(AmazonS3ConfigKey::ContainerCredentialsRelativeUri, uri).build());
    }
    let full_uri = text(environment, "AWS_CONTAINER_CREDENTIALS_FULL_URI")?;
    if let (Some(uri), Some(file)) = (full_uri, text(environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")?) {
        let builder = builder.with_config(AmazonS3ConfigKey::ContainerCredentialsFullUri, uri);
        return build(builder.with_config(AmazonS3ConfigKey::ContainerAuthorizationTokenFile, file).build());
    }
    if !environment.is_true("AWS_EC2_METADATA_DISABLED") {
        let mut of_host = builder.clone();
        if let Some(endpoint) = text(environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT")? {
            of_host = of_host.with_metadata_endpoint(endpoint);
        }
        let store = build(of_host.build())?;
        if answers(store.credentials().get_credential()).await {
            return Ok(store);
        }
    }
    debug!("no credentials for S3 are found: requests go without a signature");
    build(builder.with_skip_signature(true).build())
}

/// The region of a bucket at Amazon.
async fn region_of(bucket: &str, options: &ClientOptions) -> String {
    match tokio::time::timeout(REGION_TIMEOUT, resolve_bucket_region(bucket, options)).await {
        Ok(Ok(region)) => region,
        _ => "us-east-1".to_owned(),
    }
}

async fn google(
    bucket: &str,
    credential: &GoogleCredential,
    environment: &Environment,
) -> Result<GoogleCloudStorage, Failure> {
    let emulator = text(environment, "CLOUD_STORAGE_EMULATOR_ENDPOINT")?;
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(bucket)
        .with_http_connector(BoundedConnector)
        .with_retry(retry_config());
    if let Some(endpoint) = &emulator {
        builder = builder.with_base_url(endpoint);
    }
    // Where gcloud stores the credentials of its user.
    let usual = environment.path("HOME").map(|home| home.join(".config/gcloud/application_default_credentials.json"));
    let path = credential.path.clone().or(usual.filter(|path| path.exists()));
    if let Some(path) = path {
        let account = GoogleAccount::read(&path)?;
        let base_url = emulator.or(account.base_url);
        let builder = builder.with_client_options(client_options(base_url.as_deref(), !account.is_oauth_disabled));
        let shown = path.display().to_string();
        let builder = match account.kind {
            GoogleAccountKind::Service => builder.with_service_account_path(shown),
            GoogleAccountKind::User => builder.with_application_credentials(shown),
        };
        return build(builder.build());
    }
    let builder = builder.with_client_options(client_options(emulator.as_deref(), false));
    if emulator.is_none() && !environment.is_true("NO_GCE_CHECK") {
        let store = build(builder.clone().build())?;
        if answers(store.credentials().get_credential()).await {
            return Ok(store);
        }
    }
    debug!("no credentials for Google Cloud Storage are found: requests go without a signature");
    let anonymous = Arc::new(StaticCredentialProvider::new(GcpCredential { bearer: String::new() }));
    build(builder.with_credentials(anonymous).with_skip_signature(true).build())
}

/// Contents of a file of Google credentials.
struct GoogleAccount {
    kind: GoogleAccountKind,
    base_url: Option<String>,
    /// Emulators of the service are accessed without tokens.
    is_oauth_disabled: bool,
}

enum GoogleAccountKind {
    Service,
    User,
}

impl GoogleAccount {
    fn read(path: &Path) -> Result<GoogleAccount, Failure> {
        let wrong = |cause: &str| {
            Failure::Local(format!("the Google credentials in '{}' cannot be used: {cause}", path.display()))
        };
        let bytes = read_small(path).map_err(|cause| wrong(&cause))?;
        // The parser's message may quote a secret.
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| wrong("not JSON"))?;
        let field = |name: &str| value.get(name).and_then(Value::as_str);
        let kind = match field("type") {
            Some("authorized_user") => GoogleAccountKind::User,
            Some("service_account") | None => GoogleAccountKind::Service,
            Some(other) => {
                return Err(wrong(&format!("its type is '{other}', neither 'service_account' nor 'authorized_user'")));
            }
        };
        let wanted: &[&str] = match kind {
            GoogleAccountKind::Service => &["private_key", "private_key_id", "client_email"],
            GoogleAccountKind::User => &["client_id", "client_secret", "refresh_token"],
        };
        if let Some(missing) = wanted.iter().find(|name| field(name).is_none()) {
            return Err(wrong(&format!("it has no '{missing}'")));
        }
        let base_url = field("gcs_base_url").map(str::to_owned);
        let is_oauth_disabled = value.get("disable_oauth").and_then(Value::as_bool).unwrap_or(false);
        Ok(GoogleAccount { kind, base_url, is_oauth_disabled })
    }
}

fn azure(
    container: &str,
    account: &str,
    credential: &AzureCredential,
    environment: &Environment,
) -> Result<MicrosoftAzure, Failure> {
    let endpoint = text(environment, "AZURE_STORAGE_ENDPOINT")?;
    let needs_token = credential.auth_type != AzureAuthType::Key;
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(container)
        .with_http_connector(BoundedConnector)
        // As in Triton, the variable overrides the location.
        .with_account(credential.account.as_deref().unwrap_or(account))
        .with_client_options(client_options(endpoint.as_deref(), needs_token))
        .with_retry(retry_config());
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    match (credential.auth_type, &credential.account_key) {
        (AzureAuthType::Key, Some(key)) => builder = builder.with_access_key(key.reveal()),
        (AzureAuthType::Key, None) => builder = builder.with_skip_signature(true),
        (AzureAuthType::ManagedIdentity, _) => {
            builder = of_managed_identity(builder, credential, environment)?.with_credential_type("managed_identity");
        }
        // An application's secret or token, where the environment names one, else the host's identity.
        (AzureAuthType::Default, _) => {
            let mut has_application = false;
            if let (Some(client_id), Some(tenant_id)) =
                (text(environment, "AZURE_CLIENT_ID")?, text(environment, "AZURE_TENANT_ID")?)
            {
                let secret = text(environment, "AZURE_CLIENT_SECRET")?;
                let token_file = text(environment, "AZURE_FEDERATED_TOKEN_FILE")?;
                has_application = secret.is_some() || token_file.is_some();
                if has_application {
                    builder = builder.with_client_id(client_id).with_tenant_id(tenant_id);
                    builder = match (secret, token_file) {
                        (Some(secret), _) => builder.with_client_secret(secret),
                        (None, Some(file)) => builder.with_federated_token_file(file),
                        (None, None) => builder,
                    };
                }
            }
            if let Some(host) = text(environment, "AZURE_AUTHORITY_HOST")? {
                builder = builder.with_authority_host(host);
            }
            if !has_application {
                builder = of_managed_identity(builder, credential, environment)?;
            }
        }
    }
    build(builder.build())
}

fn of_managed_identity(
    mut builder: MicrosoftAzureBuilder,
    credential: &AzureCredential,
    environment: &Environment,
) -> Result<MicrosoftAzureBuilder, Failure> {
    if let Some(client_id) = &credential.client_id {
        builder = builder.with_client_id(client_id);
    }
    if let Some(endpoint) = text(environment, "IDENTITY_ENDPOINT")? {
        builder = builder.with_config(AzureConfigKey::MsiEndpoint, endpoint);
    }
    Ok(builder)
}

/// Whether a source of credentials returns any.
async fn answers<T>(credential: impl Future<Output = object_store::Result<T>>) -> bool {
    matches!(tokio::time::timeout(METADATA_TIMEOUT, credential).await, Ok(Ok(_)))
}

/// Every request ends: connecting and waiting are bounded here, a listing or a download as a whole by its caller.
///
/// Certificates of the host are read only where something is encrypted: small containers have none.
fn client_options(endpoint: Option<&str>, is_token_fetched: bool) -> ClientOptions {
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(READ_TIMEOUT)
        .with_timeout_disabled()
        .with_allow_http(is_plain)
        .with_no_system_certificates(is_plain && !is_token_fetched)
}

fn retry_config() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(5),
        ..BackoffConfig::default()
    };
    RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT }
}

fn build<T>(built: object_store::Result<T>) -> Result<T, Failure> {
    built.map_err(|error| Failure::of(&error))
}

fn text(environment: &Environment, name: &str) -> Result<Option<String>, Failure> {
    environment.text(name).map_err(local)
}

fn local(status: nereid_request::Status) -> Failure {
    Failure::Local(status.message.into_owned())
}

#[cfg(test)]
mod tests;
