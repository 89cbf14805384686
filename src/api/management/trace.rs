//! The trace extension: the settings of traces, for all models and for single ones (contract/http.md section 3,
//! contract/grpc.md section 6).

use crate::api::error;
use crate::repository::ModelMap;
use nereid_memory::{Gather, Pool, Slice};
use nereid_observe::trace::{Change, Field, Levels, Refused, SettingView, Traces};
use nereid_protocol::http1::Response;
use nereid_protocol::json::{AccessError, Document, GatherSink, Value, Writer};
use nereid_request::Status;
use nereid_wire::inference as wire;
use wire::trace_setting_request::SettingValue as Given;
use wire::trace_setting_response::SettingValue as ShownValue;

/// Bytes of a request's JSON; its settings take far less.
const BODY_BYTES_MAX: usize = 64 * 1024;

const FILE: &str = "trace_file";
const LEVEL: &str = "trace_level";
const RATE: &str = "trace_rate";
const COUNT: &str = "trace_count";
const LOG_FREQUENCY: &str = "log_frequency";
const MODE: &str = "trace_mode";

/// `GET …/trace/setting` without a body, `POST` with one.
pub(super) fn http(
    traces: &Traces,
    models: &ModelMap,
    model: Option<&[u8]>,
    body: Option<&Slice>,
    pool: &Pool,
) -> Result<Response, Status> {
    let model = traced_model(models, model)?;
    if let Some(body) = body {
        let change = change_of_json(body)?;
        if !change.is_empty() {
            traces.change(model.as_deref(), &change).map_err(refused)?;
        }
    }
    Ok(error::reply(200, error::JSON, to_json(&traces.shown(model.as_deref()), pool)))
}

/// The RPC `TraceSetting`.
pub(super) fn grpc(
    traces: &Traces,
    models: &ModelMap,
    request: &wire::TraceSettingRequest,
) -> Result<wire::TraceSettingResponse, Status> {
    let name = request.model_name.as_bytes();
    let model = traced_model(models, (!name.is_empty()).then_some(name))?;
    let change = change_of_message(request)?;
    if !change.is_empty() {
        traces.change(model.as_deref(), &change).map_err(refused)?;
    }
    Ok(to_message(&traces.shown(model.as_deref())))
}

/// Its name, if it is ready.
fn traced_model(models: &ModelMap, model: Option<&[u8]>) -> Result<Option<String>, Status> {
    let Some(name) = model else { return Ok(None) };
    match models.lookup(name, None) {
        Ok(model) => Ok(Some(model.name.clone())),
        Err(_) => {
            let name = String::from_utf8_lossy(name);
            Err(Status::invalid(format!("Request for unknown model : {name}")))
        }
    }
}

fn refused(refused: Refused) -> Status {
    match refused {
        Refused::Invalid(_) => Status::invalid(refused.to_string()),
        Refused::TooMany(_) => Status::unavailable(refused.to_string()),
        Refused::Thread(_) => Status::internal(refused.to_string()),
    }
}

fn no_other_file() -> Status {
    Status::unsupported("trace file location can not be updated through network protocol")
}

/// What differs between the protocols.
#[derive(Debug, Clone, Copy)]
enum Wording {
    Http,
    Grpc,
}

impl Wording {
    fn count_too_low(self, text: &str) -> Status {
        let blank = match self {
            Wording::Http => "",
            Wording::Grpc => " ",
        };
        Status::invalid(format!("Unable to parse '{COUNT}'. Expecting value >= -1, got:{blank}{text}"))
    }
}

/// A number as C++'s `stoi` reads it: blanks, a sign, digits, and whatever follows.
fn number(key: &str, text: &str, range: (i64, i64)) -> Result<i32, Status> {
    let trimmed = text.trim_ascii_start();
    let (is_negative, digits) = match trimmed.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let digits = digits.get(..count).unwrap_or_default();
    if digits.is_empty() {
        return Err(Status::invalid(format!("Unable to parse '{key}', got: {text}")));
    }
    let number = digits.iter().try_fold(0i64, |number, digit| {
        number.checked_mul(10)?.checked_add(i64::from(digit - b'0')).filter(|number| *number <= 1 << 31)
    });
    let number = number.map(|number| if is_negative { -number } else { number });
    number.and_then(|number| i32::try_from(number).ok()).ok_or_else(|| {
        let (low, high) = range;
        Status::invalid(format!("Unable to parse '{key}', value is out of range [ {low}, {high} ], got: {text}"))
    })
}

/// A rate or a frequency; one below 0 is a large one.
fn unsigned(key: &str, text: &str) -> Result<u32, Status> {
    number(key, text, (0, i64::from(u32::MAX))).map(|number| number as u32)
}

fn count(text: &str, wording: Wording) -> Result<i32, Status> {
    match number(COUNT, text, (-1, i64::from(i32::MAX)))? {
        count if count < -1 => Err(wording.count_too_low(text)),
        count => Ok(count),
    }
}

/// Levels by name; names that there are not do not count.
fn levels<T: AsRef<[u8]>>(names: &[T]) -> Result<Levels, Status> {
    let mut levels = Levels::OFF;
    for name in names {
        match name.as_ref() {
            b"OFF" if names.len() > 1 => {
                return Err(Status::invalid("Expect only one trace level 'OFF' is specified"));
            }
            b"TIMESTAMPS" => levels = levels.and(Levels::TIMESTAMPS),
            b"TENSORS" => levels = levels.and(Levels::TENSORS),
            _ => {}
        }
    }
    Ok(levels)
}

fn change_of_json(body: &Slice) -> Result<Change, Status> {
    if body.len() > BODY_BYTES_MAX {
        let length = body.len();
        let text = format!("trace settings of {length} bytes exceed the limit of {BODY_BYTES_MAX} bytes");
        return Err(Status::invalid(text));
    }
    let document = Document::parse(body.clone()).map_err(|error| Status::internal(error.to_string()))?;
    let root = document.root();
    let wrong = |error: AccessError| Status::internal(error.to_string());
    if root.find(FILE).is_some() {
        return Err(no_other_file());
    }
    let mut change = Change::default();
    if let Some(value) = root.find(LEVEL) {
        change.levels = if value.is_null() {
            Field::Clear
        } else {
            let names: Result<Vec<_>, _> = value.elements().map_err(wrong)?.map(Value::as_str).collect();
            Field::Set(levels(&names.map_err(wrong)?)?)
        };
    }
    fn field<T>(root: Value<'_>, key: &str, read: impl FnOnce(&str) -> Result<T, Status>) -> Result<Field<T>, Status> {
        match root.find(key) {
            None => Ok(Field::Keep),
            Some(value) if value.is_null() => Ok(Field::Clear),
            Some(value) => {
                let text = value.as_str().map_err(|error| Status::internal(error.to_string()))?;
                read(&String::from_utf8_lossy(&text)).map(Field::Set)
            }
        }
    }
    change.rate = field(root, RATE, |text| unsigned(RATE, text))?;
    change.count = field(root, COUNT, |text| count(text, Wording::Http))?;
    change.log_frequency = field(root, LOG_FREQUENCY, |text| unsigned(LOG_FREQUENCY, text))?;
    Ok(change)
}

fn change_of_message(request: &wire::TraceSettingRequest) -> Result<Change, Status> {
    if request.settings.contains_key(FILE) {
        return Err(no_other_file());
    }
    let mut change = Change::default();
    if let Some(given) = request.settings.get(LEVEL) {
        change.levels = if given.value.is_empty() { Field::Clear } else { Field::Set(levels(&given.value)?) };
    }
    fn field<T>(
        given: Option<&Given>,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, Status>,
    ) -> Result<Field<T>, Status> {
        match given.map(|given| &given.value[..]) {
            None => Ok(Field::Keep),
            Some([]) => Ok(Field::Clear),
            Some([text]) => read(text).map(Field::Set),
            Some(_) => Err(Status::invalid(format!("expect only 1 value for '{key}'"))),
        }
    }
    let find = |key: &str| request.settings.get(key);
    change.rate = field(find(RATE), RATE, |text| unsigned(RATE, text))?;
    change.count = field(find(COUNT), COUNT, |text| count(text, Wording::Grpc))?;
    change.log_frequency = field(find(LOG_FREQUENCY), LOG_FREQUENCY, |text| unsigned(LOG_FREQUENCY, text))?;
    Ok(change)
}

/// Names and values behind the levels, in the order of the read-back.
fn members(shown: &SettingView) -> Vec<(&str, String)> {
    let mut members = vec![(RATE, shown.rate.to_string()), (COUNT, shown.count.to_string())];
    if let Some((log_frequency, file)) = &shown.files {
        members.push((LOG_FREQUENCY, log_frequency.to_string()));
        members.push((FILE, file.clone()));
    }
    members.push((MODE, shown.mode.to_owned()));
    members.extend(shown.more.iter().map(|(key, value)| (&**key, value.clone())));
    members
}

fn to_json(shown: &SettingView, pool: &Pool) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key(LEVEL);
    writer.begin_array();
    shown.levels.iter().for_each(|level| writer.string(level));
    writer.end_array();
    for (key, value) in members(shown) {
        writer.key(key);
        writer.string(value);
    }
    writer.end_object();
    body
}

fn to_message(shown: &SettingView) -> wire::TraceSettingResponse {
    let entry = |key: &str, value: Vec<String>| (key.to_owned(), ShownValue { value });
    let levels = shown.levels.iter().map(|&level| level.to_owned()).collect();
    let members = members(shown);
    let members = members.into_iter().map(|(key, value)| entry(key, vec![value]));
    wire::TraceSettingResponse { settings: std::iter::once(entry(LEVEL, levels)).chain(members).collect() }
}

#[cfg(test)]
mod tests;
