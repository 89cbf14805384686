//! The settings of `--cache-config`: which cache to open, and how. Names of settings and error texts are those of
//!   Triton's
//! cache libraries.
//!
//! A built-in cache wins over a library of the same name unless its setting `library` names a file; that setting is not
//! passed to a library. Every other name is that of a library, with any settings; `key=triton` is ours with all of
//! them.

use std::collections::BTreeMap;

use tracing::warn;

use super::redis::Redis;
use super::{Cache, HashSecret, KeyForm, LocalCache, OpenLibrary};
use nereid_request::Status;

/// The built-in caches.
const BUILT_IN: [&str; 2] = ["local", "redis"];
/// The setting of a built-in cache that names the library to be used in its place.
const LIBRARY: &str = "library";
/// The setting that selects Triton's key.
const TRITONS_KEY: (&str, &str) = ("key", "triton");

pub fn open(
    name: &str,
    settings: &[(String, String)],
    library: OpenLibrary<'_>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Cache, Status> {
    let Described { code, form, settings } = Described::of(name, settings);
    match (code, name) {
        (Code::BuiltIn, "local") => {
            Cache::over(Box::new(LocalCache::new(bytes(&settings)?)), HashSecret::random(), form)
        }
        (Code::BuiltIn, _) => Cache::over(Box::new(Redis::open(&settings, environment)?), HashSecret::SHARED, form),
        // Where a library stores entries, and which other processes read them, is not known here.
        (Code::Library(file), _) => Cache::over(library(name, file, &settings)?, HashSecret::SHARED, form),
    }
}

/// The code of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code<'a> {
    BuiltIn,
    /// The file that a setting names, else the one of the usual name.
    Library(Option<&'a str>),
}

/// What the settings of a cache say, before it is opened.
pub struct Described<'a> {
    pub code: Code<'a>,
    pub form: KeyForm,
    /// Those for the cache itself.
    settings: BTreeMap<&'a str, &'a str>,
}

impl<'a> Described<'a> {
    pub fn of(name: &str, settings: &'a [(String, String)]) -> Described<'a> {
        let pairs = settings.iter().map(|(key, value)| (&**key, &**value));
        // Matched exactly: to the cache 'redis', and to libraries, another `key` may mean something else.
        let is_form = |pair: &(&str, &str)| *pair == TRITONS_KEY;
        let form = if pairs.clone().any(|pair| is_form(&pair)) { KeyForm::Triton } else { KeyForm::Request };
        // The last one of a name counts.
        let mut settings: BTreeMap<&str, &str> = pairs.filter(|pair| !is_form(pair)).collect();
        let is_built_in = BUILT_IN.contains(&name);
        let code = match if is_built_in { settings.remove(LIBRARY) } else { None } {
            None if is_built_in => Code::BuiltIn,
            file => Code::Library(file),
        };
        Described { code, form, settings }
    }

    /// The error of [`open`], as far as it shows without opening the cache.
    pub fn check(&self, name: &str) -> Result<(), Status> {
        let is_local = (self.code, name) == (Code::BuiltIn, "local");
        if is_local { bytes(&self.settings).map(|_| ()) } else { Ok(()) }
    }
}

/// The size of the cache `local`.
fn bytes(settings: &BTreeMap<&str, &str>) -> Result<usize, Status> {
    let Some(size) = settings.get("size") else {
        let text = "Failed to initialize LocalCache: config didn't contain a valid 'size' field.";
        return Err(Status::invalid(text));
    };
    for key in settings.keys().filter(|key| **key != "size") {
        warn!("the response cache 'local' has no setting '{key}'");
    }
    local_size(size).map_err(|why| Status::internal(format!("Failed to initialize LocalCache: {why}")))
}

/// Parses like C++'s stoull: blanks, a sign, digits, and whatever follows them. The texts are those of its standard
/// library, and of the allocator that Triton passes the size to.
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
    use super::super::Store;
    use super::*;

    /// Returns a description of what it would open.
    fn library(name: &str, file: Option<&str>, settings: &BTreeMap<&str, &str>) -> Result<Box<dyn Store>, Status> {
        Err(Status::unsupported(format!("{name} {file:?} {settings:?}")))
    }

    fn error(name: &str, settings: &[(&str, &str)]) -> String {
        let settings: Vec<_> = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        match open(name, &settings, &library, |_| None) {
            Ok(_) => "opened".to_owned(),
            Err(status) => format!("{} - {}", status.code.name(), status.message),
        }
    }

    /// With the official server's answers.
    #[test]
    fn errors_have_tritons_texts() {
        let local = |text: &str| format!("Internal - Failed to initialize LocalCache: {text}");
        let no_size = "Invalid argument - Failed to initialize LocalCache: config didn't contain a valid 'size' field.";
        let no_address = "Invalid argument - Failed to initialize RedisCache, didn't specify address. Must at a \
                          minimum specify 'host' and 'port' in the configuration - e.g. tritonserver --cache-config \
                          redis,host=redis --cache-config redis,port=6379 --model-repository=/models ...";
        let none = local("Could not initialize buffer in basic_managed_external_buffer constructor");
        /// Cache, settings, outcome.
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
        let cases: [Case<'_>; 12] = [
            ("local", &[("size", "1048576"), ("key", "triton")], "opened"),
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

    #[test]
    fn a_library_is_selected_by_another_name_or_by_its_file() {
        let unsupported = |text: &str| format!("Unsupported - {text}");
        /// Cache, settings, outcome.
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
        let cases: [Case<'_>; 6] = [
            // The form of the key is ours; another setting of that name is its own.
            ("mine", &[("key", "triton")], "mine None {}"),
            ("mine", &[("key", "k"), ("key", "triton")], r#"mine None {"key": "k"}"#),
            ("mine", &[("size", "1"), ("size", "2")], r#"mine None {"size": "2"}"#),
            // A setting of its own, whatever it means there.
            ("mine", &[("library", "x")], r#"mine None {"library": "x"}"#),
            ("local", &[("library", "a.so"), ("size", "1")], r#"local Some("a.so") {"size": "1"}"#),
            ("redis", &[("library", "b.so"), ("library", "a.so")], r#"redis Some("a.so") {}"#),
        ];
        for (name, settings, expected) in cases {
            assert_eq!(error(name, settings), unsupported(expected), "{name} {settings:?}");
        }
    }
}
