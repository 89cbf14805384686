//! The repository index extension (http.md section 3, schedulers.md section 10).

use super::Api;
use crate::repository::VersionState;

/// One row of the index; a model without any version has a name and perhaps a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexRow {
    pub name: String,
    pub version: String,
    pub state: &'static str,
    pub reason: String,
}

impl Api {
    pub(super) fn index(&self, only_ready: bool) -> Vec<IndexRow> {
        let mut rows = Vec::new();
        for (name, entry) in self.models.iter() {
            for (version, state) in &entry.versions {
                let (state, reason) = match state {
                    VersionState::Ready(_) => ("READY", String::new()),
                    VersionState::Unavailable(_) if only_ready => continue,
                    VersionState::Unavailable(reason) => ("UNAVAILABLE", reason.clone()),
                };
                rows.push(IndexRow { name: name.clone(), version: version.to_string(), state, reason });
            }
            if entry.versions.is_empty() && !only_ready {
                let state = if entry.reason.is_empty() { "" } else { "UNAVAILABLE" };
                rows.push(IndexRow { name: name.clone(), version: String::new(), state, reason: entry.reason.clone() });
            }
        }
        rows
    }
}
