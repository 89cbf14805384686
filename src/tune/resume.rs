//! The file of results as the state of a run: written after each burst by renaming, and read to go on.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::identity::differences;
use super::point::Point;
use super::report::json;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// An earlier run.
#[derive(Debug, Default)]
pub struct Earlier {
    /// By the keys of their choices.
    pub points: BTreeMap<String, Point>,
    pub ladders: BTreeMap<String, Vec<u64>>,
    /// Microseconds of an execution of each model, as the probe found them.
    pub executions_us: BTreeMap<String, f64>,
    identity: Value,
}

fn key(point: &Point) -> String {
    let mut key: String = point.changes.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    key.push_str(&format!("@ {}", point.load));
    key
}

impl Earlier {
    /// The errors end with what to do.
    pub fn read(path: &Path) -> Result<Earlier, String> {
        let wrong = |what: &str| format!("{}: {what}; run without --resume", path.display());
        let mut text = Vec::new();
        let file = fs::File::open(path).map_err(|error| wrong(&error.to_string()))?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(|error| wrong(&error.to_string()))?;
        let value: Value = serde_json::from_slice(&text).map_err(|error| wrong(&format!("not JSON: {error}")))?;
        if value["format"] != json::FORMAT {
            return Err(wrong("not a result of nereid tune"));
        }
        if value["version"] != json::VERSION {
            let text = format!("version {} of the format, this program reads {}", value["version"], json::VERSION);
            return Err(wrong(&text));
        }
        let read = |error: serde_json::Error| wrong(&error.to_string());
        let points: Vec<Point> = serde_json::from_value(value["points"].clone()).map_err(read)?;
        Ok(Earlier {
            points: points.into_iter().map(|point| (key(&point), point)).collect(),
            ladders: serde_json::from_value(value["ladders"].clone()).map_err(read)?,
            executions_us: serde_json::from_value(value["executions_us"].clone()).map_err(read)?,
            identity: value["identity"].clone(),
        })
    }

    /// An error if the earlier run was about something else: what differs.
    pub fn check(&self, path: &Path, identity: &Value) -> Result<(), String> {
        let differences = differences(&self.identity, identity);
        match differences.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "{}: its points were measured of something else: {}; run without --resume",
                path.display(),
                differences.join("; ")
            )),
        }
    }
}

/// Writes a file whole, or leaves the one that is there.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(text.as_bytes())?;
    drop(file);
    fs::rename(&unfinished, path)
}
