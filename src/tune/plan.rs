//! What is to be tuned: plain data that a command line fills in.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::goal::Goal;

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Models that get load; of an ensemble, the models that it is made of are tuned.
    pub models: Vec<String>,
    pub repositories: Vec<PathBuf>,
    pub goal: Goal,
    pub load: LoadRule,
    pub search: Search,
    pub settings: Vec<Setting>,
    pub input: InputSource,
    /// Of inputs by name, without the batch dimension.
    pub shapes: BTreeMap<String, Vec<i64>>,
    /// A file of recorded requests, in the place of `input`.
    pub recording: Option<PathBuf>,
    /// Of the server with all of its processes.
    pub memory_max_bytes: Option<u64>,
    pub budget: Duration,
    pub seed: u64,
    /// The words in front of the flags of the scratch server: the program and what makes it a server.
    pub server: Vec<OsString>,
    /// Flags of the user for it.
    pub flags: Vec<OsString>,
    /// Where `tune.json` and the other files go.
    pub report: Option<PathBuf>,
    pub resume: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    Race,
    Exhaustive,
    Quick,
}

impl Search {
    pub fn name(self) -> &'static str {
        match self {
            Search::Race => "auto",
            Search::Exhaustive => "exhaustive",
            Search::Quick => "quick",
        }
    }
}

/// How much load a candidate gets.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadRule {
    /// Closed loop of 2 x batch x instances.
    Follows,
    /// Closed loops.
    Concurrency(Vec<usize>),
    /// Open loop with Poisson spacing: requests a second of all models together.
    Rate(f64),
}

impl LoadRule {
    /// Identifies it in a file of results.
    pub fn name(&self) -> String {
        match self {
            LoadRule::Follows => "follows".to_owned(),
            LoadRule::Concurrency(list) => {
                format!("concurrency {}", list.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
            }
            LoadRule::Rate(rate) => format!("rate {rate}"),
        }
    }
}

/// Values that the user gives a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// `field` or `model/field`.
    pub field: String,
    pub values: Vec<String>,
}

/// What requests hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputSource {
    Random,
    Zero,
    Directory(PathBuf),
    Json(Vec<PathBuf>),
}

impl InputSource {
    /// Identifies it in a file of results.
    pub fn name(&self) -> String {
        match self {
            InputSource::Random => "random".to_owned(),
            InputSource::Zero => "zero".to_owned(),
            InputSource::Directory(path) => path.display().to_string(),
            InputSource::Json(paths) => {
                paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(",")
            }
        }
    }
}
