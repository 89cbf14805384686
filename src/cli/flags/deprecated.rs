//! Flags that Triton calls deprecated: each use prints a warning on stderr that names its replacement.

use super::{Flag, Group};
use crate::cli::given::Given;
use crate::cli::options::CacheSetting;
use crate::cli::values::{Value, ValueError};

const DEPRECATED: Group = Group("Deprecated");

pub static FLAGS: &[Flag] = &[
    DEPRECATED.set(
        "strict-model-config",
        "boolean",
        "The reverse of completing configurations; see --disable-auto-complete-config. Default: false.",
        |g, v| {
            g.warn("'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.");
            v.boolean().map(|given| g.strict_model_config = Some(given))
        },
    ),
    DEPRECATED.set(
        "response-cache-byte-size",
        "integer",
        "The same as --cache-config=local,size=<integer>.",
        response_cache,
    ),
    DEPRECATED.set("trace-file", "path", "The same as --trace-config=triton,file=<path>.", |g, v| {
        superseded(g, v, "triton,file=<filepath>");
        g.trace.old.file = Some(v.text());
        Ok(())
    }),
    DEPRECATED.set(
        "trace-level",
        "OFF|TIMESTAMPS|TENSORS",
        "The same as --trace-config=level=<level>, but OFF switches off all levels.",
        |g, v| {
            superseded(g, v, "level=<OFF|TIMESTAMPS|TENSORS>");
            g.trace.add_old_level(v)
        },
    ),
    DEPRECATED.set("trace-rate", "integer", "The same as --trace-config=rate=<integer>.", |g, v| {
        superseded(g, v, "rate=<rate value>");
        v.int().map(|rate| g.trace.old.rate = Some(rate))
    }),
    DEPRECATED.set("trace-count", "integer", "The same as --trace-config=count=<integer>.", |g, v| {
        superseded(g, v, "count=<count value>");
        v.int().map(|count| g.trace.old.count = Some(count))
    }),
    DEPRECATED.set(
        "trace-log-frequency",
        "integer",
        "The same as --trace-config=triton,log-frequency=<integer>.",
        |g, v| {
            superseded(g, v, "triton,log-frequency=<log frequency value>");
            v.int().map(|frequency| g.trace.old.log_frequency = Some(frequency))
        },
    ),
];

fn superseded(given: &mut Given, value: Value<'_>, by: &str) {
    // The quote that is never closed is part of the text.
    given.warn(&format!(
        "'--{}' has been deprecated and will be removed in future releases. Please use '--trace-config {by} instead.",
        value.flag
    ));
}

fn response_cache(given: &mut Given, value: Value<'_>) -> Result<(), ValueError> {
    let bytes = value.int64()?;
    given.warn(&format!(
        "'--response-cache-byte-size' has been deprecated! This will default to the 'local' cache implementation with \
         the provided byte size for its config. Please use '--cache-config' instead. The equivalent --cache-config CLI \
         args would be: '--cache-config=local,size={bytes}'"
    ));
    given.response_cache = true;
    let (cache, key) = ("local".to_owned(), "size".to_owned());
    given.options.cache_settings.push(CacheSetting { cache, key, value: bytes.to_string() });
    Ok(())
}
