//! The `tracing` layer that turns events into records.
//!
//! ERROR, WARN and INFO are Triton's severities. DEBUG is verbose level 1 and TRACE 2, unless a field `verbose` names
//! another one. A field `object` is printed below the message as it is; `log.file` and `log.line` are the position of a
//! message that comes from another library; `request_id` is shown in JSON only; other fields follow the message as
//! `name=value`.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::callback::Callback;
use super::record::{Bounded, MAX_MESSAGE_BYTES, MAX_OBJECT_BYTES, Record, Severity};
use super::switches::{Switches, severity_of};
use super::writer::Queue;

/// Writes events to a [`super::Logger`].
#[derive(Debug, Clone)]
pub struct LogLayer {
    pub(super) switches: Arc<Switches>,
    pub(super) queue: Queue,
    pub(super) callback: Arc<Callback>,
}

impl LogLayer {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() || self.switches.may_show(*metadata.level())
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    /// Cached per call site: a message that is switched off costs its caller one load. The logger has the cache
    /// rebuilt when a switch changes.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.switches.most_verbose())
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let is_shown = match severity_of(*metadata.level()) {
            Some(severity) => self.switches.shows(severity),
            None => self.switches.shows_verbose(verbose_level(event)),
        };
        if !is_shown {
            return;
        }
        let mut text = RecordText::new();
        event.record(&mut text);
        let (file, line) = (text.file.take(), text.line);
        let request_id = text.request_id.take().map(Bounded::into_text).filter(|id| !id.is_empty());
        let (message, object) = text.finish();
        let own_file = || metadata.file().map_or("unknown", source_name).into();
        let record = Record {
            severity: severity_of(*metadata.level()).unwrap_or(Severity::Info),
            at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            line: line.unwrap_or_else(|| metadata.line().unwrap_or(0)),
            file: file.map_or_else(own_file, |file| file.into_text().into()),
            message,
            request_id,
            object,
        };
        let record = match self.callback.is_set() {
            true => self.callback.take(record, severity_of(*metadata.level()).is_none()),
            false => Some(record),
        };
        if let Some(record) = record {
            self.queue.push(record);
        }
    }
}

const VERBOSE: &str = "verbose";
const MESSAGE: &str = "message";
const OBJECT: &str = "object";
const FILE: &str = "log.file";
const LINE: &str = "log.line";
const REQUEST_ID: &str = "request_id";

/// Longest id of a request; the rest is cut off.
const MAX_REQUEST_ID_BYTES: usize = 1024;

/// Longest name of a file that is not one of ours.
const MAX_FILE_BYTES: usize = 256;

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Every crate has a `lib.rs`, so its folder is added: `net/lib.rs`.
pub(super) fn source_name(path: &str) -> &str {
    match path.strip_suffix("/lib.rs").and_then(|crate_path| crate_path.rfind('/')) {
        Some(at) => &path[at + 1..],
        None => basename(path),
    }
}

fn verbose_level(event: &Event<'_>) -> u64 {
    struct Verbose(Option<u64>);

    impl Visit for Verbose {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == VERBOSE {
                self.0 = Some(value);
            }
        }

        fn record_i64(&mut self, field: &Field, value: i64) {
            self.record_u64(field, u64::try_from(value).unwrap_or(0));
        }

        fn record_debug(&mut self, _field: &Field, _value: &dyn fmt::Debug) {}
    }

    let mut verbose = Verbose(None);
    event.record(&mut verbose);
    let of_level = if *event.metadata().level() == Level::TRACE { 2 } else { 1 };
    verbose.0.unwrap_or(of_level)
}

/// Fields come in the order of the call, the message first or last; it is printed first.
struct RecordText {
    message: Bounded,
    fields: Bounded,
    object: Option<Bounded>,
    request_id: Option<Bounded>,
    file: Option<Bounded>,
    line: Option<u32>,
}

impl RecordText {
    fn new() -> RecordText {
        RecordText {
            message: Bounded::new(MAX_MESSAGE_BYTES),
            fields: Bounded::new(MAX_MESSAGE_BYTES),
            object: None,
            request_id: None,
            file: None,
            line: None,
        }
    }

    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // A full text refuses more, which is intended.
        let _ = match field.name() {
            VERBOSE => Ok(()),
            MESSAGE => self.message.write_fmt(value),
            OBJECT => self.object.get_or_insert_with(|| Bounded::new(MAX_OBJECT_BYTES)).write_fmt(value),
            REQUEST_ID => self.request_id.get_or_insert_with(|| Bounded::new(MAX_REQUEST_ID_BYTES)).write_fmt(value),
            name => write!(self.fields, " {name}={value}"),
        };
    }

    fn finish(mut self) -> (String, Option<String>) {
        if !self.fields.is_empty() {
            let fields = self.fields.into_text();
            let start = if self.message.is_empty() { fields.trim_start() } else { fields.as_str() };
            let _ = self.message.write_str(start);
        }
        (self.message.into_text(), self.object.map(Bounded::into_text))
    }
}

impl Visit for RecordText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == FILE {
            let file = self.file.get_or_insert_with(|| Bounded::new(MAX_FILE_BYTES));
            // A full text refuses more, which is intended.
            let _ =
                basename(value).chars().filter(|char| !char.is_control()).try_for_each(|char| file.write_char(char));
            return;
        }
        self.add(field, format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            LINE => self.line = Some(u32::try_from(value).unwrap_or(0)),
            _ => self.add(field, format_args!("{value}")),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}
