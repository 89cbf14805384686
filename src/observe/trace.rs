//! Traces of requests: which requests are sampled, what is kept of them, and where it goes
//! (contract/metrics.md section 4).
//!
//! A sampled request collects its entries in a buffer of its own. When its last holder drops it, the buffer is handed,
//! without waiting, to the one thread that writes files or sends to a collector: when that is slow, traces are dropped
//! and counted, and no request is delayed.

mod collector;
mod context;
mod files;
mod number;
mod options;
mod phases;
mod record;
mod settings;
mod spans;
mod text;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::exemplars::Exemplars;
pub use context::{Context, next_id};
pub use options::{Levels, Mode, SpanProcessor, TraceOptions};
pub use record::{Kind, Tensor, Trace};
pub use settings::{Change, Field, Refused, SettingView};
use settings::{OwnValues, Setting, Values};
pub use writer::Counts;
use writer::Queue;

/// Models with settings of their own.
const OVERRIDES_MAX: usize = 10_000;

/// The traces of one server.
pub struct Traces {
    options: TraceOptions,
    queue: Queue,
    /// True if a setting can sample: the only check of a request where no request is traced.
    is_on: AtomicBool,
    /// Locked for look-ups and changes: every request takes it while something may be traced.
    table: Mutex<Table>,
    /// Held for the whole of a change, the start of the thread that writes traces included.
    changes: Mutex<()>,
    /// Hands out ids and builds contexts.
    ids: Arc<context::Ids>,
}

struct Table {
    global: Arc<Setting>,
    /// By name of the model.
    models: BTreeMap<String, Override>,
}

/// The setting of a model, and which values are its own.
struct Override {
    own: OwnValues,
    setting: Arc<Setting>,
}

impl Traces {
    pub fn new(options: TraceOptions) -> io::Result<Traces> {
        let queue = Queue::new(&options);
        let values = Values::of_start(&options);
        let global = Arc::new(Setting::new(values, &options, &queue));
        let is_on = AtomicBool::new(global.can_sample());
        if global.can_sample() {
            queue.start()?;
        }
        let table = Mutex::new(Table { global, models: BTreeMap::new() });
        Ok(Traces { options, queue, is_on, table, changes: Mutex::default(), ids: Arc::default() })
    }

    /// Whether any request may be traced.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether requests carry the context of another trace.
    pub fn takes_contexts(&self) -> bool {
        self.options.mode == Mode::OpenTelemetry
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request for `model`, and begins a trace if it is the one to be traced. A valid context forces a trace
    /// in the mode that has contexts.
    pub fn sample(&self, model: &str, context: Option<Context>) -> Option<Trace> {
        let setting = {
            let table = self.table();
            Arc::clone(table.models.get(model).map_or(&table.global, |own| &own.setting))
        };
        let context = context.filter(|_| self.takes_contexts());
        let is_sampled = setting.sample(context.is_some());
        is_sampled.then(|| Trace::begin(setting, self.queue.clone(), &self.ids, context))
    }

    /// The settings of a model, or the global ones, which models without their own use.
    pub fn shown(&self, model: Option<&str>) -> SettingView {
        let table = self.table();
        let own = model.and_then(|model| table.models.get(model));
        own.map_or(&table.global, |own| &own.setting).shown(&self.options)
    }

    /// Changes the settings of a model, or the global ones and with them the values that models take from them.
    pub fn change(&self, model: Option<&str>, change: &Change) -> Result<(), Refused> {
        let _one_at_a_time = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_on = {
            let mut table = self.table();
            match model {
                Some(model) => self.change_model(&mut table, model, change)?,
                None => self.change_global(&mut table, change)?,
            }
            table.global.can_sample() || table.models.values().any(|own| own.setting.can_sample())
        };
        if is_on {
            self.queue.start().map_err(|error| Refused::Thread(error.to_string()))?;
        }
        self.is_on.store(is_on, Ordering::Relaxed);
        Ok(())
    }

    fn change_global(&self, table: &mut Table, change: &Change) -> Result<(), Refused> {
        let start = Values::of_start(&self.options);
        let values = table.global.values().changed(change, &start);
        let global = self.fresh(values)?;
        let taken_over = |own: &OwnValues, setting: &Setting| own.over(&setting.values(), &global.values());
        let mut changed = Vec::new();
        for (name, Override { own, setting }) in &table.models {
            if !own.is_complete() {
                let values = taken_over(own, setting);
                changed.push((name.clone(), Arc::new(Setting::new(values, &self.options, &self.queue))));
            }
        }
        for (name, setting) in changed {
            if let Some(own) = table.models.get_mut(&name) {
                own.setting = setting;
            }
        }
        table.global = global;
        Ok(())
    }

    fn change_model(&self, table: &mut Table, model: &str, change: &Change) -> Result<(), Refused> {
        let global = table.global.values();
        let (mut own, present) = match table.models.get(model) {
            Some(Override { own, setting }) => (*own, setting.values()),
            None => (OwnValues::default(), global),
        };
        own.follow(change);
        if own.is_empty() {
            table.models.remove(model);
            return Ok(());
        }
        if !table.models.contains_key(model) && table.models.len() >= OVERRIDES_MAX {
            return Err(Refused::TooMany(OVERRIDES_MAX));
        }
        let setting = self.fresh(own.over(&present.changed(change, &global), &global))?;
        table.models.insert(model.to_owned(), Override { own, setting });
        Ok(())
    }

    /// A new setting, if its values are allowed.
    fn fresh(&self, values: Values) -> Result<Arc<Setting>, Refused> {
        let setting = Setting::new(values, &self.options, &self.queue);
        setting.check()?;
        Ok(Arc::new(setting))
    }

    /// The counts of dropped and written traces.
    pub fn counts(&self) -> &Arc<Counts> {
        self.queue.counts()
    }

    /// Traced requests of each model, for its histograms.
    pub fn exemplars(&self) -> &Exemplars {
        self.queue.exemplars()
    }

    /// Writes out and closes everything; later traces are dropped. Waits not longer than `timeout`: true if it was done
    /// by then.
    pub fn finish(&self, timeout: Duration) -> bool {
        self.is_on.store(false, Ordering::Relaxed);
        self.queue.finish(timeout)
    }
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traces").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
