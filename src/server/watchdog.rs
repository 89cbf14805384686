//! Watches the shards: a shard that does not read its mail for [`STUCK_AFTER`] makes the server not live, and is logged
//! with its stack.
//!
//! The watch has its own thread: the shards answer questions about the server's health, a shard that hangs cannot, and
//! with one shard no other can. Under systemd with `WatchdogSec=` the watch reports that the server lives
//! (sd_notify(3)), and stops when a shard hangs or the server panics again and again; systemd then restarts the server.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{error, info};

use super::supervisor;
use crate::api::{Facts, ServerState};
use nereid_observe::panics;
use nereid_observe::stacks::{self, ThreadNumber};
use nereid_request::Job;

/// A shard that has not read its mail for so long is stuck. A turn has a budget of 100 µs, so this is no busy shard.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// How often the shards are asked, unless the service manager wants to be notified more often.
const TICK: Duration = Duration::from_secs(1);
/// The shortest such time.
const TICK_MIN: Duration = Duration::from_millis(10);

/// Posts a job to a shard. False: the shard has ended.
pub type PostJob = Box<dyn Fn(Box<dyn Job>) -> bool + Send>;

/// What a shard writes when it reads its mail.
#[derive(Default)]
struct Heartbeat {
    /// The number of the last question that it has read.
    beats: AtomicU64,
    thread: AtomicI32,
}

/// One shard, and the last question to it.
struct Watched {
    post: PostJob,
    heartbeat: Arc<Heartbeat>,
    asked: u64,
    asked_at: Instant,
    is_stuck: bool,
    has_ended: bool,
}

/// The thread that watches, until it is dropped.
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// `notify_every`: how often the supervisor is to be notified; `None` in an application, which answers for itself.
    pub fn start(shards: Vec<PostJob>, facts: Arc<Facts>, notify_every: Option<Duration>) -> io::Result<Watchdog> {
        let (stop, stopped) = channel::<()>();
        let tick = notify_every.map_or(TICK, |every| every.min(TICK)).max(TICK_MIN);
        let start = Instant::now();
        let mut shards: Vec<_> = shards.into_iter().map(|post| Watched::new(post, start)).collect();
        let watch = move || {
            let mut last = start;
            while stopped.recv_timeout(tick) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                // The process may have been stopped meanwhile, shards included.
                let was_late = now.saturating_duration_since(last) > tick + STUCK_AFTER / 2;
                last = now;
                // The watch goes on: without it a service manager would end a server that serves.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    // At the end of the server the shards end too.
                    let is_ending = facts.state() == ServerState::Exiting;
                    for (number, shard) in shards.iter_mut().enumerate() {
                        shard.check(number, now, was_late);
                        if shard.has_ended && !is_ending {
                            shard.report_end(number);
                        }
                    }
                }));
                let stuck = shards.iter().filter(|shard| shard.is_stuck).count();
                facts.stuck_shards.store(stuck, Ordering::Release);
                if notify_every.is_some() && stuck == 0 && !panics::are_too_many() {
                    supervisor::notify(supervisor::WATCHDOG);
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
        Ok(Watchdog { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Watched {
    /// Counts a shard that has ended as one that is stuck, for good: its connections get no answers.
    fn report_end(&mut self, number: usize) {
        if !std::mem::replace(&mut self.is_stuck, true) {
            error!(
                "shard {number} ended by itself: its connections get no answers; close its ports and open them again"
            );
        }
    }

    fn new(post: PostJob, now: Instant) -> Watched {
        Watched { post, heartbeat: Arc::default(), asked: 0, asked_at: now, is_stuck: false, has_ended: false }
    }

    fn check(&mut self, number: usize, now: Instant, was_late: bool) {
        if self.heartbeat.beats.load(Ordering::Acquire) == self.asked {
            if !self.has_ended && std::mem::take(&mut self.is_stuck) {
                info!("shard {number} goes on");
            }
            self.asked += 1;
            self.asked_at = now;
            let (heartbeat, asked) = (Arc::clone(&self.heartbeat), self.asked);
            let is_running = (self.post)(Box::new(move |_: &mut dyn nereid_request::Home| {
                heartbeat.thread.store(ThreadNumber::current().to_raw(), Ordering::Relaxed);
                heartbeat.beats.store(asked, Ordering::Release);
            }));
            if !is_running {
                self.asked -= 1;
                self.has_ended = true;
            }
        } else if was_late {
            self.asked_at = now;
        } else if !self.is_stuck && now.saturating_duration_since(self.asked_at) >= STUCK_AFTER {
            self.is_stuck = true;
            let thread = ThreadNumber::from_raw(self.heartbeat.thread.load(Ordering::Relaxed));
            let stack = thread.and_then(stacks::of_thread);
            let stack = stack.map(|stack| format!("\nstack of its thread:{stack}")).unwrap_or_default();
            let secs = STUCK_AFTER.as_secs();
            error!("shard {number} is stuck: it has not read its mail for {secs} s; the server is not live{stack}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    type Jobs = Arc<Mutex<Vec<Box<dyn Job>>>>;

    /// A shard, and the jobs that it has not run yet.
    fn watched(start: Instant, is_running: bool) -> (Watched, Jobs) {
        let jobs = Jobs::default();
        let kept = Arc::clone(&jobs);
        let post = move |job| {
            kept.lock().unwrap().push(job);
            is_running
        };
        (Watched::new(Box::new(post), start), jobs)
    }

    struct NoHome;

    impl nereid_request::Home for NoHome {
        fn wake(&mut self, _: nereid_request::WakeUp) {}
        fn run_at(&mut self, _: u64, _: Box<dyn Job>) {}
    }

    #[test]
    fn a_shard_is_stuck_while_it_does_not_read_its_mail() {
        let start = Instant::now();
        let after = |secs| start + Duration::from_secs(secs);
        let (mut shard, jobs) = watched(start, true);
        let read = || jobs.lock().unwrap().drain(..).for_each(|job| job.run(&mut NoHome));
        for second in 0..30 {
            shard.check(0, after(second), false);
            read();
        }
        assert!(!shard.is_stuck);
        for second in 30..40 {
            shard.check(0, after(second), false);
            assert!(!shard.is_stuck, "{second}");
        }
        // The whole process was stopped.
        shard.check(0, after(100), true);
        assert!(!shard.is_stuck);
        shard.check(0, after(109), false);
        assert!(!shard.is_stuck);
        shard.check(0, after(110), false);
        assert!(shard.is_stuck);
        assert_eq!(jobs.lock().unwrap().len(), 1, "no mail is added to what it does not read");
        read();
        shard.check(0, after(111), false);
        assert!(!shard.is_stuck);
        let (mut ended, _jobs) = watched(start, false);
        (0..30).for_each(|second| ended.check(0, after(second), false));
        assert!(ended.has_ended && !ended.is_stuck, "a shard that has ended is not stuck");
        for second in 30..60 {
            ended.report_end(0);
            ended.check(0, after(second), false);
            assert!(ended.is_stuck, "it answers no more");
        }
    }
}
