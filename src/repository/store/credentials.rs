//! Credentials of a store: from the file that TRITON_CLOUD_CREDENTIAL_PATH names, or from the environment.
//!
//! With a credential file the providers' own variables are not read, as in Triton: the entry with the longest name that
//! is a prefix of the location counts, and having none is an error.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::addressing::Addressing;
use super::environment::{Environment, Secret};
use super::location::{BucketLocation, Provider};
use nereid_observe::log::verbose;
use nereid_request::Status;

const FILE_VARIABLE: &str = "TRITON_CLOUD_CREDENTIAL_PATH";

/// Files with credentials are a few lines long; a longer file is something else.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    S3(S3Credential),
    Google(GoogleCredential),
    Azure(AzureCredential),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct S3Credential {
    pub key_id: Option<Secret>,
    pub secret_key: Option<Secret>,
    pub session_token: Option<Secret>,
    pub region: Option<String>,
    pub profile: Option<String>,
    pub addressing: Addressing,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GoogleCredential {
    pub path: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AzureCredential {
    pub account: Option<String>,
    pub account_key: Option<Secret>,
    pub auth_type: AzureAuthType,
    pub client_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AzureAuthType {
    /// The account's key; without one, only public data can be read.
    #[default]
    Key,
    ManagedIdentity,
    Default,
}

/// The credential for `location`.
pub fn find(location: &str, place: &BucketLocation, environment: &Environment) -> Result<Credential, Status> {
    match environment.path(FILE_VARIABLE) {
        Some(path) => from_file(&path, location, &place.provider),
        None => from_environment(&place.provider, environment),
    }
}

fn from_environment(provider: &Provider, environment: &Environment) -> Result<Credential, Status> {
    let secret = |name: &str| Ok::<_, Status>(environment.text(name)?.map(Secret::new));
    Ok(match provider {
        Provider::S3 { .. } => Credential::S3(S3Credential {
            key_id: secret("AWS_ACCESS_KEY_ID")?,
            secret_key: secret("AWS_SECRET_ACCESS_KEY")?,
            session_token: secret("AWS_SESSION_TOKEN")?,
            region: match environment.text("AWS_DEFAULT_REGION")? {
                Some(region) => Some(region),
                None => environment.text("AWS_REGION")?,
            },
            profile: environment.text("AWS_PROFILE")?,
            addressing: Addressing::parse("AWS_S3_ADDRESSING_STYLE", environment.text("AWS_S3_ADDRESSING_STYLE")?)?,
        }),
        Provider::Google => {
            Credential::Google(GoogleCredential { path: environment.path("GOOGLE_APPLICATION_CREDENTIALS") })
        }
        Provider::Azure { .. } => Credential::Azure(AzureCredential {
            account: environment.text("AZURE_STORAGE_ACCOUNT")?,
            account_key: secret("AZURE_STORAGE_KEY")?,
            auth_type: auth_type("AZURE_STORAGE_AUTH_TYPE", environment.text("AZURE_STORAGE_AUTH_TYPE")?)?,
            client_id: environment.text("AZURE_STORAGE_CLIENT_ID")?,
        }),
    })
}

fn auth_type(field: &str, value: Option<String>) -> Result<AzureAuthType, Status> {
    match value.as_deref() {
        None | Some("key") => Ok(AzureAuthType::Key),
        Some("managed_identity") => Ok(AzureAuthType::ManagedIdentity),
        Some("default") => Ok(AzureAuthType::Default),
        Some(other) => {
            let text = format!("{field} is '{other}', but must be 'key', 'managed_identity' or 'default'");
            Err(Status::invalid(text))
        }
    }
}

/// `{"s3": {"<prefix of a location>": {…}}, "gs": {"…": "<path>"}, "as": {"…": {…}}}`.
fn from_file(path: &Path, location: &str, provider: &Provider) -> Result<Credential, Status> {
    let shown = path.display();
    verbose!(1, "Reading cloud credential from {shown}");
    let text = read_small(path).map_err(|cause| Status::invalid(format!("{FILE_VARIABLE}: '{shown}': {cause}")))?;
    // The parser's message may quote the text, which holds secrets, so only the position is reported.
    let file: Value = serde_json::from_slice(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Status::invalid(format!("{FILE_VARIABLE}: '{shown}' is not JSON, at line {line} column {column}"))
    })?;
    let at = |field: &str, wanted: &str| {
        Status::invalid(format!("{FILE_VARIABLE}: '{shown}': the value of {field} must be {wanted}"))
    };
    let scheme = provider.scheme();
    let empty = Map::new();
    let names = match file.as_object().ok_or_else(|| at("the whole file", "an object"))?.get(scheme) {
        Some(names) => names.as_object().ok_or_else(|| at(&format!("'{scheme}'"), "an object"))?,
        None => &empty,
    };
    let matching = names.iter().filter(|(name, _)| location.starts_with(name.as_str()));
    let Some((name, value)) = matching.max_by_key(|(name, _)| name.len()) else {
        return Err(Status::not_found(format!(
            "Cannot match credential for path  {location}: {FILE_VARIABLE} '{shown}' has no entry under '{scheme}' \
             whose name begins it; an entry \"\" matches all"
        )));
    };
    verbose!(1, "Using credential  {name}  for path  {location}");
    let entry = CredentialEntry { path, scheme, name, value };
    match provider {
        Provider::S3 { .. } => {
            let field = format!("{FILE_VARIABLE}: '{shown}': addressing_style of '{name}'");
            Ok(Credential::S3(S3Credential {
                key_id: entry.field("key_id")?.map(Secret::new),
                secret_key: entry.field("secret_key")?.map(Secret::new),
                session_token: entry.field("session_token")?.map(Secret::new),
                region: entry.field("region")?,
                profile: entry.field("profile")?,
                addressing: Addressing::parse(&field, entry.field("addressing_style")?)?,
            }))
        }
        Provider::Google => match value.as_str() {
            Some(text) => {
                Ok(Credential::Google(GoogleCredential { path: (!text.is_empty()).then(|| PathBuf::from(text)) }))
            }
            None => Err(at(&format!("'gs' → '{name}'"), "a string")),
        },
        Provider::Azure { .. } => {
            let field = format!("{FILE_VARIABLE}: '{shown}': auth_type of '{name}'");
            Ok(Credential::Azure(AzureCredential {
                account: entry.field("account_str")?,
                account_key: entry.field("account_key")?.map(Secret::new),
                auth_type: auth_type(&field, entry.field("auth_type")?)?,
                client_id: entry.field("client_id")?,
            }))
        }
    }
}

/// One entry of a credential file.
struct CredentialEntry<'a> {
    path: &'a Path,
    scheme: &'a str,
    name: &'a str,
    value: &'a Value,
}

impl CredentialEntry<'_> {
    /// A field's text; none if it is empty.
    fn field(&self, field: &str) -> Result<Option<String>, Status> {
        let must_be = |what: &str, wanted: &str| {
            let (path, scheme, name) = (self.path.display(), self.scheme, self.name);
            let text = format!("{FILE_VARIABLE}: '{path}': {what} of '{scheme}' → '{name}' must be {wanted}");
            Err(Status::invalid(text))
        };
        let Some(fields) = self.value.as_object() else { return must_be("the value", "an object") };
        match fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
            Some(_) => must_be(&format!("'{field}'"), "a string"),
        }
    }
}

/// Reads a whole small file; the error does not contain its path.
pub fn read_small(path: &Path) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("longer than {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
