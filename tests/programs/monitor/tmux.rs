//! A terminal for a program: a server of tmux of its own, with one window.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nereid_test_support::server::PATIENCE;
use nereid_test_support::skip::skip;

/// A window of tmux; dropping it ends its programs.
pub struct Terminal {
    /// The name of the server's socket.
    socket: String,
}

impl Terminal {
    /// Runs a line of sh in a terminal of this size. None, after a visible skip, where there is no tmux.
    pub fn start(width: u16, height: u16, line: &str) -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            skip("there is no tmux command");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let terminal = Terminal { socket: format!("nereid-test-{}-{count}", std::process::id()) };
        let (width, height) = (width.to_string(), height.to_string());
        // The last word is for a shell, which is sh whatever the user's is.
        let words = ["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, "sh", "-c", line];
        let started = terminal.tmux(&words);
        assert!(started.status.success(), "tmux does not start: {started:?}");
        Some(terminal)
    }

    fn tmux(&self, words: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.args(["-u", "-L", &self.socket]).args(words).env_remove("TMUX");
        command.output().expect("run tmux")
    }

    /// Presses keys, by tmux's names of them.
    pub fn press(&self, keys: &[&str]) {
        let pressed = self.tmux(&[&["send-keys"], keys].concat());
        assert!(pressed.status.success(), "{pressed:?}");
    }

    pub fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        let resized = self.tmux(&["resize-window", "-x", &width, "-y", &height]);
        assert!(resized.status.success(), "{resized:?}");
    }

    /// The screen as text.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    /// The screen with its escape sequences.
    pub fn screen_with_colours(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p", "-e"]).stdout).into_owned()
    }

    /// Waits until the screen fits, and returns it.
    pub fn wait_for(&self, what: &str, mut fits: impl FnMut(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let screen = self.screen();
            if fits(&screen) {
                return screen;
            }
            assert!(started.elapsed() < PATIENCE, "the screen never shows {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn wait_for_text(&self, text: &str) -> String {
        self.wait_for(text, |screen| screen.contains(text))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
