//! Runs this binary under callgrind and reads the counts.

use std::collections::HashMap;
use std::process::Command;

/// Calls of these are allocations, whatever Rust calls above them.
const ALLOCATORS: [&str; 6] = ["malloc", "calloc", "realloc", "memalign", "posix_memalign", "aligned_alloc"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub instructions: u64,
    pub allocations: u64,
}

impl Counts {
    pub fn less(self, other: Counts) -> Counts {
        Counts {
            instructions: self.instructions.saturating_sub(other.instructions),
            allocations: self.allocations.saturating_sub(other.allocations),
        }
    }
}

/// Valgrind's own words, if it is there.
pub fn version() -> Option<String> {
    let output = Command::new("valgrind").arg("--version").output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub fn run(operation: &str, times: u64) -> Result<Counts, String> {
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let file = std::env::temp_dir().join(format!("nereid-parse-{}-{operation}-{times}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*perform_measured*"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(binary)
        .args(["--repeat", operation, &times.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let profile = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    if !output.status.success() {
        return Err(format!("{}:\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    counts(&profile.map_err(|error| format!("callgrind left no profile: {error}"))?)
}

/// Reads a profile: `totals:` holds the instructions; `cfn=` names the called function, `calls=` counts the calls. A
/// name is written out once, as `(7) malloc`, and is `(7)` from there on.
fn counts(profile: &str) -> Result<Counts, String> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut called = "";
    let (mut instructions, mut allocations) = (None, 0);
    for line in profile.lines() {
        if let Some((key @ ("fn" | "cfn"), name)) = line.split_once('=') {
            let (number, name) = name.split_once(' ').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if key == "cfn" {
                called = names.get(number).copied().unwrap_or_default();
            }
        } else if let Some(calls) = line.strip_prefix("calls=") {
            // Recursion is marked by an apostrophe and the depth.
            let name = called.split('\'').next().unwrap_or_default();
            if ALLOCATORS.contains(&name) {
                allocations += calls.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            }
        } else if let Some(total) = line.strip_prefix("totals:") {
            instructions = total.split_whitespace().next().and_then(|n| n.parse().ok());
        }
    }
    match instructions {
        Some(instructions) if instructions > 0 => Ok(Counts { instructions, allocations }),
        _ => Err("the profile counts nothing: was the measured function inlined?".to_owned()),
    }
}
