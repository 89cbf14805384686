//! Errors between a store and its bucket, in messages that name what to check.
//!
//! The services answer with pages of XML that name requests, signed texts and key numbers. An operator needs the cause
//! and the setting to check, and no log may hold a secret: only the service's own error code is passed on.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use object_store::path;

use super::location::{BucketLocation, Provider};
use nereid_request::Status;

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
    /// A key with an empty part.
    #[error("{0}")]
    EmptyName(String),
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
            Cause::InvalidPath { source: source @ path::Error::EmptySegment { .. } } => {
                Failure::EmptyName(format!("{source}"))
            }
            Cause::InvalidPath { source } => Failure::BadKey(format!("{source}")),
            _ if is_one_of(&DENIED_CODES) => Failure::Denied { code },
            // The crate separates a missing object from other errors, but not a missing bucket.
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

    /// The error of `request` about the repository at `location`, for the caller. It begins with Triton's words, which
    /// scripts search for, and continues with the cause and what to check.
    pub fn status(&self, request: BucketRequest<'_>, location: &str, place: &BucketLocation) -> Status {
        let provider = &place.provider;
        let advice = match self {
            Failure::Absent { .. } => format!(": check the name of the {}", bucket(provider)),
            Failure::Denied { .. } => format!(": check {}", credentials(provider)),
            Failure::Unreachable { .. } => format!(": check {} and the network", host(provider)),
            Failure::TooSlow(_) => ": check the network".to_owned(),
            _ => String::new(),
        };
        let cause = format!("failed to {request} '{location}': {self}{advice}");
        let at = request.place(location);
        let bucket = &place.bucket;
        Status::internal(match (self, provider) {
            (Failure::Local(_), _) => cause,
            (Failure::EmptyName(_), _) => format!("Cannot handle item with empty name at {at}: {cause}"),
            (Failure::Absent { code } | Failure::Denied { code }, Provider::S3 { .. }) => {
                no_client_of_s3(code.as_deref().unwrap_or_default(), &cause)
            }
            (Failure::Unreachable { .. }, Provider::S3 { .. }) => no_client_of_s3("", &cause),
            (Failure::Absent { .. }, Provider::Google) => {
                format!("Could not get MetaData for bucket with name {bucket} : {cause}")
            }
            (Failure::Denied { .. } | Failure::Unreachable { .. }, Provider::Google) => {
                format!("Unable to create GCS client. Check account credentials. {cause}")
            }
            (Failure::Denied { .. } | Failure::Unreachable { .. }, Provider::Azure { .. }) => {
                format!("Unable to create Azure filesystem client. Check account credentials. {cause}")
            }
            (_, provider) => request.failed(&at, &cause, provider),
        })
    }
}

fn no_client_of_s3(exception: &str, cause: &str) -> String {
    format!(
        "Unable to create S3 filesystem client. Check account credentials. Exception: '{exception}' Message: '{cause}'"
    )
}

/// A request to a repository.
#[derive(Debug, Clone, Copy)]
pub enum BucketRequest<'a> {
    Models,
    Model(&'a str),
    Copy(&'a str),
}

impl fmt::Display for BucketRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BucketRequest::Models => f.write_str("list the models of"),
            BucketRequest::Model(model) => write!(f, "list the model '{model}' of"),
            BucketRequest::Copy(model) => write!(f, "copy the model '{model}' of"),
        }
    }
}

impl BucketRequest<'_> {
    fn place(&self, location: &str) -> String {
        match self {
            BucketRequest::Models => location.to_owned(),
            BucketRequest::Model(model) | BucketRequest::Copy(model) => {
                format!("{}/{model}", location.trim_end_matches('/'))
            }
        }
    }

    /// The message where the bucket exists and this one request failed.
    fn failed(&self, at: &str, cause: &str, provider: &Provider) -> String {
        match (self, provider) {
            (BucketRequest::Copy(_), Provider::S3 { .. }) => {
                format!("Failed to get object at {at} due to exception: , error message: {cause}")
            }
            (BucketRequest::Copy(_), Provider::Google) => format!("Failed to get object at {at} : {cause}"),
            (BucketRequest::Copy(_), Provider::Azure { .. }) => format!("Failed to download file at {at}:{cause}"),
            (_, Provider::S3 { .. }) => {
                format!("Could not list contents of directory at {at} due to exception: , error message: {cause}")
            }
            (_, Provider::Google) => format!("Could not list contents of directory at {at} : {cause}"),
            (_, Provider::Azure { .. }) => format!("Failed to get contents of directory {at}:{cause}"),
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
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, the profile of AWS_PROFILE, or the file \
             of TRITON_CLOUD_CREDENTIAL_PATH, and what they may read"
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

/// A cause as one short line, without the text that a service wrote in its response.
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
    fn errors_hold_only_the_code_of_a_response() {
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

    fn place(provider: Provider) -> BucketLocation {
        BucketLocation { provider, bucket: "b".to_owned(), prefix: path::Path::default() }
    }

    #[test]
    fn every_failure_begins_with_tritons_words_and_names_the_location_and_what_to_check() {
        let s3 = place(Provider::S3 { endpoint: Some("http://h:1".to_owned()) });
        let google = place(Provider::Google);
        let azure = place(Provider::Azure { account: "a".to_owned() });
        let absent = || Failure::Absent { code: Some("NoSuchBucket".to_owned()) };
        let unreachable = || Failure::Unreachable { cause: "refused".to_owned() };
        let slow = || Failure::TooSlow(Duration::from_secs(60));
        let (list, copy) = (BucketRequest::Model("m"), BucketRequest::Copy("m"));
        let table = [
            (
                absent(),
                &s3,
                BucketRequest::Models,
                "Unable to create S3 filesystem client. Check account credentials. Exception: 'NoSuchBucket' Message: \
                 'failed to list the models of 'l/': not found (NoSuchBucket): check the name of the bucket'",
            ),
            (
                unreachable(),
                &s3,
                list,
                "Unable to create S3 filesystem client. Check account credentials. Exception: '' Message: 'failed to \
                 list the model 'm' of 'l/': no answer: refused: check the host and port and the network'",
            ),
            (
                absent(),
                &google,
                list,
                "Could not get MetaData for bucket with name b : failed to list the model 'm' of 'l/': not found \
                 (NoSuchBucket): check the name of the bucket",
            ),
            (
                unreachable(),
                &google,
                copy,
                "Unable to create GCS client. Check account credentials. failed to copy the model 'm' of 'l/': no \
                 answer: refused: check the service and the network",
            ),
            (
                absent(),
                &azure,
                BucketRequest::Models,
                "Failed to get contents of directory l/:failed to list the models of 'l/': not found (NoSuchBucket): \
                 check the name of the container",
            ),
            (
                unreachable(),
                &azure,
                list,
                "Unable to create Azure filesystem client. Check account credentials. failed to list the model 'm' of \
                 'l/': no answer: refused: check the name of the account and the network",
            ),
            (
                slow(),
                &s3,
                list,
                "Could not list contents of directory at l/m due to exception: , error message: failed to list the \
                 model 'm' of 'l/': no end after 60 s: check the network",
            ),
            (
                slow(),
                &s3,
                copy,
                "Failed to get object at l/m due to exception: , error message: failed to copy the model 'm' of 'l/': \
                 no end after 60 s: check the network",
            ),
            (
                Failure::EmptyName("a//b".to_owned()),
                &google,
                list,
                "Cannot handle item with empty name at l/m: failed to list the model 'm' of 'l/': a//b",
            ),
            (
                Failure::Local("the disk is full".to_owned()),
                &s3,
                copy,
                "failed to copy the model 'm' of 'l/': the disk is full",
            ),
        ];
        for (failure, place, request, text) in table {
            assert_eq!(failure.status(request, "l/", place), Status::internal(text));
        }
        for (place, variable) in
            [(&s3, "AWS_SECRET_ACCESS_KEY"), (&google, "GOOGLE_APPLICATION"), (&azure, "AZURE_STORAGE_KEY")]
        {
            let error = Failure::Denied { code: None }.status(list, "l", place);
            assert!(
                error.message.contains("Check account credentials.") && error.message.contains(variable),
                "{error}"
            );
        }
    }
}
