//! What measurements depend on beside the choice: points of another run count only if all of this is equal.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::{Map, Value, json};

use super::configuration::ModelFacts;
use super::plan::{InputSource, Plan};
use nereid_perf::report::Machine;

/// Files of a model that are looked at, and the depth of its directories.
const FILES_MAX: usize = 100_000;
const DEPTH_MAX: usize = 16;

/// A hash that is the same in every run (FNV-1a).
struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Names, lengths and times of all files below a directory; none if it cannot be read, as a bucket.
fn files_of(directory: &Path) -> Option<String> {
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    let mut left = vec![(directory.to_owned(), 0usize)];
    let mut count = 0;
    while let Some((path, depth)) = left.pop() {
        let mut entries: Vec<PathBuf> = fs::read_dir(&path).ok()?.flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for entry in entries {
            let Ok(metadata) = fs::metadata(&entry) else { continue };
            if entry.file_name().is_some_and(|name| name == "__pycache__") {
                continue;
            }
            count += 1;
            if count > FILES_MAX {
                return None;
            }
            let name = entry.strip_prefix(directory).unwrap_or(&entry);
            hash.add(name.as_os_str().as_encoded_bytes());
            if metadata.is_dir() {
                if depth < DEPTH_MAX {
                    left.push((entry, depth + 1));
                }
                continue;
            }
            hash.add(&metadata.len().to_le_bytes());
            let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            hash.add(&modified.map_or(0, |since| since.as_nanos()).to_le_bytes());
        }
    }
    Some(format!("{:016x}", hash.0))
}

fn file(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} bytes, {} ns", metadata.len(), modified.as_nanos()))
}

/// Members that must be equal, by their names.
pub fn of(plan: &Plan, models: &[ModelFacts], machine: &Machine) -> Value {
    let mut files = Map::new();
    let mut configurations = Map::new();
    for model in models {
        let found = plan.repositories.iter().map(|repository| repository.join(&model.name)).find(|path| path.is_dir());
        files.insert(model.name.clone(), json!(found.as_deref().and_then(files_of)));
        configurations.insert(model.name.clone(), model.config.clone());
    }
    json!({
        "program": nereid_perf::report::version(),
        "models": plan.models,
        "model files": files,
        "configurations": configurations,
        "server flags": plan.flags.iter().map(|flag| flag.to_string_lossy()).collect::<Vec<_>>(),
        "machine": { "cpu": machine.cpu, "cores": machine.cores, "memory_mib": machine.memory_mib },
        "load": plan.load.name(),
        "input data": plan.input.name(),
        "input files": input_files(&plan.input),
        "shapes": plan.shapes,
        "recording": plan.recording.as_deref().map(|path| [path.display().to_string(), file(path).unwrap_or_default()]),
        "seed": plan.seed,
        "max memory": plan.memory_max_bytes,
        "server for each configuration": plan.goal.is_about_memory() || plan.memory_max_bytes.is_some(),
    })
}

/// Lengths and times of the files that requests are made from.
fn input_files(input: &InputSource) -> Value {
    match input {
        InputSource::Random | InputSource::Zero => Value::Null,
        InputSource::Directory(path) => json!(files_of(path)),
        InputSource::Json(paths) => paths.iter().map(|path| json!(file(path))).collect(),
    }
}

/// What differs between two runs, in words.
pub fn differences(before: &Value, now: &Value) -> Vec<String> {
    let empty = Map::new();
    let (before, now) = (before.as_object().unwrap_or(&empty), now.as_object().unwrap_or(&empty));
    let mut names: Vec<&String> = before.keys().chain(now.keys()).collect();
    names.sort();
    names.dedup();
    let mut found = Vec::new();
    for name in names {
        let (one, other) = (before.get(name), now.get(name));
        if one == other {
            continue;
        }
        // Of members with a part for each model, the models that differ.
        match (one.and_then(Value::as_object), other.and_then(Value::as_object)) {
            (Some(one), Some(other)) if name == "model files" || name == "configurations" => {
                let differs = |model: &&String| one.get(*model) != other.get(*model);
                let mut models: Vec<&String> = one.keys().chain(other.keys()).filter(differs).collect();
                models.sort();
                models.dedup();
                let models: Vec<String> = models.into_iter().map(|model| format!("'{model}'")).collect();
                found.push(format!("{name} of {}", models.join(", ")));
            }
            _ => {
                let shown = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
                found.push(format!("{name}: {} then, {} now", shown(one), shown(other)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let before = json!({"seed": 1, "model files": {"a": "1", "b": "2"}, "load": "follows"});
        let now = json!({"seed": 2, "model files": {"a": "1", "b": "3"}, "load": "follows"});
        assert_eq!(differences(&before, &now), ["model files of 'b'", "seed: 1 then, 2 now"]);
        assert!(differences(&now, &now).is_empty());
        assert_eq!(differences(&Value::Null, &json!({"seed": 1})), ["seed: nothing then, 1 now"]);
    }

    #[test]
    fn another_file_is_another_model() {
        let directory = std::env::temp_dir().join(format!("nereid-tune-identity-{}", std::process::id()));
        fs::create_dir_all(directory.join("1")).unwrap();
        fs::write(directory.join("1/model"), "abc").unwrap();
        let before = files_of(&directory).unwrap();
        assert_eq!(files_of(&directory).unwrap(), before);
        fs::create_dir_all(directory.join("1/__pycache__")).unwrap();
        assert_eq!(files_of(&directory).unwrap(), before);
        fs::write(directory.join("1/model"), "abcd").unwrap();
        assert_ne!(files_of(&directory).unwrap(), before);
        fs::remove_dir_all(&directory).unwrap();
        assert!(files_of(&directory).is_none());
    }
}
