//! Parses a repository's location: a path, or one of the schemes for buckets (contract/model_config.md section 4).

use object_store::path::Path as Key;

use nereid_request::Status;

/// A bucket (a container, in Azure's terms) and a prefix in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketLocation {
    pub provider: Provider,
    pub bucket: String,
    /// The prefix of all keys of the repository; empty for the whole bucket.
    pub prefix: Key,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// `endpoint`: the URL of a private S3 service; `None`: Amazon's.
    S3 {
        endpoint: Option<String>,
    },
    Google,
    Azure {
        account: String,
    },
}

impl Provider {
    /// The scheme, which is also the name of the provider's part of a credential file.
    pub fn scheme(&self) -> &'static str {
        match self {
            Provider::S3 { .. } => "s3",
            Provider::Google => "gs",
            Provider::Azure { .. } => "as",
        }
    }

    /// The variable that names the directory for copies of models.
    pub fn mount_variable(&self) -> &'static str {
        match self {
            Provider::S3 { .. } => "TRITON_AWS_MOUNT_DIRECTORY",
            Provider::Google => "TRITON_GCS_MOUNT_DIRECTORY",
            Provider::Azure { .. } => "TRITON_AZURE_MOUNT_DIRECTORY",
        }
    }
}

const AZURE_HOST_SUFFIX: &str = ".blob.core.windows.net";

/// Parses a location; `None` is a directory of this host.
pub fn parse(location: &str) -> Result<Option<BucketLocation>, Status> {
    let place = if let Some(rest) = location.strip_prefix("s3://") {
        s3(location, rest)?
    } else if let Some(rest) = location.strip_prefix("gs://") {
        let (bucket, prefix) = bucket_and_prefix(location, rest)?;
        BucketLocation { provider: Provider::Google, bucket, prefix }
    } else if let Some(rest) = location.strip_prefix("as://") {
        azure(location, rest)?
    } else {
        return Ok(None);
    };
    Ok(Some(place))
}

/// `bucket/…`, `host:port/bucket/…`, `http://host[:port]/bucket/…` or `https://host[:port]/bucket/…`. Without a
/// scheme of its own a private service is accessed over HTTP, as Triton does.
fn s3(location: &str, rest: &str) -> Result<BucketLocation, Status> {
    let (scheme, rest) = match (rest.strip_prefix("https://"), rest.strip_prefix("http://")) {
        (Some(rest), _) => (Some("https"), rest),
        (_, Some(rest)) => (Some("http"), rest),
        _ => (None, rest),
    };
    let path = rest;
    let rest = rest.trim_start_matches('/');
    if rest.is_empty() {
        return Err(Status::invalid(format!("Invalid bucket name: '{path}'")));
    }
    let (first, after) = rest.split_once('/').unwrap_or((rest, ""));
    let is_host = scheme.is_some() || first.contains(':');
    if !is_host {
        let (bucket, prefix) = bucket_and_prefix(location, rest)?;
        return Ok(BucketLocation { provider: Provider::S3 { endpoint: None }, bucket, prefix });
    }
    // The text before an `@` may be a password: such a location is not repeated.
    if first.contains('@') {
        let text = "the location of an s3:// repository may not hold a user name or password: give credentials in \
                    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        return Err(Status::invalid(text));
    }
    if !is_authority(first) {
        return Err(Status::invalid(format!("'{first}' is not a host and port, in the repository '{location}'")));
    }
    let endpoint = Some(format!("{}://{first}", scheme.unwrap_or("http")));
    let (bucket, prefix) = bucket_and_prefix(location, after)?;
    Ok(BucketLocation { provider: Provider::S3 { endpoint }, bucket, prefix })
}

/// `account/container/…`, the account with or without the host name that follows from it.
fn azure(location: &str, rest: &str) -> Result<BucketLocation, Status> {
    // A query is a token that grants access. It is ignored, as in Triton, and not repeated.
    let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
    let shown = location.split_once('?').map_or(location, |(before, _)| before);
    let rest = rest.trim_start_matches('/');
    let (host, after) = rest.split_once('/').unwrap_or((rest, ""));
    let account = host.strip_suffix(AZURE_HOST_SUFFIX).unwrap_or(host);
    let wrong = |what: &str| Err(Status::internal(format!("Invalid azure storage path: {shown}: no {what} name")));
    if account.is_empty() || !account.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return wrong("account");
    }
    if after.trim_start_matches('/').is_empty() {
        return wrong("container");
    }
    let (bucket, prefix) = bucket_and_prefix(shown, after)?;
    Ok(BucketLocation { provider: Provider::Azure { account: account.to_owned() }, bucket, prefix })
}

fn bucket_and_prefix(location: &str, rest: &str) -> Result<(String, Key), Status> {
    let mut segments = rest.split('/').filter(|segment| !segment.is_empty());
    let Some(bucket) = segments.next() else {
        return Err(Status::internal(format!("No bucket name found in path: {location}")));
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'$');
    if matches!(bucket, "." | "..") || !bucket.bytes().all(is_plain) {
        return Err(Status::invalid(format!("Invalid bucket name: '{bucket}', in the repository '{location}'")));
    }
    let prefix = segments.collect::<Vec<_>>().join("/");
    let prefix = Key::parse(&prefix).map_err(|_| {
        let text = "has a part that is '.' or '..', or a control character";
        Status::invalid(format!("the repository '{location}' {text}"))
    })?;
    Ok((bucket.to_owned(), prefix))
}

/// `name`, `name:port`, `[v6]` or `[v6]:port`.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inner, after)) => {
            let is_v6 = inner.parse::<std::net::Ipv6Addr>().is_ok();
            if !is_v6 || !(after.is_empty() || after.starts_with(':')) {
                return false;
            }
            ("v6", after.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let has_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    !host.is_empty() && host.bytes().all(is_plain) && has_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(location: &str) -> (Provider, String, String) {
        let place = parse(location).unwrap_or_else(|error| panic!("{location}: {error}")).expect("a bucket");
        (place.provider, place.bucket, place.prefix.to_string())
    }

    fn s3(endpoint: Option<&str>) -> Provider {
        Provider::S3 { endpoint: endpoint.map(str::to_owned) }
    }

    fn azure(account: &str) -> Provider {
        Provider::Azure { account: account.to_owned() }
    }

    #[test]
    fn every_form_of_a_location_names_provider_bucket_and_prefix() {
        let table = [
            ("s3://bucket", s3(None), "bucket", ""),
            ("s3://bucket/", s3(None), "bucket", ""),
            ("s3://bucket/a/b", s3(None), "bucket", "a/b"),
            ("s3:///bucket//a///b//", s3(None), "bucket", "a/b"),
            ("s3://host:9000/bucket", s3(Some("http://host:9000")), "bucket", ""),
            ("s3://10.0.0.1:9000/bucket/a", s3(Some("http://10.0.0.1:9000")), "bucket", "a"),
            ("s3://http://host:9000/bucket/a/b/", s3(Some("http://host:9000")), "bucket", "a/b"),
            ("s3://https://minio.local:443/bucket/a", s3(Some("https://minio.local:443")), "bucket", "a"),
            ("s3://https://minio.local/bucket/a", s3(Some("https://minio.local")), "bucket", "a"),
            ("s3://http://[::1]:9000/bucket", s3(Some("http://[::1]:9000")), "bucket", ""),
            ("gs://bucket/models", Provider::Google, "bucket", "models"),
            ("gs://bucket", Provider::Google, "bucket", ""),
            ("as://account/container/a/b", azure("account"), "container", "a/b"),
            ("as://account.blob.core.windows.net/container/", azure("account"), "container", ""),
            ("as://account/container/a?sv=token", azure("account"), "container", "a"),
            ("as://account/$web/a", azure("account"), "$web", "a"),
        ];
        for (location, provider, bucket, prefix) in table {
            assert_eq!(place(location), (provider, bucket.to_owned(), prefix.to_owned()), "{location}");
        }
    }

    #[test]
    fn paths_are_no_buckets() {
        for location in ["/models", "models", "", "./s3://bucket", "S3://bucket", "s3:/bucket", "file:///models"] {
            assert_eq!(parse(location), Ok(None), "{location}");
        }
    }

    #[test]
    fn a_location_that_names_no_bucket_or_leads_out_of_it_is_refused() {
        let table = [
            ("s3://", "Invalid bucket name: ''"),
            ("s3:////", "Invalid bucket name: '//'"),
            ("s3://https://", "Invalid bucket name: ''"),
            ("s3://bu cket/a", "Invalid bucket name: 'bu cket', in the repository 's3://bu cket/a'"),
            ("gs://../a", "Invalid bucket name: '..', in the repository 'gs://../a'"),
            ("s3://host:port/bucket", "'host:port' is not a host and port, in the repository 's3://host:port/bucket'"),
            ("s3://host:0/bucket", "'host:0' is not a host and port, in the repository 's3://host:0/bucket'"),
            ("s3://host:70000/b", "'host:70000' is not a host and port, in the repository 's3://host:70000/b'"),
        ];
        for (location, text) in table {
            let error = parse(location).expect_err(location);
            assert_eq!(error, Status::invalid(text), "{location}");
        }
        let table = [
            ("gs://", "No bucket name found in path: gs://"),
            ("s3://http://host:9000", "No bucket name found in path: s3://http://host:9000"),
            ("as://account", "Invalid azure storage path: as://account: no container name"),
            ("as://", "Invalid azure storage path: as://: no account name"),
            ("as://a_b/c", "Invalid azure storage path: as://a_b/c: no account name"),
        ];
        for (location, text) in table {
            assert_eq!(parse(location), Err(Status::internal(text)), "{location}");
        }
        for location in ["s3://bucket/a/../b", "gs://bucket/./a", "as://account/container/\u{1}"] {
            let error = parse(location).expect_err(location);
            assert!(error.message.starts_with("the repository '"), "{location}: {error}");
        }
    }

    #[test]
    fn what_may_be_a_secret_is_not_repeated() {
        let error = parse("s3://http://me:hush@host:9000/bucket").expect_err("a user name");
        assert!(!error.message.contains("hush"), "{error}");
        let error = parse("as://account?sig=hush").expect_err("no container");
        assert!(!error.message.contains("hush"), "{error}");
    }
}
