//! Lines that models write to the server's log.

use super::super::marshal::{Malformed, Value};

/// `TRITONSERVER_LogLevel`
const INFO: u32 = 0;
const WARNING: u32 = 1;
const ERROR: u32 = 2;
const VERBOSE: u32 = 3;

/// (level, file, line, text, request), with the position of the calling Python code, and the id of the request that it
/// executes, empty if there is none or several.
pub fn log(values: &[Value<'_>]) -> Result<(), Malformed> {
    let [level, file, line, text, request] = values else { return Err(Malformed::Form) };
    let (file, text, request) = (file.as_text()?, text.as_text()?, request.as_text()?);
    let file = file.rsplit('/').next().unwrap_or_default();
    // A frame without a line number has None.
    let line = line.optional(Value::as_int)?.unwrap_or(0u32);
    macro_rules! log {
        ($level:ident) => {
            tracing::event!(
                tracing::Level::$level,
                log.file = file,
                log.line = u64::from(line),
                request_id = &*request,
                "{text}"
            )
        };
    }
    match level.as_int()? {
        INFO => log!(INFO),
        WARNING => log!(WARN),
        ERROR => log!(ERROR),
        VERBOSE => log!(DEBUG),
        _ => return Err(Malformed::Form),
    }
    Ok(())
}
