//! What is shown of a run: text, CSV, JSON, the times of single requests, and a page with plots.
//!
//! All of them are made from the same measurements and the same figures ([`figures`]), so that no two of them disagree.

mod client;
pub mod compare;
pub mod csv;
mod figures;
mod generation;
pub mod html;
pub mod json;
mod machine;
pub mod plot;
pub mod profile;
pub mod text;

#[cfg(test)]
mod samples;

use std::borrow::Cow;
use std::time::SystemTime;

use super::{Measurement, ModelInfo, Plan};

pub use machine::Machine;

/// Everything that a report may contain.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    pub plan: &'a Plan,
    pub model_info: &'a ModelInfo,
    /// Inferences of each request.
    pub batch: u32,
    pub machine: &'a Machine,
    pub began: SystemTime,
    pub points: &'a [Measurement],
    /// When each point began, for the times of its requests.
    pub point_began: &'a [SystemTime],
}

impl Report<'_> {
    /// Not a number where nothing was measured. Reports for people take [`text::inferences_per_s`].
    fn inferences_per_s(&self, point: &Measurement) -> f64 {
        if point.wall.is_zero() { f64::NAN } else { point.rate() * f64::from(self.batch) }
    }

    /// The points as reports for people show them: a void one has no figures of the server.
    fn shown(&self) -> Cow<'_, [Measurement]> {
        match self.points.iter().any(Measurement::is_void) {
            true => self.points.iter().map(Measurement::shown).collect(),
            false => Cow::Borrowed(self.points),
        }
    }

    /// Percentiles that are reported of every point: the usual ones and the one of the rules.
    fn percentiles(&self) -> Vec<f64> {
        let mut percentiles = vec![50.0, 90.0, 95.0, 99.0];
        percentiles.extend(self.plan.rules.percentile.filter(|own| !percentiles.contains(own)));
        percentiles.sort_by(f64::total_cmp);
        percentiles
    }
}

/// The program that measured.
pub fn version() -> String {
    format!("nereid {}", env!("CARGO_PKG_VERSION"))
}
