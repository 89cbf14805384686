//! The [`Files`] destination: one array of JSON for all traces of settings without a log frequency, one per
//! `log_frequency` traces for the others (contract/metrics.md section 4, "Triton-mode file").

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::error;

use super::record::Finished;
use super::text::put_entries;
use super::writer::{Counts, Destination};

/// Text that a setting may collect; beyond it its file is written to early.
const COLLECTED_BYTES_MAX: usize = 4 << 20;
/// Failures of writing are logged no more often than this.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct Files {
    path: PathBuf,
    /// By setting.
    collected: HashMap<u64, Collected>,
    main: Option<Array>,
    /// Number of the next indexed file.
    next: u64,
    complained_at: Option<Instant>,
}

/// The traces of one setting that are not complete files yet.
#[derive(Default)]
struct Collected {
    text: String,
    /// Traces of the present file.
    traces: u64,
    /// How many of them are only in the text.
    unwritten: u64,
    /// Traces of the setting.
    total: u64,
    log_frequency: u32,
    /// An indexed file that was begun early.
    begun: Option<Array>,
}

/// A file with an array that is being written.
struct Array {
    file: File,
    is_empty: bool,
}

impl Array {
    fn create(path: &Path) -> io::Result<Array> {
        Ok(Array { file: File::create(path)?, is_empty: true })
    }

    /// Adds entries that are joined by commas already.
    fn add(&mut self, entries: &str) -> io::Result<()> {
        let sign = if self.is_empty { "[" } else { "," };
        self.file.write_all(sign.as_bytes())?;
        self.is_empty = false;
        self.file.write_all(entries.as_bytes())
    }

    fn close(mut self) -> io::Result<()> {
        self.file.write_all(if self.is_empty { b"[]" } else { b"]" })
    }
}

impl Files {
    pub fn new(path: &str) -> Files {
        Files { path: PathBuf::from(path), collected: HashMap::new(), main: None, next: 0, complained_at: None }
    }

    fn complain(&mut self, failure: &io::Error) {
        if self.complained_at.is_none_or(|at| at.elapsed() >= FAILURE_LOG_INTERVAL) {
            error!("failed creating trace file: '{}': {failure}", self.path.display());
            self.complained_at = Some(Instant::now());
        }
    }

    fn next_indexed(&mut self) -> io::Result<Array> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{}", self.next));
        self.next += 1;
        Array::create(Path::new(&path))
    }

    fn add_to_main(&mut self, text: &str) -> io::Result<()> {
        let main = match &mut self.main {
            Some(main) => main,
            None => self.main.insert(Array::create(&self.path)?),
        };
        main.add(text)
    }

    /// Writes the collected text; to an indexed file if `is_indexed`, which is complete then.
    fn write(&mut self, collected: &mut Collected, is_indexed: bool, counts: &Counts) {
        let text = std::mem::take(&mut collected.text);
        let written = match (is_indexed, collected.begun.take()) {
            _ if collected.traces == 0 => Ok(()),
            (false, _) => self.add_to_main(&text),
            (true, begun) => begun.map_or_else(|| self.next_indexed(), Ok).and_then(|mut array| {
                if !text.is_empty() {
                    array.add(&text)?;
                }
                array.close()
            }),
        };
        self.settle(collected, written, counts);
        collected.traces = 0;
    }

    /// Writes the text collected so far, so that memory stays bounded.
    fn spill(&mut self, collected: &mut Collected, counts: &Counts) {
        let text = std::mem::take(&mut collected.text);
        let written = if collected.log_frequency == 0 {
            self.add_to_main(&text)
        } else {
            let begun = collected.begun.take().map_or_else(|| self.next_indexed(), Ok);
            begun.and_then(|mut array| {
                array.add(&text)?;
                collected.begun = Some(array);
                Ok(())
            })
        };
        if collected.log_frequency == 0 {
            collected.traces = 0;
        }
        self.settle(collected, written, counts);
    }

    fn settle(&mut self, collected: &mut Collected, written: io::Result<()>, counts: &Counts) {
        let traces = std::mem::take(&mut collected.unwritten);
        if let Err(failure) = written {
            counts.lost(traces);
            self.complain(&failure);
        }
    }
}

impl Destination for Files {
    fn trace(&mut self, trace: &Finished, counts: &Counts) {
        let setting = &trace.setting;
        let mut collected = self.collected.remove(&setting.id).unwrap_or_default();
        collected.log_frequency = setting.log_frequency();
        collected.total += 1;
        if !trace.entries.is_empty() {
            if !collected.text.is_empty() {
                collected.text.push(',');
            }
            put_entries(&mut collected.text, &trace.entries);
            collected.traces += 1;
            collected.unwritten += 1;
        }
        let is_full = collected.log_frequency > 0 && collected.traces >= u64::from(collected.log_frequency);
        if is_full || setting.is_exhausted(collected.total) {
            self.write(&mut collected, true, counts);
        } else if collected.text.len() > COLLECTED_BYTES_MAX {
            self.spill(&mut collected, counts);
        }
        self.collected.insert(setting.id, collected);
    }

    fn setting_ended(&mut self, id: u64, counts: &Counts) {
        if let Some(mut collected) = self.collected.remove(&id) {
            let is_indexed = collected.log_frequency > 0;
            self.write(&mut collected, is_indexed, counts);
        }
    }

    fn due(&self) -> Option<Instant> {
        None
    }

    fn on_time(&mut self, _counts: &Counts) {}

    fn finish(&mut self, counts: &Counts) {
        let mut ids: Vec<u64> = self.collected.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.setting_ended(id, counts));
        if let Some(Err(failure)) = self.main.take().map(Array::close) {
            self.complain(&failure);
        }
    }
}
