//! What went wrong between a store and its bucket, in words that say what to check.
//!
//! The services answer with pages of XML that name requests, signed texts and key numbers. An operator needs the
//! cause and the setting to look at, and no log may hold a secret: only the service's own error code is passed on.

use std::error::Error;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};

use super::location::Provider;
use crate::request::Status;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("not found{}", in_brackets(.code))]
    Absent { code: Option<String> },
    #[error("access denied{}", in_brackets(.code))]
    Denied { code: Option<String> },
    #[error("no answer: {cause}")]
    Unreachable { cause: String },
    #[error("no end after {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("{0}")]
    BadKey(String),
    /// Something on this host, such as a full disk.
    #[error("{0}")]
    Local(String),
    #[error("{cause}")]
    Other { cause: String },
}

/// Error codes of S3 for credentials that are wrong or expired, whatever the HTTP status is.
const DENIED_CODES: [&str; 8] = [
    "AccessDenied",
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
];

/// Error codes of the three services for a bucket or container that does not exist.
const ABSENT_CODES: [&str; 3] = ["BucketNotFound", "ContainerNotFound", "NoSuchBucket"];

const CAUSE_CHARS_MAX: usize = 200;

impl Failure {
    pub fn of(error: &object_store::Error) -> Failure {
        use object_store::Error as Cause;
        let text = error.to_string();
        let code = code_in(&text);
        let is_one_of = |codes: &[&str]| code.as_deref().is_some_and(|code| codes.contains(&code));
        match error {
            Cause::NotFound { .. } => Failure::Absent { code },
            Cause::PermissionDenied { .. } | Cause::Unauthenticated { .. } => Failure::Denied { code },
            Cause::InvalidPath { source } => Failure::BadKey(format!("{source}")),
            _ if is_one_of(&DENIED_CODES) => Failure::Denied { code },
            // The crate tells a missing object from other errors, but not a missing bucket.
            _ if is_one_of(&ABSENT_CODES) || text.contains("status code: 404") => Failure::Absent { code },
            _ => {
                let (deepest, is_network) = deepest_of(error);
                let cause = code.unwrap_or_else(|| first_words(&deepest));
                if is_network { Failure::Unreachable { cause } } else { Failure::Other { cause } }
            }
        }
    }

    /// Whether other credentials could help.
    pub fn is_denied(&self) -> bool {
        matches!(self, Failure::Denied { .. })
    }

    /// `what` was attempted, e.g. "list the models of".
    pub fn status(&self, what: &str, location: &str, provider: &Provider) -> Status {
        let text = format!("failed to {what} '{location}': {self}");
        match self {
            Failure::Absent { .. } => Status::not_found(format!("{text}: check the name of the {}", bucket(provider))),
            Failure::Denied { .. } => Status::internal(format!("{text}: check {}", credentials(provider))),
            Failure::Unreachable { .. } => {
                Status::unavailable(format!("{text}: check {} and the network", host(provider)))
            }
            Failure::TooSlow(_) => Status::unavailable(format!("{text}: check the network")),
            Failure::BadKey(_) | Failure::Local(_) | Failure::Other { .. } => Status::internal(text),
        }
    }
}

fn bucket(provider: &Provider) -> &'static str {
    match provider {
        Provider::S3 { .. } | Provider::Google => "bucket",
        Provider::Azure { .. } => "container",
    }
}

fn credentials(provider: &Provider) -> &'static str {
    match provider {
        Provider::S3 { .. } => {
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, the profile of AWS_PROFILE, or the file of \
             TRITON_CLOUD_CREDENTIAL_PATH, and what they may read"
        }
        Provider::Google => {
            "the file of GOOGLE_APPLICATION_CREDENTIALS, or that of TRITON_CLOUD_CREDENTIAL_PATH, and what its account \
             may read"
        }
        Provider::Azure { .. } => {
            "AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY and AZURE_STORAGE_AUTH_TYPE, or the file of \
             TRITON_CLOUD_CREDENTIAL_PATH, and what they may read"
        }
    }
}

fn host(provider: &Provider) -> &'static str {
    match provider {
        Provider::S3 { endpoint: Some(_) } => "the host and port",
        Provider::S3 { endpoint: None } => "the region (AWS_DEFAULT_REGION)",
        Provider::Google => "the service",
        Provider::Azure { .. } => "the name of the account",
    }
}

fn in_brackets(code: &Option<String>) -> String {
    code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default()
}

/// The text of `<Code>…</Code>`, as all three services put it into their errors.
fn code_in(text: &str) -> Option<String> {
    let (code, _) = text.split_once("<Code>")?.1.split_once("</Code>")?;
    let is_code = !code.is_empty() && code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

/// The innermost cause, and whether it concerns the connection.
fn deepest_of(error: &object_store::Error) -> (String, bool) {
    let mut is_network = false;
    let mut deepest: &dyn Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
        is_network |= deepest.downcast_ref::<HttpError>().is_some_and(|error| {
            matches!(error.kind(), HttpErrorKind::Connect | HttpErrorKind::Timeout | HttpErrorKind::Interrupted)
        });
    }
    (deepest.to_string(), is_network)
}

/// A cause as one short line, without what a service wrote in its answer.
fn first_words(text: &str) -> String {
    let before_answer = text.split(['<', '{', '\n']).next().unwrap_or_default();
    let line: String = before_answer.chars().filter(|c| !c.is_control()).take(CAUSE_CHARS_MAX).collect();
    let line = line.trim_end_matches([' ', ':']);
    if line.is_empty() { "an answer that is not understood".to_owned() } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: &str, body: &str) -> object_store::Error {
        let text = format!("Server returned non-2xx status code: {status}: {body}");
        object_store::Error::Generic { store: "S3", source: text.into() }
    }

    #[test]
    fn only_the_code_of_an_answer_is_told() {
        let body = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>m</Message><AWSAccessKeyId>AKIA\
                    </AWSAccessKeyId></Error>";
        let failure = Failure::of(&answer("503 Service Unavailable", body));
        assert_eq!(failure, Failure::Other { cause: "SlowDown".to_owned() });
        let failure = Failure::of(&answer("400 Bad Request", &body.replace("SlowDown", "ExpiredToken")));
        assert_eq!(failure, Failure::Denied { code: Some("ExpiredToken".to_owned()) });
        let failure = Failure::of(&answer("404 Not Found", &body.replace("SlowDown", "NoSuchBucket")));
        assert_eq!(failure, Failure::Absent { code: Some("NoSuchBucket".to_owned()) });
        assert_eq!(Failure::of(&answer("404 Not Found", "")), Failure::Absent { code: None });
        let failure = Failure::of(&answer("400 Bad Request", "{\"error\": \"invalid_grant\", \"token\": \"hush\"}"));
        let cause = "Server returned non-2xx status code: 400 Bad Request".to_owned();
        assert_eq!(failure, Failure::Other { cause });
        let failure = Failure::of(&answer("500", "<Code>not a code</Code>"));
        assert_eq!(failure, Failure::Other { cause: "Server returned non-2xx status code: 500".to_owned() });
        let empty = object_store::Error::Generic { store: "S3", source: "<html>".into() };
        assert_eq!(Failure::of(&empty), Failure::Other { cause: "an answer that is not understood".to_owned() });
    }

    #[test]
    fn every_failure_names_the_location_and_what_to_check() {
        let s3 = Provider::S3 { endpoint: Some("http://h:1".to_owned()) };
        let azure = Provider::Azure { account: "a".to_owned() };
        let code = || Some("NoSuchBucket".to_owned());
        let table = [
            (
                Failure::Absent { code: code() },
                &s3,
                Status::not_found("failed to read 'l': not found (NoSuchBucket): check the name of the bucket"),
            ),
            (
                Failure::Absent { code: None },
                &azure,
                Status::not_found("failed to read 'l': not found: check the name of the container"),
            ),
            (
                Failure::Unreachable { cause: "refused".to_owned() },
                &s3,
                Status::unavailable("failed to read 'l': no answer: refused: check the host and port and the network"),
            ),
            (
                Failure::TooSlow(Duration::from_secs(60)),
                &s3,
                Status::unavailable("failed to read 'l': no end after 60 s: check the network"),
            ),
            (
                Failure::Local("the disk is full".to_owned()),
                &s3,
                Status::internal("failed to read 'l': the disk is full"),
            ),
        ];
        for (failure, provider, expected) in table {
            assert_eq!(failure.status("read", "l", provider), expected);
        }
        for (provider, variable) in
            [(&s3, "AWS_SECRET_ACCESS_KEY"), (&Provider::Google, "GOOGLE_APPLICATION"), (&azure, "AZURE_STORAGE_KEY")]
        {
            let error = Failure::Denied { code: None }.status("read", "l", provider);
            assert!(error.message.contains(variable), "{error}");
        }
    }
}
