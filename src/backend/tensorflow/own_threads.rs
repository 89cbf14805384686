//! Bounds the threads of sessions that have threads of their own between operations. The library starts all threads of
//! a session at once, and ends the process if the system refuses one.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::settings::ModelSettings;
use nereid_request::Status;

/// Threads of all such sessions of the process: the most that one model may ask for.
const OWN_THREADS_MAX: usize = 4096;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The share of one session, given back with it.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnThreads(usize);

impl OwnThreads {
    /// `None` for a model whose sessions share the pools of the process.
    pub fn of(name: &str, settings: &ModelSettings) -> Result<Option<OwnThreads>, Status> {
        if !settings.has_own_threads {
            return Ok(None);
        }
        // Without a count the library starts one thread for each CPU.
        let given = usize::try_from(settings.inter_op_threads).ok().filter(|count| *count > 0);
        let count = given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let sum = |taken: usize| taken.checked_add(count).filter(|sum| *sum <= OWN_THREADS_MAX);
        match TAKEN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum) {
            Ok(_) => Ok(Some(OwnThreads(count))),
            Err(taken) => Err(Status::unavailable(format!(
                "model '{name}' needs {count} threads of its own for a session (TF_USE_PER_SESSION_THREADS), but \
                 sessions have {taken} of at most {OWN_THREADS_MAX} already. Lower TF_NUM_INTER_THREADS, or raise \
                 MAX_SESSION_SHARE_COUNT"
            ))),
        }
    }
}

impl Drop for OwnThreads {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::parameters;

    fn of(count: &str, own: &str) -> Result<Option<OwnThreads>, Status> {
        let given = [("TF_NUM_INTER_THREADS", count), ("TF_USE_PER_SESSION_THREADS", own)];
        OwnThreads::of("m", &ModelSettings::parse(&parameters(&given)).unwrap())
    }

    #[test]
    fn sessions_get_no_more_threads_of_their_own_than_the_process_may_have() {
        assert_eq!(of("4000", "false"), Ok(None));
        // Other tests may hold a few.
        let first = of("3000", "true").unwrap();
        let text = of("2000", "true").unwrap_err().message;
        assert!(text.starts_with("model 'm' needs 2000 threads of its own for a session (TF_USE_PER"), "{text}");
        assert!(text.contains(" of at most 4096 already. Lower TF_NUM_INTER_THREADS"), "{text}");
        drop(first);
        let again = of("3000", "true").unwrap().expect("threads of its own");
        assert_eq!(again.0, 3000);
        drop(again);
        let default = of("0", "true").unwrap().expect("threads of its own");
        assert!(default.0 > 0 && default.0 < 3000, "{default:?}");
    }
}
