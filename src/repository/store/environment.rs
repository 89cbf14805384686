//! The environment variables that a store reads, taken once when it is opened.
//!
//! A store outlives the call that opened it, and connects again when credentials changed, so it keeps the values of the
//! variables. Most values are secrets, so they are never displayed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use nereid_request::Status;

/// All variables of contract/cli.md section 4 that concern buckets, and those that the providers' own tools read
/// besides.
const NAMES: [&str; 40] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_S3_ADDRESSING_STYLE",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_AUTH_TYPE",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_KEY",
    "AZURE_TENANT_ID",
    "CLOUD_STORAGE_EMULATOR_ENDPOINT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HOME",
    "IDENTITY_ENDPOINT",
    "NO_GCE_CHECK",
    "TMPDIR",
    "TRITON_AWS_MOUNT_DIRECTORY",
    "TRITON_AZURE_MOUNT_DIRECTORY",
    "TRITON_CLOUD_CREDENTIAL_PATH",
    "TRITON_GCS_MOUNT_DIRECTORY",
];

/// The values of the variables.
#[derive(Clone, Default)]
pub struct Environment {
    values: BTreeMap<&'static str, OsString>,
}

impl Environment {
    pub fn capture(read: &dyn Fn(&str) -> Option<OsString>) -> Environment {
        let present = NAMES.into_iter().filter_map(|name| Some((name, read(name)?)));
        // An empty value counts as unset.
        Environment { values: present.filter(|(_, value)| !value.is_empty()).collect() }
    }

    pub fn text(&self, name: &str) -> Result<Option<String>, Status> {
        debug_assert!(NAMES.contains(&name), "{name} is not captured");
        let Some(value) = self.values.get(name) else { return Ok(None) };
        match value.to_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(Status::invalid(format!("the value of the environment variable {name} is not UTF-8"))),
        }
    }

    pub fn path(&self, name: &str) -> Option<PathBuf> {
        debug_assert!(NAMES.contains(&name), "{name} is not captured");
        self.values.get(name).map(PathBuf::from)
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.text(name).ok().flatten().is_some_and(|text| matches!(text.to_ascii_lowercase().as_str(), "true" | "1"))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// A text that is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn empty_values_say_nothing_and_others_are_read_by_kind() {
        let environment = Environment::capture(&|name| match name {
            "AWS_PROFILE" => Some("".into()),
            "AWS_REGION" => Some("eu-west-1".into()),
            "AWS_ROLE_ARN" => Some(OsString::from_vec(vec![0xff])),
            "HOME" => Some(OsString::from_vec(vec![b'/', 0xff])),
            "AWS_EC2_METADATA_DISABLED" => Some("True".into()),
            _ => None,
        });
        assert_eq!(environment.text("AWS_PROFILE"), Ok(None));
        assert_eq!(environment.text("AWS_REGION"), Ok(Some("eu-west-1".to_owned())));
        let error = environment.text("AWS_ROLE_ARN").expect_err("not UTF-8");
        assert_eq!(error.message, "the value of the environment variable AWS_ROLE_ARN is not UTF-8");
        assert_eq!(environment.path("HOME"), Some(PathBuf::from(OsString::from_vec(vec![b'/', 0xff]))));
        assert!(environment.is_true("AWS_EC2_METADATA_DISABLED"));
        assert!(!environment.is_true("AWS_REGION"));
    }

    #[test]
    fn no_value_is_shown() {
        let environment = Environment::capture(&|name| (name == "AZURE_STORAGE_KEY").then(|| "hush".into()));
        assert_eq!(format!("{environment:?}"), "{\"AZURE_STORAGE_KEY\"}");
        assert_eq!(format!("{:?}", Secret::new("hush".to_owned())), "Secret");
    }
}
