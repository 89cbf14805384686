//! The progress of an installation, as the user sees it.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::ProgressBar;

/// Receives the steps of an installation; each step ends the one before it.
pub trait Progress {
    fn step(&mut self, what: &str);

    /// The last word of the work.
    fn done(&mut self, what: &str);
}

/// Shows no progress.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _what: &str) {}

    fn done(&mut self, _what: &str) {}
}

/// A spinner on a terminal, plain lines elsewhere; both on stderr, so that stdout carries only the result.
pub struct Terminal {
    spinner: Option<ProgressBar>,
}

impl Terminal {
    pub fn new() -> Terminal {
        let spinner = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        if let Some(spinner) = &spinner {
            spinner.enable_steady_tick(Duration::from_millis(100));
        }
        Terminal { spinner }
    }
}

impl Default for Terminal {
    fn default() -> Terminal {
        Terminal::new()
    }
}

impl Progress for Terminal {
    fn step(&mut self, what: &str) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }

    fn done(&mut self, what: &str) {
        match self.spinner.take() {
            Some(spinner) => spinner.finish_with_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }
}
