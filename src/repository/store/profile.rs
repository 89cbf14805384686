//! The profiles that `aws configure` writes to ~/.aws/credentials and ~/.aws/config.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::credentials::read_small;
use super::environment::{Environment, Secret};
use nereid_request::Status;

/// The settings of one profile that a store can use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    pub keys: Option<Keys>,
    /// A role to assume with a token from a file.
    pub web_identity: Option<WebIdentity>,
    pub region: Option<String>,
    /// The setting by which the profile gets its keys, where that way is not supported.
    pub unsupported: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    pub key_id: Secret,
    pub secret_key: Secret,
    pub session_token: Option<Secret>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebIdentity {
    pub token_file: String,
    pub role_arn: String,
    pub session_name: Option<String>,
}

/// Settings that name a program, a browser or another profile to get keys from.
const UNSUPPORTED: [&str; 6] =
    ["credential_process", "sso_session", "sso_start_url", "source_profile", "credential_source", "login_session"];

/// The profile `name`, or `default`, which need not exist. Settings in both files are taken from the credentials file.
pub fn read(name: Option<&str>, environment: &Environment) -> Result<Profile, Status> {
    let home = environment.path("HOME");
    let place = |variable: &str, file: &str| -> Option<PathBuf> {
        environment.path(variable).or_else(|| Some(home.as_ref()?.join(".aws").join(file)))
    };
    let wanted = name.unwrap_or("default");
    let mut settings = BTreeMap::new();
    let mut is_found = false;
    let files = [
        (place("AWS_CONFIG_FILE", "config"), format!("profile {wanted}")),
        (place("AWS_SHARED_CREDENTIALS_FILE", "credentials"), wanted.to_owned()),
    ];
    for (path, section) in &files {
        let Some(path) = path else { continue };
        let Some(text) = text_of(path)? else { continue };
        // In the config file the default profile may also have its bare name.
        let found = sections(&text).filter(|(name, _)| name == section || (wanted == "default" && name == "default"));
        for (_, lines) in found {
            is_found = true;
            settings.extend(lines);
        }
    }
    if let Some(name) = name.filter(|_| !is_found) {
        let paths = files.iter().filter_map(|(path, _)| Some(format!("'{}'", path.as_ref()?.display())));
        let paths = paths.collect::<Vec<_>>().join(" and ");
        return Err(Status::invalid(format!("there is no AWS profile '{name}' in {paths}")));
    }
    Ok(Profile::of(settings))
}

impl Profile {
    fn of(mut settings: BTreeMap<String, String>) -> Profile {
        let mut take = |name: &str| settings.remove(name).filter(|value| !value.is_empty());
        let keys = match (take("aws_access_key_id"), take("aws_secret_access_key")) {
            (Some(key_id), Some(secret_key)) => Some(Keys {
                key_id: Secret::new(key_id),
                secret_key: Secret::new(secret_key),
                session_token: take("aws_session_token").map(Secret::new),
            }),
            _ => None,
        };
        let web_identity = match (take("web_identity_token_file"), take("role_arn")) {
            (Some(token_file), Some(role_arn)) => {
                Some(WebIdentity { token_file, role_arn, session_name: take("role_session_name") })
            }
            _ => None,
        };
        let region = take("region");
        let unsupported = UNSUPPORTED.into_iter().find(|name| settings.contains_key(*name));
        Profile { keys, web_identity, region, unsupported }
    }
}

/// `None` if there is no such file.
fn text_of(path: &Path) -> Result<Option<String>, Status> {
    match std::fs::metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        _ => {}
    }
    let wrong = |cause: &str| Status::invalid(format!("the AWS settings file '{}': {cause}", path.display()));
    let bytes = read_small(path).map_err(|cause| wrong(&cause))?;
    String::from_utf8(bytes).map(Some).map_err(|_| wrong("not UTF-8"))
}

/// The `[sections]` of a file and their `name = value` lines. Indented lines belong to the setting above them, and no
/// store reads such a setting.
fn sections(text: &str) -> impl Iterator<Item = (String, BTreeMap<String, String>)> {
    let mut found: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    for line in text.lines() {
        let is_continued = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) || is_continued {
            continue;
        }
        if let Some((name, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            // A name may be quoted: [profile "a b"].
            found.push((name.replace(['"', '\''], ""), BTreeMap::new()));
        } else if let (Some((_, settings)), Some((name, value))) = (found.last_mut(), line.split_once('=')) {
            let value = value.split_once(" #").map_or(value, |(value, _)| value);
            settings.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    use super::super::tests::folder;

    /// Reads from a home directory with the two files.
    fn read_in(name: Option<&str>, credentials: &str, config: &str) -> Result<Profile, Status> {
        let home = folder();
        home.file(".aws/credentials", credentials);
        home.file(".aws/config", config);
        let environment =
            Environment::capture(&|name| (name == "HOME").then(|| OsString::from(home.path().as_os_str())));
        read(name, &environment)
    }

    fn keys(key_id: &str, secret_key: &str, session_token: Option<&str>) -> Option<Keys> {
        Some(Keys {
            key_id: Secret::new(key_id.to_owned()),
            secret_key: Secret::new(secret_key.to_owned()),
            session_token: session_token.map(|token| Secret::new(token.to_owned())),
        })
    }

    const CREDENTIALS: &str = "# Keys\n[default]\naws_access_key_id = one\naws_secret_access_key=k/1=\n\n[ other ]\n\
                               AWS_ACCESS_KEY_ID = two\naws_secret_access_key = k2\naws_session_token = t2\n";
    const CONFIG: &str = "[default]\nregion = eu-west-1 # home\ns3 =\n  aws_access_key_id = nested\n\n\
                          [profile other]\nregion = us-west-2\naws_access_key_id = overridden\n\
                          [profile web]\nrole_arn = arn\nweb_identity_token_file = /token\n\
                          [profile sso]\nsso_start_url = https://x\n[other]\nregion = none\n";

    #[test]
    fn both_files_make_a_profile() {
        let table = [
            (None, keys("one", "k/1=", None), Some("eu-west-1")),
            (Some("default"), keys("one", "k/1=", None), Some("eu-west-1")),
            (Some("other"), keys("two", "k2", Some("t2")), Some("us-west-2")),
        ];
        for (name, keys, region) in table {
            let profile = read_in(name, CREDENTIALS, CONFIG).expect("a profile");
            assert_eq!((profile.keys, profile.region.as_deref()), (keys, region), "{name:?}");
        }
        let web = read_in(Some("web"), CREDENTIALS, CONFIG).expect("a profile").web_identity.expect("an identity");
        assert_eq!((web.token_file.as_str(), web.role_arn.as_str()), ("/token", "arn"));
        let sso = read_in(Some("sso"), CREDENTIALS, CONFIG).expect("a profile");
        assert_eq!((sso.keys, sso.unsupported), (None, Some("sso_start_url")));
    }

    #[test]
    fn only_a_profile_that_was_named_must_exist() {
        assert_eq!(read_in(None, "", ""), Ok(Profile::default()));
        let error = read_in(Some("me"), CREDENTIALS, CONFIG).expect_err("no such profile");
        assert!(error.message.starts_with("there is no AWS profile 'me' in '/"), "{error}");
        assert_eq!(read(None, &Environment::default()), Ok(Profile::default()));
        assert!(read(Some("me"), &Environment::default()).is_err());
    }

    #[test]
    fn files_may_lie_elsewhere_and_must_be_texts() {
        let folder = folder();
        let path = folder.file("keys", "[default]\naws_access_key_id = a\naws_secret_access_key = b");
        let at = |path: OsString| {
            Environment::capture(&move |name| (name == "AWS_SHARED_CREDENTIALS_FILE").then(|| path.clone()))
        };
        assert_eq!(read(None, &at(path.into())).expect("a profile").keys, keys("a", "b", None));
        let error = read(None, &at(folder.path().into())).expect_err("a directory");
        assert!(error.message.ends_with("': not a regular file"), "{error}");
        std::fs::write(folder.path().join("bytes"), b"\xff").expect("a file");
        let error = read(None, &at(folder.path().join("bytes").into())).expect_err("no text");
        assert!(error.message.ends_with("': not UTF-8"), "{error}");
    }
}
