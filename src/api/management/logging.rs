//! The logging extension: what is logged, shown and changed while the server runs (contract/http.md section 3,
//! contract/grpc.md section 6).
//!
//! The log is the process's, not a server's, so a change is effective at once for every thread. Settings are applied
//! one after the other, and those before a wrong one stick: as in Triton.

use crate::api::error;
use nereid_memory::{Gather, Pool, Slice};
use nereid_observe::log::{self, LogFormat, LogSettings, Logger};
use nereid_protocol::http1::Response;
use nereid_protocol::json::{Document, GatherSink, Value, Writer};
use nereid_request::Status;
use nereid_wire::inference as wire;
use wire::log_settings_request::SettingValue as Given;
use wire::log_settings_request::setting_value::ParameterChoice as GivenChoice;
use wire::log_settings_response::SettingValue as Shown;
use wire::log_settings_response::setting_value::ParameterChoice as ShownChoice;

/// Bytes of a request's JSON; six settings take far less.
const BODY_BYTES_MAX: usize = 64 * 1024;

const LOG_FILE: &str = "log_file";
const SEVERITIES: [&str; 3] = ["log_info", "log_warning", "log_error"];
const LOG_VERBOSE_LEVEL: &str = "log_verbose_level";
const LOG_FORMAT: &str = "log_format";

/// `GET /v2/logging` without a body, `POST` with one.
pub(super) fn http(body: Option<&Slice>, pool: &Pool) -> Result<Response, Status> {
    let logger = logger()?;
    if let Some(body) = body {
        change_by_json(logger, body)?;
    }
    Ok(error::reply(200, error::JSON, to_json(&logger.settings(), pool)))
}

/// The RPC `LogSettings`.
pub(super) fn grpc(request: &wire::LogSettingsRequest) -> Result<wire::LogSettingsResponse, Status> {
    let logger = logger()?;
    change_by_message(logger, request)?;
    Ok(to_message(&logger.settings()))
}

fn logger() -> Result<&'static Logger, Status> {
    log::installed().ok_or_else(|| Status::unavailable("this process has no log of its own"))
}

fn no_other_file() -> Status {
    Status::unsupported("log file location can not be updated through network protocol")
}

/// Switches the severity that `key` names.
fn set_severity(logger: &Logger, key: &str, shows: bool) {
    match key {
        "log_info" => logger.set_info(shows),
        "log_warning" => logger.set_warning(shows),
        _ => logger.set_error(shows),
    }
}

/// Triton keeps the level in a signed int of 32 bits, in which a negative level is none.
fn verbose_level(given: u64) -> u32 {
    u32::try_from(given & u64::from(u32::MAX)).map_or(0, |level| i32::try_from(level).map_or(0, i32::unsigned_abs))
}

fn change_by_json(logger: &Logger, body: &Slice) -> Result<(), Status> {
    if body.len() > BODY_BYTES_MAX {
        let length = body.len();
        return Err(Status::invalid(format!(
            "log settings of {length} bytes exceed the limit of {BODY_BYTES_MAX} bytes"
        )));
    }
    let document = Document::parse(body.clone()).map_err(|error| Status::internal(error.to_string()))?;
    let find = |key: &str| document.root().find(key).filter(|value: &Value<'_>| !value.is_null());
    let wrong = |error: nereid_protocol::json::AccessError| Status::internal(error.to_string());
    if find(LOG_FILE).is_some() {
        return Err(no_other_file());
    }
    for key in SEVERITIES {
        if let Some(value) = find(key) {
            set_severity(logger, key, value.as_bool().map_err(wrong)?);
        }
    }
    if let Some(value) = find(LOG_VERBOSE_LEVEL) {
        logger.set_verbose_level(verbose_level(value.as_u64().map_err(wrong)?));
    }
    if let Some(value) = find(LOG_FORMAT) {
        let given = value.as_str().map_err(wrong)?;
        let given = String::from_utf8_lossy(&given);
        let unknown = || Status::unavailable(format!("invalid argument for --log_format, got: {given}"));
        logger.set_format(LogFormat::from_name(&given).ok_or_else(unknown)?);
    }
    Ok(())
}

fn to_json(settings: &LogSettings, pool: &Pool) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key(LOG_FILE);
    writer.string(file_of(settings));
    for (key, shows) in severities_of(settings) {
        writer.key(key);
        writer.bool(shows);
    }
    writer.key(LOG_VERBOSE_LEVEL);
    writer.uint(u64::from(settings.verbose_level));
    writer.key(LOG_FORMAT);
    writer.string(settings.format.name());
    writer.end_object();
    body
}

fn change_by_message(logger: &Logger, request: &wire::LogSettingsRequest) -> Result<(), Status> {
    let expected = |what: &str, key: &str| Status::invalid(format!("expect {what} for '{key}'"));
    let find = |key: &str| request.settings.get(key).map(|given: &Given| given.parameter_choice.as_ref());
    if find(LOG_FILE).is_some() {
        return Err(no_other_file());
    }
    for key in SEVERITIES {
        match find(key) {
            None => {}
            Some(Some(GivenChoice::BoolParam(shows))) => set_severity(logger, key, *shows),
            Some(_) => return Err(expected("boolean", key)),
        }
    }
    match find(LOG_VERBOSE_LEVEL) {
        None => {}
        Some(Some(GivenChoice::Uint32Param(level))) => logger.set_verbose_level(verbose_level(u64::from(*level))),
        // Though it is an unsigned one.
        Some(_) => return Err(expected("int32", LOG_VERBOSE_LEVEL)),
    }
    match find(LOG_FORMAT) {
        None => {}
        Some(Some(GivenChoice::StringParam(given))) => {
            let unknown = || Status::invalid(format!("invalid argument for log_format, got: {given}"));
            logger.set_format(LogFormat::from_name(given).ok_or_else(unknown)?);
        }
        Some(_) => return Err(expected("string", LOG_FORMAT)),
    }
    Ok(())
}

fn to_message(settings: &LogSettings) -> wire::LogSettingsResponse {
    let mut shown: Vec<(&str, ShownChoice)> =
        severities_of(settings).map(|(key, shows)| (key, ShownChoice::BoolParam(shows))).to_vec();
    shown.push((LOG_FILE, ShownChoice::StringParam(file_of(settings))));
    shown.push((LOG_VERBOSE_LEVEL, ShownChoice::Uint32Param(settings.verbose_level)));
    shown.push((LOG_FORMAT, ShownChoice::StringParam(settings.format.name().to_owned())));
    let entry = |(key, choice): (&str, ShownChoice)| (key.to_owned(), Shown { parameter_choice: Some(choice) });
    wire::LogSettingsResponse { settings: shown.into_iter().map(entry).collect() }
}

fn severities_of(settings: &LogSettings) -> [(&'static str, bool); 3] {
    let [info, warning, error] = SEVERITIES;
    [(info, settings.info), (warning, settings.warning), (error, settings.error)]
}

/// Empty where there is none.
fn file_of(settings: &LogSettings) -> String {
    settings.file.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
