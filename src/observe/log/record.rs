//! One log message and its line (contract/cli.md section 5).

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::Duration;

use chrono::{DateTime, Datelike, Timelike, Utc};

/// Bytes of a message that are kept; a request can make messages of any length.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Bytes of an attached object that are kept: room for the table of a thousand models.
pub const MAX_OBJECT_BYTES: usize = 1024 * 1024;

/// The format of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `I1121 06:39:17.000123 4711 server.rs:12] `
    #[default]
    Default,
    /// `2026-11-21T06:39:17Z I 4711 server.rs:12] `
    Iso8601,
    /// `{"time":"2026-11-21T06:39:17.000123Z","level":"info","pid":4711,"file":"server.rs","line":12,"message":"…"}`,
    /// with `"request_id":"…"` and `"object":"…"` where there are such. Nereid's own.
    Json,
}

impl LogFormat {
    /// In the order of [`LogFormat::index`].
    const ALL: [LogFormat; 3] = [LogFormat::Default, LogFormat::Iso8601, LogFormat::Json];

    /// The name in `--log-format` and the logging API.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Default => "default",
            LogFormat::Iso8601 => "ISO8601",
            LogFormat::Json => "json",
        }
    }

    /// Case matters.
    pub fn from_name(name: &str) -> Option<LogFormat> {
        LogFormat::ALL.into_iter().find(|format| format.name() == name)
    }

    pub fn index(self) -> u8 {
        self as u8
    }

    pub fn from_index(index: u8) -> LogFormat {
        LogFormat::ALL.get(usize::from(index)).copied().unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
    /// Verbose messages, too.
    Info,
}

impl Severity {
    fn letter(self) -> char {
        match self {
            Severity::Error => 'E',
            Severity::Warning => 'W',
            Severity::Info => 'I',
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }

    /// INFO and verbose go to stdout, the others to stderr.
    pub fn goes_to_stderr(self) -> bool {
        self != Severity::Info
    }
}

#[derive(Debug)]
pub struct Record {
    pub severity: Severity,
    /// The time since the epoch.
    pub at: Duration,
    /// Basename of the source file.
    pub file: Cow<'static, str>,
    pub line: u32,
    pub message: String,
    /// The id of the request that the message is about, where the message does not begin with it.
    pub request_id: Option<String>,
    /// A table or a text of several lines that follows the message as it is.
    pub object: Option<String>,
}

/// How lines are written for this process.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub format: LogFormat,
    /// Messages appear as JSON strings. In the format JSON they do in any case.
    pub escapes: bool,
    pub pid: u32,
}

impl Record {
    /// Its size against the logger's byte budget.
    pub fn bytes(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        size_of::<Record>() + self.file.len() + self.message.capacity() + of(&self.request_id) + of(&self.object)
    }

    /// Appends the line, or the lines where there is an object.
    pub fn write(&self, style: Style, text: &mut String) {
        match style.format {
            LogFormat::Default | LogFormat::Iso8601 => self.write_plain(style, text),
            LogFormat::Json => self.write_json(style.pid, text),
        }
    }

    /// A time beyond the calendar is shown as its last date.
    fn utc(&self) -> DateTime<Utc> {
        let seconds = i64::try_from(self.at.as_secs()).unwrap_or(i64::MAX);
        DateTime::from_timestamp(seconds, 0).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    fn write_plain(&self, style: Style, text: &mut String) {
        let at = self.utc();
        let (year, month, day) = (at.year(), at.month(), at.day());
        let (hour, minute, second) = (at.hour(), at.minute(), at.second());
        let (letter, pid, micros) = (self.severity.letter(), style.pid, self.at.subsec_micros());
        // Writing to a String cannot fail.
        let _ = match style.format == LogFormat::Iso8601 {
            false => write!(text, "{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {pid} "),
            true => write!(text, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {letter} {pid} "),
        };
        let _ = write!(text, "{}:{}] ", self.file, self.line);
        match (style.escapes, self.object.is_some() && self.message.is_empty()) {
            (_, true) => {}
            (true, _) => push_json_string(text, &self.message),
            (false, _) => text.push_str(&self.message),
        }
        text.push('\n');
        if let Some(object) = &self.object {
            text.push_str(object);
            if !object.ends_with('\n') {
                text.push('\n');
            }
        }
    }

    fn write_json(&self, pid: u32, text: &mut String) {
        let at = self.utc();
        let (year, month, day) = (at.year(), at.month(), at.day());
        let (hour, minute, second) = (at.hour(), at.minute(), at.second());
        let micros = self.at.subsec_micros();
        let _ = write!(
            text,
            "{{\"time\":\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z\",\
             \"level\":\"{}\",\"pid\":{pid},\"file\":",
            self.severity.word()
        );
        push_json_string(text, &self.file);
        let _ = write!(text, ",\"line\":{},\"message\":", self.line);
        push_json_string(text, &self.message);
        if let Some(id) = self.request_id.as_deref().or_else(|| id_at_start(&self.message)) {
            text.push_str(",\"request_id\":");
            push_json_string(text, id);
        }
        if let Some(object) = &self.object {
            text.push_str(",\"object\":");
            push_json_string(text, object);
        }
        text.push_str("}\n");
    }
}

/// The id in the prefix `[request id: <id>] `, with which messages of the core begin; none if the request has no id.
fn id_at_start(message: &str) -> Option<&str> {
    let (id, _) = message.strip_prefix("[request id: ")?.split_once("] ")?;
    (id != "<id_unknown>").then_some(id)
}

/// Appends `value` as a JSON string (RFC 8259 section 7) in which no control character is left: neither those that JSON
/// forbids nor DEL and the C1 set, which terminals interpret.
pub fn push_json_string(text: &mut String, value: &str) {
    text.push('"');
    for char in value.chars() {
        match char {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            // U+2028 and U+2029 end lines for some readers.
            char if char.is_control() || matches!(char, '\u{2028}' | '\u{2029}') => {
                let _ = write!(text, "\\u{:04x}", u32::from(char));
            }
            char => text.push(char),
        }
    }
    text.push('"');
}

/// Text that stops growing at its limit, and stops the formatting that fills it.
#[derive(Debug)]
pub struct Bounded {
    text: String,
    limit: usize,
    is_cut: bool,
}

impl Bounded {
    pub fn new(limit: usize) -> Bounded {
        Bounded { text: String::new(), limit, is_cut: false }
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub fn into_text(mut self) -> String {
        if self.is_cut {
            self.text.push_str("...");
        }
        self.text
    }
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.is_cut {
            return Err(fmt::Error);
        }
        let room = self.limit.saturating_sub(self.text.len());
        let kept = more.get(..more.floor_char_boundary(room)).unwrap_or_default();
        self.text.push_str(kept);
        self.is_cut = kept.len() < more.len();
        if self.is_cut { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(message: &str) -> Record {
        Record {
            severity: Severity::Warning,
            at: Duration::new(1_795_243_157, 1_234_567),
            file: "server.rs".into(),
            line: 12,
            message: message.to_owned(),
            request_id: None,
            object: None,
        }
    }

    fn line(record: &Record, format: LogFormat, escapes: bool) -> String {
        let mut text = String::new();
        record.write(Style { format, escapes, pid: 4711 }, &mut text);
        text
    }

    #[test]
    fn a_clock_far_off_still_gives_a_line() {
        let far = Record { at: Duration::from_secs(u64::MAX), ..record("far") };
        assert!(line(&far, LogFormat::Default, true).starts_with("W1231 23:59:59."));
    }

    #[test]
    fn lines_have_the_documented_formats() {
        let mut record = record("it's \"done\"");
        let default = line(&record, LogFormat::Default, true);
        assert_eq!(default, "W1121 06:39:17.001234 4711 server.rs:12] \"it's \\\"done\\\"\"\n");
        let iso = line(&record, LogFormat::Iso8601, true);
        assert_eq!(iso, "2026-11-21T06:39:17Z W 4711 server.rs:12] \"it's \\\"done\\\"\"\n");
        let raw = line(&record, LogFormat::Default, false);
        assert_eq!(raw, "W1121 06:39:17.001234 4711 server.rs:12] it's \"done\"\n");
        record.severity = Severity::Error;
        assert!(line(&record, LogFormat::Default, true).starts_with("E1121 "));
        record.severity = Severity::Info;
        assert!(line(&record, LogFormat::Default, true).starts_with("I1121 "));
    }

    #[test]
    fn an_object_follows_as_it_is() {
        let mut record = Record { object: Some("+--+\n|\"x\"|".to_owned()), ..record("") };
        let prefix = "W1121 06:39:17.001234 4711 server.rs:12] ";
        assert_eq!(line(&record, LogFormat::Default, true), format!("{prefix}\n+--+\n|\"x\"|\n"));
        record.message = "head\n".to_owned();
        assert_eq!(line(&record, LogFormat::Default, true), format!("{prefix}\"head\\n\"\n+--+\n|\"x\"|\n"));
    }

    #[test]
    fn json_lines_hold_everything_whatever_is_logged() {
        let every: String = (0..0x300u32).chain([0x2028, 0x1f600]).filter_map(char::from_u32).collect();
        for (message, object) in
            [("plain", None), ("two\nlines", Some("+--+\n|\"x\"|\n")), (&every, Some(&*every)), ("", None)]
        {
            for escapes in [true, false] {
                let record = Record { object: object.map(str::to_owned), ..record(message) };
                let text = line(&record, LogFormat::Json, escapes);
                assert_eq!(text.lines().count(), 1, "{text}");
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                let mut expected = serde_json::json!({
                    "time": "2026-11-21T06:39:17.001234Z",
                    "level": "warning",
                    "pid": 4711,
                    "file": "server.rs",
                    "line": 12,
                    "message": message,
                });
                if let Some(object) = object {
                    expected["object"] = object.into();
                }
                assert_eq!(json, expected);
            }
        }
    }

    #[test]
    fn json_lines_have_the_id_of_their_request() {
        let id_of = |record: &Record| {
            let json: serde_json::Value = serde_json::from_str(&line(record, LogFormat::Json, true)).unwrap();
            assert_eq!(json["message"], record.message, "the message stays as it is");
            json.get("request_id").map(|id| id.as_str().unwrap().to_owned())
        };
        assert_eq!(id_of(&record("plain")), None);
        assert_eq!(id_of(&record("[request id: a \"b\"] failed")), Some("a \"b\"".to_owned()));
        assert_eq!(id_of(&record("[request id: <id_unknown>] failed")), None);
        assert_eq!(id_of(&record("behind [request id: a] failed")), None);
        let given = Record { request_id: Some("c] d".to_owned()), ..record("[request id: c] d] failed") };
        assert_eq!(id_of(&given), Some("c] d".to_owned()));
        assert!(
            !line(&Record { request_id: Some("q7".to_owned()), ..record("x") }, LogFormat::Default, true)
                .contains("q7")
        );
    }

    #[test]
    fn escaped_messages_are_json_on_one_line() {
        let every: String = (0..0x800u32).chain([0x2028, 0x2029, 0xfeff, 0x1f600]).filter_map(char::from_u32).collect();
        for message in ["", "plain", "\"", "\\", "\\n", "a\nb\r\n\tc\0", "\x1b[31mred\x7f\u{9b}1m", "日本語", &every]
        {
            let text = line(&record(message), LogFormat::Default, true);
            let json = text.strip_prefix("W1121 06:39:17.001234 4711 server.rs:12] ").unwrap();
            assert_eq!(serde_json::from_str::<String>(json).unwrap(), message);
            let body = json.strip_suffix('\n').unwrap();
            assert!(!body.contains(|char: char| char.is_control() || char == '\u{2028}'), "{message:?}");
        }
    }

    #[test]
    fn bounded_text_is_cut_between_characters() {
        let fill = |parts: &[&str]| {
            let mut bounded = Bounded::new(5);
            let results: Vec<_> = parts.iter().map(|part| bounded.write_str(part).is_ok()).collect();
            (results, bounded.into_text())
        };
        assert_eq!(fill(&["abc", "de"]), (vec![true, true], "abcde".to_owned()));
        assert_eq!(fill(&["abcde", "", "f"]), (vec![true, true, false], "abcde...".to_owned()));
        assert_eq!(fill(&["abcdé", "x"]), (vec![false, false], "abcd...".to_owned()));
    }

    #[test]
    fn format_names_are_exact() {
        assert_eq!(LogFormat::from_name("default"), Some(LogFormat::Default));
        assert_eq!(LogFormat::from_name("ISO8601"), Some(LogFormat::Iso8601));
        assert_eq!(LogFormat::from_name("json"), Some(LogFormat::Json));
        for bad in ["Default", "iso8601", "", "JSON", "json "] {
            assert_eq!(LogFormat::from_name(bad), None);
        }
        for format in LogFormat::ALL {
            assert_eq!(LogFormat::from_index(format.index()), format);
        }
    }
}
