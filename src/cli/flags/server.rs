//! Flags of the server as a whole, and of its log.

use super::{Action, Flag, Group};
use crate::cli::values::{Value, ValueError};
use nereid_observe::log::LogFormat;

const SERVER: Group = Group("Server");
const LOGGING: Group = Group("Logging");

pub static FLAGS: &[Flag] = &[
    Flag { name: "help", group: SERVER.0, value: None, help: "Print this text and exit.", action: Action::Help },
    SERVER.set("id", "string", "Name of this server in its metadata. Default: triton.", |g, v| {
        g.options.server_id = v.text();
        Ok(())
    }),
    SERVER.set(
        "exit-timeout-secs",
        "integer",
        "Seconds that requests in flight may take to end when the server stops. Default: 30.",
        |g, v| v.at_least_zero().map(|given| g.options.exit_timeout_secs = given),
    ),
    LOGGING.set(
        "log-verbose",
        "integer",
        "Level up to which verbose messages appear; true is 1, false is 0. Default: 0.",
        |g, v| v.int_or_boolean().map(|given| g.options.log.verbose_level = given.max(0).unsigned_abs()),
    ),
    LOGGING.set("log-info", "boolean", "Whether info messages appear. Default: true.", |g, v| {
        v.boolean().map(|given| g.options.log.info = given)
    }),
    LOGGING.set("log-warning", "boolean", "Whether warnings appear. Default: true.", |g, v| {
        v.boolean().map(|given| g.options.log.warning = given)
    }),
    LOGGING.set("log-error", "boolean", "Whether errors appear. Default: true.", |g, v| {
        v.boolean().map(|given| g.options.log.error = given)
    }),
    LOGGING.set(
        "log-format",
        "default|ISO8601|json",
        "Format of the log's lines; json is Nereid's own, one object a line. Default: default.",
        |g, v| log_format(v).map(|given| g.options.log.format = given),
    ),
    LOGGING.set(
        "log-file",
        "path",
        "File that gets all messages instead of stdout and stderr; it is appended to.",
        |g, v| {
            g.options.log.file = Some(v.path()).filter(|path| !path.as_os_str().is_empty());
            Ok(())
        },
    ),
];

/// Case matters, unlike in the other words (contract/cli.md section 1).
fn log_format(value: Value<'_>) -> Result<LogFormat, ValueError> {
    LogFormat::from_name(&value.text()).ok_or(value.unknown_word())
}
