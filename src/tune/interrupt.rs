//! Ctrl-C, SIGTERM, SIGQUIT and the end of the terminal: the run ends in good order, with what was measured. The
//! scratch server is ended in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use super::TuneError;

/// Whether this process ignores a signal, by the kernel's mask.
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_in_mask(&status, signal))
}

fn is_in_mask(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

/// Watches for signals while it lives.
#[derive(Debug)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
    hooks: Vec<SigId>,
}

impl Interrupt {
    pub fn watch() -> Result<Interrupt, TuneError> {
        let raised = Arc::new(AtomicBool::new(false));
        let mut interrupt = Interrupt { raised: Arc::clone(&raised), hooks: Vec::new() };
        // As nohup(1) wants it.
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM, SIGQUIT].into_iter().chain(hang_up) {
            let hook = flag::register(signal, Arc::clone(&raised))
                .map_err(|source| TuneError::System { what: "signals".to_owned(), source })?;
            interrupt.hooks.push(hook);
        }
        Ok(interrupt)
    }

    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for hook in self.hooks.drain(..) {
            low_level::unregister(hook);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_in_the_mask() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert!(is_in_mask(status, SIGHUP) && !is_in_mask(status, SIGINT) && !is_in_mask(status, 0));
        assert!(!is_in_mask("", SIGHUP));
    }
}
