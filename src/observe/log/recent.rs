//! The last warnings and errors of the log, for the inspect page (docs/inspect-page.md).
//!
//! The log's thread notes them as it writes them, so no thread that logs pays or waits for that. What the log's
//! settings leave out, and what was dropped because too many messages waited, is not here either.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::record::{Record, Severity};

/// Most messages that are kept.
pub const MESSAGES_MAX: usize = 100;
/// Most bytes of each.
const MESSAGE_BYTES_MAX: usize = 4096;

static MESSAGES: Mutex<VecDeque<RecentMessage>> = Mutex::new(VecDeque::new());

/// One message of the log.
#[derive(Debug, Clone)]
pub struct RecentMessage {
    pub severity: Severity,
    /// The time since the epoch.
    pub at: Duration,
    /// Source file and line.
    pub place: String,
    pub message: String,
}

pub(super) fn note(record: &Record) {
    if record.severity == Severity::Info {
        return;
    }
    let end = record.message.floor_char_boundary(MESSAGE_BYTES_MAX);
    let message = RecentMessage {
        severity: record.severity,
        at: record.at,
        place: format!("{}:{}", record.file, record.line),
        message: record.message.get(..end).unwrap_or_default().to_owned(),
    };
    let mut messages = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
    if messages.len() >= MESSAGES_MAX {
        messages.pop_front();
    }
    messages.push_back(message);
}

/// The kept messages, the newest first.
pub fn messages() -> Vec<RecentMessage> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_errors_are_kept_up_to_a_bound() {
        let record = |severity, message: String| Record {
            severity,
            at: Duration::from_secs(7),
            file: "recent_test.rs".into(),
            line: 3,
            message,
            request_id: None,
            object: None,
        };
        note(&record(Severity::Info, "nothing".to_owned()));
        for number in 0..2 * MESSAGES_MAX {
            note(&record(Severity::Error, format!("{number} {}", "é".repeat(MESSAGE_BYTES_MAX))));
        }
        // Other tests of this process log too.
        let ours: Vec<_> = messages().into_iter().filter(|kept| kept.place == "recent_test.rs:3").collect();
        assert!(!ours.is_empty() && messages().len() <= MESSAGES_MAX);
        assert!(ours[0].message.starts_with(&format!("{} é", 2 * MESSAGES_MAX - 1)));
        assert!(ours.iter().all(|kept| kept.message.len() <= MESSAGE_BYTES_MAX && kept.severity == Severity::Error));
    }
}
