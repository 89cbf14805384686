//! How requests to S3 name their bucket: in the path of the URL, or as the first label of its host.
//!
//! Triton names it in the path unless configured otherwise, and some stores refuse that form.

use std::net::IpAddr;

use super::failure::Failure;
use nereid_request::Status;

/// The longest label of a host name, and the shortest name of a bucket.
const LABEL_BYTES_MAX: usize = 63;
const BUCKET_BYTES_MIN: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addressing {
    #[default]
    Path,
    Virtual,
    /// In the host where that is possible, else in the path.
    Auto,
}

/// The form that the requests to one bucket take.
#[derive(Debug, PartialEq, Eq)]
pub enum UrlForm {
    Path,
    /// `endpoint`: with the bucket in its host; `None`: Amazon's.
    Virtual {
        endpoint: Option<String>,
    },
}

impl Addressing {
    /// `field`: the variable or member that `value` was read from.
    pub fn parse(field: &str, value: Option<String>) -> Result<Addressing, Status> {
        match value.as_deref() {
            None | Some("path") => Ok(Addressing::Path),
            Some("virtual") => Ok(Addressing::Virtual),
            Some("auto") => Ok(Addressing::Auto),
            Some(other) => {
                let text = format!("{field} is '{other}', but must be 'path', 'virtual' or 'auto'");
                Err(Status::invalid(text))
            }
        }
    }

    /// `endpoint`: the URL of a private service; `None`: Amazon's.
    pub fn form(self, bucket: &str, endpoint: Option<&str>) -> Result<UrlForm, Failure> {
        let Some(endpoint) = endpoint else {
            let is_virtual = self == Addressing::Virtual || (self == Addressing::Auto && is_label(bucket));
            return Ok(if is_virtual { UrlForm::Virtual { endpoint: None } } else { UrlForm::Path });
        };
        let (start, host) = host_of(endpoint);
        match self {
            Addressing::Path => return Ok(UrlForm::Path),
            Addressing::Auto if !is_label(bucket) || is_address(host) || !host.contains('.') => {
                return Ok(UrlForm::Path);
            }
            Addressing::Virtual if is_address(host) => {
                return Err(Failure::Local(format!(
                    "a bucket cannot be named in front of the address '{host}': give the service's host name, or the \
                     addressing style 'path'"
                )));
            }
            Addressing::Virtual | Addressing::Auto => {}
        }
        let (before, after) = endpoint.split_at(start);
        Ok(UrlForm::Virtual { endpoint: Some(format!("{before}{bucket}.{after}")) })
    }
}

/// Where the host of a URL begins, and the host without its port.
fn host_of(url: &str) -> (usize, &str) {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let authority = url[start..].split(['/', '?', '#']).next().unwrap_or_default();
    let start = start + authority.rfind('@').map_or(0, |at| at + 1);
    let rest = &url[start..];
    let host = match rest.find(']') {
        Some(end) if rest.starts_with('[') => &rest[..=end],
        _ => rest.split([':', '/', '?', '#']).next().unwrap_or_default(),
    };
    (start, host)
}

fn is_address(host: &str) -> bool {
    host.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

/// Whether a bucket can be one label of a host name. A name with dots would be several, which no certificate covers.
fn is_label(bucket: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (BUCKET_BYTES_MIN..=LABEL_BYTES_MAX).contains(&bucket.len())
        && bucket.bytes().all(is_plain)
        && !bucket.starts_with('-')
        && !bucket.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(style: &str, bucket: &str, endpoint: Option<&str>) -> Option<Option<String>> {
        let style = Addressing::parse("style", Some(style.to_owned())).expect("a style");
        match style.form(bucket, endpoint).expect("a form") {
            UrlForm::Path => None,
            UrlForm::Virtual { endpoint } => Some(endpoint),
        }
    }

    #[test]
    fn each_style_names_the_bucket_where_it_says() {
        let host = |endpoint: &str| Some(Some(endpoint.to_owned()));
        let table = [
            ("path", "models", None, None),
            ("path", "models", Some("https://s3.test"), None),
            ("virtual", "models", None, Some(None)),
            ("virtual", "models", Some("https://s3.test:9000/base"), host("https://models.s3.test:9000/base")),
            ("virtual", "models", Some("http://me@store"), host("http://me@models.store")),
            ("virtual", "my.models", Some("http://s3.test"), host("http://my.models.s3.test")),
            ("auto", "models", None, Some(None)),
            ("auto", "my.models", None, None),
            ("auto", "models", Some("http://s3.test:9000"), host("http://models.s3.test:9000")),
            ("auto", "my.models", Some("http://s3.test:9000"), None),
            ("auto", "My_models", Some("http://s3.test:9000"), None),
            ("auto", "models", Some("http://127.0.0.1:9000"), None),
            ("auto", "models", Some("http://[::1]:9000"), None),
            ("auto", "models", Some("http://localhost:9000"), None),
        ];
        for (style, bucket, endpoint, expected) in table {
            assert_eq!(form(style, bucket, endpoint), expected, "{style} {bucket} {endpoint:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let error = Addressing::parse("AWS_S3_ADDRESSING_STYLE", Some("Virtual".to_owned())).expect_err("upper case");
        let text = "AWS_S3_ADDRESSING_STYLE is 'Virtual', but must be 'path', 'virtual' or 'auto'";
        assert_eq!(error, Status::invalid(text));
        for endpoint in ["http://127.0.0.1:9000", "https://[::1]"] {
            let error = Addressing::Virtual.form("models", Some(endpoint)).expect_err(endpoint);
            assert!(error.to_string().contains("give the service's host name"), "{error}");
        }
    }
}
