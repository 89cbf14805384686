//! Ctrl-C: the first one ends a run in good order, the second one ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use super::PerfError;

/// Watches for signals while it lives.
pub struct Interrupt {
    raised: Arc<AtomicBool>,
    hooks: Vec<SigId>,
}

impl Interrupt {
    pub fn watch() -> Result<Interrupt, PerfError> {
        let raised = Arc::new(AtomicBool::new(false));
        let mut interrupt = Interrupt { raised: Arc::clone(&raised), hooks: Vec::new() };
        let system = |source| PerfError::System { what: "signals".to_owned(), source };
        for signal in [SIGINT, SIGTERM] {
            // In this order: what was not raised before does not end the process.
            let ends = flag::register_conditional_default(signal, Arc::clone(&raised)).map_err(system)?;
            interrupt.hooks.push(ends);
            let raises = flag::register(signal, Arc::clone(&raised)).map_err(system)?;
            interrupt.hooks.push(raises);
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
