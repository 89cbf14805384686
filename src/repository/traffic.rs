//! Traffic rules: which version of a model gets a request that names none (docs/traffic.md).
//!
//! A rule is read from the model's configuration when it loads, and hangs on the model's entry in the map of models.
//! Shards read its weights and labels without a lock; the API and the automatic roll-back change them in place, until
//! the next load of the configuration makes a new rule. A model without a rule has nothing of this.

mod choice;
mod compare;
mod counts;
mod link;
mod rollback;
mod route;
mod rule;
mod shadow;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{info, warn};

use counts::Count;
use nereid_memory::Pool;
use nereid_observe::metrics::{Metric, Registry};
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;
use rollback::Window;

pub use counts::{Families, Reason};
pub use route::{Chosen, Fields, Route, RuledModel};
pub use rule::{Rule, Sticky, WEIGHTS_SUM, is_label};
pub use shadow::Shadow;

/// The label that moves when another is promoted.
pub const STABLE: &str = "stable";
/// The label that is meant where a call names none.
pub const CANARY: &str = "canary";

/// The rule of one model as it is applied.
pub struct Traffic {
    /// Of the model.
    pub name: String,
    pub rule: Rule,
    versions: Vec<RuledVersion>,
    labels: Vec<Label>,
    pub shadow: Option<Shadow>,
    rollbacks: Count,
    /// Held for a few steps. Changes of weights and labels are made under it, one after the other.
    changes: Mutex<Changes>,
    /// Another rule has taken its place. Late answers change nothing any more.
    is_retired: AtomicBool,
}

/// What a rule knows of one version.
pub struct RuledVersion {
    pub version: i64,
    weight: AtomicU32,
    counts: [Count; Reason::ALL.len()],
    shown: Option<Metric>,
}

impl RuledVersion {
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// The requests that the version got, by the reason.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.counts.iter().map(Count::get))
    }

    fn set_weight(&self, weight: u32) {
        self.weight.store(weight, Ordering::Relaxed);
        if let Some(shown) = &self.shown {
            // It is a gauge, which can be set.
            let _ = shown.set(f64::from(weight));
        }
    }

    fn count(&self, reason: Reason) {
        if let Some(count) = self.counts.get(reason as usize) {
            count.add_one();
        }
    }
}

struct Label {
    name: Box<str>,
    version: AtomicI64,
}

#[derive(Default)]
struct Changes {
    /// Why a version was taken out of the rule.
    rolled_back: Option<String>,
    window: Window,
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic").field("name", &self.name).field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// What rules of a server share.
pub struct Services<'a> {
    /// Where their metrics are shown.
    pub metrics: &'a Registry,
    /// The memory of the answers of shadow versions.
    pub pool: &'a Pool,
}

/// The rule of a configuration, if it has one; an error if something is wrong with it.
pub fn check(config: &ModelConfig, versions: &[i64]) -> Result<Option<Rule>, Status> {
    Rule::read(config, versions).map_err(Status::invalid)
}

impl Traffic {
    /// Applies a rule from now on.
    pub fn start(name: &str, rule: Rule, services: &Services<'_>) -> Result<Arc<Traffic>, Status> {
        let families = Families::of(services.metrics);
        let versions = rule.versions.iter().zip(&rule.weights).map(|(&version, &weight)| {
            let shown = version.to_string();
            let ruled = RuledVersion {
                version,
                weight: AtomicU32::new(0),
                counts: Reason::ALL.map(|reason| families.requests(name, &shown, reason)),
                shown: families.weight(name, &shown),
            };
            ruled.set_weight(weight);
            ruled
        });
        let labels = rule.labels.iter();
        Ok(Arc::new(Traffic {
            name: name.to_owned(),
            versions: versions.collect(),
            labels: labels
                .map(|(name, version)| Label { name: name.clone(), version: AtomicI64::new(*version) })
                .collect(),
            shadow: Shadow::start(name, &rule, &families, services.pool)?,
            rollbacks: families.rollbacks(name),
            changes: Mutex::default(),
            is_retired: AtomicBool::new(false),
            rule,
        }))
    }

    /// Another rule takes its place, or the model is unloaded.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// A request took longer than the limit of the automatic roll-back.
    fn is_slow(&self, took_ns: u64) -> bool {
        self.rule.rollback.as_ref().is_some_and(|rollback| rollback.is_slow(took_ns))
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn versions(&self) -> &[RuledVersion] {
        &self.versions
    }

    fn version(&self, wanted: i64) -> Option<&RuledVersion> {
        self.versions.iter().find(|ruled| ruled.version == wanted)
    }

    /// Labels and the versions that they mean.
    pub fn labels(&self) -> impl Iterator<Item = (&str, i64)> {
        self.labels.iter().map(|label| (&*label.name, label.version.load(Ordering::Relaxed)))
    }

    /// The version that a label means.
    pub fn label(&self, name: &[u8]) -> Option<i64> {
        let label = self.labels.iter().find(|label| label.name.as_bytes() == name)?;
        Some(label.version.load(Ordering::Relaxed))
    }

    /// The version that a text of a rule or of a call names.
    fn named(&self, text: &str) -> Option<i64> {
        let number = || text.parse().ok().filter(|version| self.version(*version).is_some());
        self.label(text.as_bytes()).or_else(number)
    }

    /// Why a version was taken out of the rule, if one was.
    pub fn rolled_back(&self) -> Option<String> {
        self.changes().rolled_back.clone()
    }

    /// How often a version was taken out of the rule.
    pub fn rollbacks(&self) -> u64 {
        self.rollbacks.get()
    }

    fn known(&self, text: &str) -> Result<i64, Status> {
        self.named(text).ok_or_else(|| {
            let versions = self.versions.iter().map(|ruled| ruled.version.to_string());
            let names: Vec<String> = self.labels().map(|(label, _)| label.to_owned()).chain(versions).collect();
            let known = names.join(", ");
            Status::invalid(format!(
                "'{text}' is neither a label nor a version of model '{}'; use one of {known}",
                self.name
            ))
        })
    }

    /// Sets the weights of versions, which are named by number or label; the others get none. A roll-back is over.
    pub fn set_weights(&self, given: &[(String, u32)]) -> Result<(), Status> {
        let mut weights: Vec<(i64, u32)> = Vec::new();
        for (text, weight) in given {
            let version = self.known(text)?;
            if weights.iter().any(|(known, _)| *known == version) {
                return Err(Status::invalid(format!("version {version} has two weights; give it one")));
            }
            weights.push((version, *weight));
        }
        let sum = weights.iter().fold(0u32, |sum, (_, weight)| sum.saturating_add(*weight));
        if sum != WEIGHTS_SUM {
            return Err(Status::invalid(format!("the weights sum to {sum}, they must sum to {WEIGHTS_SUM}")));
        }
        let mut changes = self.changes();
        *changes = Changes::default();
        self.set_all(|version| weights.iter().find(|(known, _)| *known == version).map_or(0, |(_, weight)| *weight));
        info!("model '{}' has new traffic weights: {}", self.name, self.shown_weights());
        Ok(())
    }

    /// Sets all weights, those that grow first: requests read them meanwhile, and never find none.
    fn set_all(&self, weight_of: impl Fn(i64) -> u32) {
        let (grow, shrink): (Vec<_>, Vec<_>) =
            self.versions.iter().partition(|ruled| weight_of(ruled.version) >= ruled.weight());
        grow.into_iter().chain(shrink).for_each(|ruled| ruled.set_weight(weight_of(ruled.version)));
    }

    fn shown_weights(&self) -> String {
        let all = self.versions.iter().map(|ruled| format!("{}:{}", ruled.version, ruled.weight()));
        all.collect::<Vec<_>>().join(",")
    }

    /// Gives all weight to what a label or number names, and moves the label `stable` there. A roll-back is over.
    pub fn promote(&self, text: &str) -> Result<(), Status> {
        let version = self.known(text)?;
        let mut changes = self.changes();
        *changes = Changes::default();
        self.set_all(|known| if known == version { WEIGHTS_SUM } else { 0 });
        if let Some(stable) = self.labels.iter().find(|label| *label.name == *STABLE) {
            stable.version.store(version, Ordering::Relaxed);
        }
        info!("version {version} of model '{}' is promoted: it gets all requests without a version", self.name);
        Ok(())
    }

    /// Takes a version out of the rule on request. `None`: the one that the automatic roll-back watches, else the one
    /// with the label `canary`.
    pub fn roll_back(&self, text: Option<&str>) -> Result<(), Status> {
        let of_rule = || self.rule.rollback.as_ref().map_or(CANARY, |rollback| &rollback.target);
        let version = self.known(text.unwrap_or_else(of_rule))?;
        let mut changes = self.changes();
        if self.take_out(&mut changes, version, "the API requested it".to_owned()) {
            return Ok(());
        }
        let text = format!("version {version} is the only one of model '{}' and cannot be rolled back", self.name);
        Err(Status::invalid(text))
    }

    /// Moves the weight of a version to the others, in proportion; false if there are no others.
    fn take_out(&self, changes: &mut Changes, version: i64, why: String) -> bool {
        let (taken, others): (Vec<_>, Vec<_>) = self.versions.iter().partition(|ruled| ruled.version == version);
        let sum: u32 = others.iter().map(|ruled| ruled.weight()).sum();
        if sum == 0 {
            // The rest has no weight: the stable version gets all, else the highest, but never the shadow version.
            let shadow = self.rule.shadow.as_ref().map(|shadow| shadow.version);
            let others: Vec<_> = others.into_iter().filter(|ruled| Some(ruled.version) != shadow).collect();
            let stable = self.label(STABLE.as_bytes()).filter(|stable| *stable != version);
            let stable = others.iter().find(|ruled| Some(ruled.version) == stable);
            let Some(heir) = stable.or_else(|| others.last()) else { return false };
            heir.set_weight(WEIGHTS_SUM);
        } else {
            // Every one gets its part of the whole, and the first ones what rounding leaves.
            let mut parts: Vec<u32> = others.iter().map(|ruled| ruled.weight() * WEIGHTS_SUM / sum).collect();
            let mut left = WEIGHTS_SUM.saturating_sub(parts.iter().sum());
            for (part, _) in parts.iter_mut().zip(&others).filter(|(_, ruled)| ruled.weight() > 0) {
                let more = left.min(1);
                *part += more;
                left -= more;
            }
            // All of them grow.
            others.iter().zip(parts).for_each(|(ruled, part)| ruled.set_weight(part));
        }
        taken.iter().for_each(|ruled| ruled.set_weight(0));
        self.rollbacks.add_one();
        let weights = self.shown_weights();
        warn!("version {version} of model '{}' is rolled back: {why}; the weights are {weights} now", self.name);
        *changes = Changes { rolled_back: Some(why), window: Window::default() };
        true
    }

    /// Whether requests of that version decide about a roll-back.
    fn is_watched(&self, version: i64) -> bool {
        self.rule.rollback.as_ref().is_some_and(|rollback| self.named(&rollback.target) == Some(version))
    }

    /// A request of a watched version was answered. Rolls the version back if it exceeds a limit and another version
    /// can take its requests.
    fn answered(&self, version: i64, is_error: bool, took_ns: u64, now_ns: u64) {
        let Some(rollback) = self.rule.rollback.as_ref().filter(|_| self.is_watched(version)) else { return };
        if self.is_retired.load(Ordering::Relaxed) {
            return;
        }
        let mut changes = self.changes();
        if changes.rolled_back.is_some() {
            return;
        }
        let is_slow = rollback.is_slow(took_ns);
        changes.window.record(rollback, now_ns, is_error, is_slow);
        let weight = self.version(version).map_or(0, RuledVersion::weight);
        if weight == 0 || weight == WEIGHTS_SUM {
            return;
        }
        if let Some(why) = changes.window.exceeded(rollback, now_ns) {
            self.take_out(&mut changes, version, why);
        }
    }
}

#[cfg(test)]
mod tests;
