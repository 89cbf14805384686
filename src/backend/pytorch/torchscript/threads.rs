//! The thread counts of the library, which has one of each for the whole process: the first model that gives a count
//! sets it (contract/frameworks.md section 1, "Parameters").

use std::sync::{Mutex, Once, PoisonError};

use super::settings::Settings;
use crate::torch::Shim;

/// The counts of this process.
static COUNTS: Mutex<Counts> = Mutex::new(Counts { is_limited: false, intra_op: None, inter_op: None });

#[derive(Debug, Default)]
struct Counts {
    /// The library got the number of cores for workers in place of all cores.
    is_limited: bool,
    intra_op: Option<Given>,
    inter_op: Option<Given>,
}

/// A count, and the model that gave it first; `None`: no model did before the library's threads started.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    count: i32,
    model: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Set(i32),
    /// The process has this count already.
    Keep,
    Ignore(Given),
}

/// What follows from a model's `count`; the first one is kept in `given`.
fn decide(given: &mut Option<Given>, count: i32, model: &str) -> Decision {
    match given {
        None => {
            *given = Some(Given { count, model: Some(model.to_owned()) });
            Decision::Set(count)
        }
        Some(first) if first.count == count => Decision::Keep,
        Some(first) => Decision::Ignore(first.clone()),
    }
}

/// Sets what the model gives, and logs what is in force. Without a count, operations use as many threads as there are
/// cores for workers.
pub fn apply(shim: &Shim, settings: &Settings, model: &str, worker_cpu_count: usize) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    if !counts.is_limited && worker_cpu_count > 0 {
        counts.is_limited = true;
        let limit = i32::try_from(worker_cpu_count).unwrap_or(i32::MAX);
        set("intra-op threads", shim.set_intra_op_threads(limit));
    }
    if let Some(count) = settings.intra_op_threads {
        match decide(&mut counts.intra_op, count, model) {
            Decision::Set(count) => set("INTRA_OP_THREAD_COUNT", shim.set_intra_op_threads(count)),
            other => log_ignored("INTRA_OP_THREAD_COUNT", count, model, &other),
        }
        let actual = shim.intra_op_threads();
        tracing::info!("Intra op thread count is set to {actual} for model instance '{model}'");
    }
    if let Some(count) = settings.inter_op_threads {
        match decide(&mut counts.inter_op, count, model) {
            Decision::Set(count) => set("INTER_OP_THREAD_COUNT", shim.set_inter_op_threads(count)),
            other => log_ignored("INTER_OP_THREAD_COUNT", count, model, &other),
        }
        let actual = shim.inter_op_threads();
        tracing::info!("Inter op thread count is set to {actual} for model instance '{model}'");
    }
}

/// Limits the threads that run operations side by side to the cores for workers, unless a model has given a count. The
/// library starts these threads within a run, and their number stays, so this is called before the first one; a model
/// that is loaded before then can still give its count.
pub fn limit_inter_op(shim: &Shim, worker_cpu_count: usize) {
    static LIMITED: Once = Once::new();
    LIMITED.call_once(|| {
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.inter_op.is_none() && worker_cpu_count > 0 {
            let count = i32::try_from(worker_cpu_count).unwrap_or(i32::MAX);
            set("inter-op threads", shim.set_inter_op_threads(count));
            counts.inter_op = Some(Given { count, model: None });
        }
    });
}

/// The number of threads of an operation for `model`, whose platform sets it for its own threads.
pub fn intra_op_count(count: Option<i32>, model: &str, worker_cpu_count: usize) -> i32 {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(count) = count {
        let decision = decide(&mut counts.intra_op, count, model);
        if decision != Decision::Set(count) {
            log_ignored("INTRA_OP_THREAD_COUNT", count, model, &decision);
        }
    }
    let of_workers = || i32::try_from(worker_cpu_count.max(1)).unwrap_or(i32::MAX);
    let actual = counts.intra_op.as_ref().map_or_else(of_workers, |given| given.count);
    if count.is_some() {
        tracing::info!("Intra op thread count is set to {actual} for model instance '{model}'");
    }
    actual
}

/// Calls `set` with the number of operations side by side, if `model` is the first that gives one.
pub fn set_inter_op_count(count: i32, model: &str, set: impl FnOnce(i32)) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    match decide(&mut counts.inter_op, count, model) {
        Decision::Set(count) => set(count),
        other => log_ignored("INTER_OP_THREAD_COUNT", count, model, &other),
    }
    let actual = counts.inter_op.as_ref().map_or(count, |given| given.count);
    tracing::info!("Inter op thread count is set to {actual} for model instance '{model}'");
}

fn set(what: &str, outcome: Result<(), String>) {
    if let Err(text) = outcome {
        tracing::warn!("{what} cannot be set: {text}");
    }
}

fn log_ignored(key: &str, count: i32, model: &str, decision: &Decision) {
    let Decision::Ignore(Given { count: first, model: of }) = decision else { return };
    match of {
        Some(of) => tracing::warn!(
            "{key} {count} of model '{model}' is ignored: model '{of}' has set it to {first} for the whole process"
        ),
        None => tracing::warn!(
            "{key} {count} of model '{model}' is ignored: the process has {first} since a model was executed"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_model_that_gives_a_count_wins() {
        let mut given = None;
        assert_eq!(decide(&mut given, 4, "first"), Decision::Set(4));
        assert_eq!(decide(&mut given, 4, "second"), Decision::Keep);
        let first = Given { count: 4, model: Some("first".to_owned()) };
        assert_eq!(decide(&mut given, 2, "third"), Decision::Ignore(first.clone()));
        assert_eq!(given, Some(first), "the first one stays");
    }
}
