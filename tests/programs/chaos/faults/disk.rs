//! The disk of the log and of the traces is full.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use super::{Fault, meanwhile};
use crate::chaos::campaign::Campaign;

pub const FULL: Fault = Fault { name: "disk full", inject };

/// Fills a file system with one file; whether it is full.
pub fn fill(path: &Path) -> bool {
    let Ok(mut file) = File::create(path) else { return false };
    for size in [1 << 16, 4096, 64, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    matches!(file.write_all(&[0]), Err(error) if error.kind() == std::io::ErrorKind::StorageFull)
}

fn inject(campaign: &mut Campaign) {
    let disk = campaign.site.disk();
    let filler = disk.join("filler");
    let is_full = fill(&filler);
    meanwhile(campaign);
    campaign.go_on_for(100, 300);
    let log = fs::read_to_string(disk.join("log")).unwrap_or_default();
    assert!(!log.contains("panicked at"), "{}: the server panicked:\n{log}", campaign.place());
    campaign.site.free_disk();
    if is_full {
        campaign.injected(FULL.name, 1);
    }
}
