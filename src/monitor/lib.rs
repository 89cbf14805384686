//! What a server does now, for `nereid top` and `nereid status`: its models with their states, rates and latencies, out
//! of its page of metrics, its repository index and its health.
//!
//! Nothing here knows a terminal: a view is made of lines that a program prints. Servers differ in the families that
//! they export (Triton has fewer than Nereid), so every figure may be missing and is shown as `n/a` then.
//!
//! ```text
//! Source::read ─► Reading (health, index, figures of one page) ─┐
//!                                    an older Reading ──────────┴─► Overview (rates, latencies) ─► View ─► lines
//!                                                                └─► StatusReport ─► text, JSON, exit code
//! ```

mod figures;
mod format;
mod histogram;
mod history;
mod index;
mod line;
mod overview;
mod rates;
mod source;
mod status;
mod table;
mod view;

#[cfg(test)]
mod tests;

pub use figures::{Figures, GpuFigures, ModelFigures, ModelKey, Phase, ServerFigures};
pub use format::plain;
pub use histogram::{Histogram, Quantile};
pub use index::ModelState;
pub use line::{Line, Look, Span};
pub use overview::{Overview, Row, Totals};
pub use rates::{Latency, ModelRates};
pub use source::{MetricsAddress, Reading, ServerAddress, Source, Unreachable};
pub use status::StatusReport;
pub use table::Column;
pub use view::{Command, Key, View};
