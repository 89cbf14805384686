//! Ctrl-C and SIGTERM: the run ends in good order, with what was measured. The scratch server is ended in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use super::TuneError;

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
        for signal in [SIGINT, SIGTERM] {
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
