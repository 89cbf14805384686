//! The file of results as the state of a run: written after each burst by renaming, and read to go on.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::identity::differences;
use super::point::Point;
use super::report::json;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 30;
const SLICE_NS_MAX: u64 = 10_000_000_000;

/// An earlier run.
#[derive(Debug, Default)]
pub struct Earlier {
    /// By the keys of their choices.
    pub points: BTreeMap<String, Point>,
    pub ladders: BTreeMap<String, Vec<u64>>,
    /// Microseconds of an execution of each model, as the probe found them.
    pub executions_us: BTreeMap<String, f64>,
    /// The length of its slices: those of one point are equally long.
    pub slice: Option<Duration>,
    identity: Value,
}

fn key(point: &Point) -> String {
    let mut key: String = point.changes.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    key.push_str(&format!("@ {}", point.load));
    key
}

/// Points by their keys. What failed or is void is tried again. Of two points, the longer one begins with the other.
fn remembered(points: impl Iterator<Item = Point>) -> BTreeMap<String, Point> {
    let mut all: BTreeMap<String, Point> = BTreeMap::new();
    for point in points.filter(|point| point.is_valid() && point.bursts() > 0) {
        let key = key(&point);
        if all.get(&key).is_none_or(|other| other.bursts() < point.bursts()) {
            all.insert(key, point);
        }
    }
    all
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
        let measured: Vec<Point> = serde_json::from_value(value["points"].clone()).map_err(read)?;
        let left: Vec<Point> = serde_json::from_value(value["points_left"].clone()).map_err(read)?;
        let slice_ns: Option<u64> = serde_json::from_value(value["slice_ns"].clone()).map_err(read)?;
        Ok(Earlier {
            points: remembered(measured.into_iter().chain(left)),
            slice: slice_ns.filter(|ns| (1..=SLICE_NS_MAX).contains(ns)).map(Duration::from_nanos),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::burst;

    #[test]
    fn whole_points_that_count_are_remembered() {
        let named = |load: &str, point: Point| Point { load: load.to_owned(), ..point };
        let mut longer = burst(100.0, 5.0, 1);
        longer.add(&burst(100.0, 5.0, 1));
        let failed = Point { failure: Some("x".to_owned()), ..burst(1.0, 1.0, 1) };
        let void = Point { generator_limited: vec![true], ..burst(1.0, 1.0, 1) };
        let points = [burst(100.0, 5.0, 1), longer.clone(), burst(100.0, 5.0, 1)].map(|point| named("a", point));
        let others = [named("b", failed), named("c", void), named("d", Point::default())];
        let found = remembered(points.into_iter().chain(others));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("@ a".to_owned(), named("a", longer))]);
    }
}
