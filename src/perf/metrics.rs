//! The server's page of metrics, read now and then while windows last.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::PerfError;
use super::measurement::MetricFigures;
use super::metadata_client::fetch;
use super::plan::MetricsSource;
use nereid_client::exposition::samples;

/// Samples that are kept apart; a page with more is cut.
const SAMPLES_MAX: usize = 16_384;

pub type Figures = BTreeMap<String, MetricFigures>;

/// Reads a page until it is dropped.
pub struct Scraper {
    figures: Arc<Mutex<Figures>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scraper {
    /// Reads it once before it returns, so that a wrong address is found out.
    pub fn start(source: &MetricsSource) -> Result<Scraper, PerfError> {
        let first = fetch(&source.endpoint, &source.path)?;
        let figures = Arc::new(Mutex::new(Figures::new()));
        note(&figures, &first);
        let (stop, stopped) = mpsc::channel();
        let (kept, source) = (Arc::clone(&figures), source.clone());
        let spawned = thread::Builder::new().name("perf-metrics".to_owned()).spawn(move || {
            read_on(&source, &kept, &stopped);
        });
        let thread = spawned.map_err(|source| PerfError::System { what: "a thread for metrics".to_owned(), source })?;
        Ok(Scraper { figures, stop: Some(stop), thread: Some(thread) })
    }

    /// What was read since the last time.
    pub fn take(&self) -> Figures {
        std::mem::take(&mut self.figures.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read_on(source: &MetricsSource, figures: &Mutex<Figures>, stopped: &Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(source.interval) {
        // A page that is missing once means nothing.
        if let Ok(page) = fetch(&source.endpoint, &source.path) {
            note(figures, &page);
        }
    }
}

fn note(figures: &Mutex<Figures>, page: &str) {
    let mut figures = figures.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, value) in samples(page).map(|sample| (sample.series, sample.value)) {
        if let Some(known) = figures.get_mut(name) {
            add(known, value);
        } else if figures.len() < SAMPLES_MAX {
            let first = MetricFigures { samples: 1, mean: value, max: value, first: value, last: value };
            figures.insert(name.to_owned(), first);
        }
    }
}

fn add(known: &mut MetricFigures, value: f64) {
    known.samples += 1;
    known.mean += (value - known.mean) / known.samples as f64;
    known.max = known.max.max(value);
    known.last = value;
}

/// Adds what a later window found.
pub fn join(sum: &mut Figures, later: Figures) {
    for (name, later) in later {
        match sum.get_mut(&name) {
            None => drop(sum.insert(name, later)),
            Some(known) => {
                let samples = known.samples + later.samples;
                known.mean += (later.mean - known.mean) * later.samples as f64 / samples.max(1) as f64;
                known.samples = samples;
                known.max = known.max.max(later.max);
                known.last = later.last;
            }
        }
    }
}

/// The program that wrote a page, by the labels of its `nereid_build_info`.
pub fn build(page: &str) -> Option<String> {
    let info = samples(page).find(|sample| sample.name() == "nereid_build_info")?;
    let label = |name: &str| info.labels().find(|(known, _)| *known == name).map(|(_, value)| value.into_owned());
    let version = label("version")?;
    let revision = label("revision").filter(|revision| revision != "unknown");
    Some(match revision {
        Some(revision) => format!("Nereid {version}, revision {revision}"),
        None => format!("Nereid {version}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_behind_a_page_is_found() {
        let page = |labels: &str| format!("# TYPE nereid_build_info gauge\nnereid_build_info{{{labels}}} 1\n");
        let build = |labels: &str| build(&page(labels));
        let of = |text: &str| Some(text.to_owned());
        assert_eq!(build("version=\"1.2.3\",triton_version=\"2.75.0\""), of("Nereid 1.2.3"));
        let labels = "triton_version=\"2.75.0\",version=\"1.2.3\",revision=\"abc\"";
        assert_eq!(build(labels), of("Nereid 1.2.3, revision abc"));
        assert_eq!(build("version=\"1.2.3\",revision=\"unknown\""), of("Nereid 1.2.3"));
        assert_eq!(build("triton_version=\"2.75.0\""), None);
        assert_eq!(super::build("nv_inference_count{model=\"m\"} 1\n"), None);
    }

    #[test]
    fn windows_are_joined() {
        let figures = Mutex::new(Figures::new());
        ["a 1", "a 5", "a 3"].iter().for_each(|page| note(&figures, page));
        let mut sum = figures.into_inner().unwrap();
        assert_eq!(sum["a"], MetricFigures { samples: 3, mean: 3.0, max: 5.0, first: 1.0, last: 3.0 });
        let later = MetricFigures { samples: 1, mean: 7.0, max: 7.0, first: 7.0, last: 7.0 };
        join(&mut sum, Figures::from([("a".to_owned(), later), ("z".to_owned(), later)]));
        assert_eq!(sum["a"], MetricFigures { samples: 4, mean: 4.0, max: 7.0, first: 1.0, last: 7.0 });
        assert_eq!(sum["z"], later);
    }
}
