//! Options about the recording of requests (docs/record-and-replay.md).

use std::path::PathBuf;

use nereid_recording::{Redaction, Settings};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordOptions {
    /// None: nothing is recorded.
    pub file: Option<PathBuf>,
    /// One of so many requests is recorded; at least 1.
    pub rate: u32,
    /// With headers and bodies.
    pub data: bool,
    /// Of the file.
    pub byte_size: u64,
    /// Names of headers and parameters.
    pub redact: Vec<String>,
}

impl Default for RecordOptions {
    fn default() -> RecordOptions {
        RecordOptions { file: None, rate: 1, data: false, byte_size: 1 << 30, redact: Vec::new() }
    }
}

impl RecordOptions {
    /// What a recorder is started with, if there is one.
    pub fn settings(&self) -> Option<Settings> {
        let path = self.file.clone()?;
        let redaction = Redaction::new(self.redact.iter().cloned());
        Some(Settings { path, rate: self.rate, data: self.data, byte_size_max: self.byte_size, redaction })
    }
}
