//! `--cache-config`: which cache, and what its settings say. Names of settings and error texts are those of Triton's
//! cache libraries.

use std::collections::BTreeMap;
use std::path::Path;

use tracing::warn;

use super::redis::Redis;
use super::{Cache, Local, Secret};
use crate::request::Status;

pub fn open(
    name: &str,
    settings: &[(String, String)],
    directory: &Path,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Cache, Status> {
    // The last one of a name counts.
    let settings: BTreeMap<&str, &str> = settings.iter().map(|(key, value)| (&**key, &**value)).collect();
    match name {
        "local" => Cache::over(Box::new(local(&settings)?), Secret::random()),
        "redis" => Cache::over(Box::new(Redis::open(&settings, environment)?), Secret::SHARED),
        other => Err(Status::invalid(format!(
            "unable to find 'libtritoncache_{other}.so' for cache. Searched: {}",
            directory.display()
        ))),
    }
}

fn local(settings: &BTreeMap<&str, &str>) -> Result<Local, Status> {
    let Some(size) = settings.get("size") else {
        let text = "Failed to initialize LocalCache: config didn't contain a valid 'size' field.";
        return Err(Status::invalid(text));
    };
    for key in settings.keys().filter(|key| **key != "size") {
        warn!("the response cache 'local' has no setting '{key}'");
    }
    local_size(size).map(Local::new).map_err(|why| Status::internal(format!("Failed to initialize LocalCache: {why}")))
}

/// As C++'s stoull reads it: blanks, a sign, digits, and whatever follows them. The texts are those of its standard
/// library, and of the allocator that Triton gives the size to.
fn local_size(text: &str) -> Result<usize, &'static str> {
    const NO_NUMBER: &str = "stoull";
    const TOO_LARGE: &str = "failed to allocate buffer";
    let trimmed = text.trim_ascii_start();
    let (is_negative, digits) = match trimmed.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let end = digits.find(|char: char| !char.is_ascii_digit()).unwrap_or(digits.len());
    let size: u64 = digits[..end].parse().map_err(|_| NO_NUMBER)?;
    match size {
        0 => Err("Could not initialize buffer in basic_managed_external_buffer constructor"),
        _ if is_negative => Err(TOO_LARGE),
        size => isize::try_from(size).map(isize::unsigned_abs).map_err(|_| TOO_LARGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, settings: &[(&str, &str)]) -> String {
        let settings: Vec<_> = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        match open(name, &settings, Path::new("/opt/tritonserver/caches"), |_| None) {
            Ok(_) => "opened".to_owned(),
            Err(status) => format!("{} - {}", status.code.name(), status.message),
        }
    }

    /// As the official server answers.
    #[test]
    fn what_is_wrong_is_said_in_tritons_words() {
        let local = |text: &str| format!("Internal - Failed to initialize LocalCache: {text}");
        let no_size = "Invalid argument - Failed to initialize LocalCache: config didn't contain a valid 'size' field.";
        let no_address = "Invalid argument - Failed to initialize RedisCache, didn't specify address. Must at a \
                          minimum specify 'host' and 'port' in the configuration - e.g. tritonserver --cache-config \
                          redis,host=redis --cache-config redis,port=6379 --model-repository=/models ...";
        let unknown = "Invalid argument - unable to find 'libtritoncache_nosuch.so' for cache. Searched: \
             /opt/tritonserver/caches";
        let none = local("Could not initialize buffer in basic_managed_external_buffer constructor");
        /// Cache, settings, outcome.
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
        let cases: [Case<'_>; 12] = [
            ("nosuch", &[("size", "1")], unknown),
            ("local", &[("foo", "1")], no_size),
            ("local", &[("size", "abc")], &local("stoull")),
            ("local", &[("size", "99999999999999999999")], &local("stoull")),
            ("local", &[("size", "-1")], &local("failed to allocate buffer")),
            ("local", &[("size", "18446744073709551615")], &local("failed to allocate buffer")),
            ("local", &[("size", "0")], &none),
            ("local", &[("size", "abc"), ("size", " +1048576x")], "opened"),
            ("local", &[("size", "1048576"), ("foo", "1")], "opened"),
            ("redis", &[], no_address),
            ("redis", &[("host", "h")], no_address),
            ("redis", &[("port", "1")], no_address),
        ];
        for (name, settings, expected) in cases {
            assert_eq!(error(name, settings), expected, "{name} {settings:?}");
        }
    }
}
