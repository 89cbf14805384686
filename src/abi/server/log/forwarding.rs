//! Messages of shards on their way to an application's function.
//!
//! The function may wait as long as it likes, and one of Python waits for the interpreter's lock; a shard must not. So
//! another thread calls it for them, behind a bounded queue. The thread begins with the first such message, and ends
//! with the function.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::LogCallback;
use nereid_observe::log::{Message, MessageKind};

/// Messages that may wait.
const WAITING_MAX: usize = 1024;

thread_local! {
    /// True on a thread that calls the function for shards: what the function itself logs is dropped.
    static IS_FORWARDING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread calls the function for shards.
pub fn is_forwarding() -> bool {
    IS_FORWARDING.get()
}

/// A message that outlives the call that logged it.
struct Kept {
    kind: MessageKind,
    file: String,
    line: u32,
    at: Duration,
    text: String,
}

#[derive(Default)]
struct Counts {
    /// Messages for which there was no room.
    lost: AtomicU64,
    /// The function is no longer to be called.
    has_ended: AtomicBool,
}

/// See the [module](self).
#[derive(Default)]
pub struct Forwarding {
    sender: Mutex<Option<SyncSender<Kept>>>,
    counts: Arc<Counts>,
}

impl Forwarding {
    /// Hands over a message without waiting; it is lost and counted where there is no room.
    pub fn push(&self, callback: LogCallback, message: &Message<'_>) {
        let kept = Kept {
            kind: message.kind,
            file: message.file.to_owned(),
            line: message.line,
            at: message.at,
            text: message.text.to_owned(),
        };
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = sender.get_or_insert_with(|| {
            let (sender, waiting) = sync_channel(WAITING_MAX);
            let counts = Arc::clone(&self.counts);
            let deliver = move || deliver(callback, &waiting, &counts);
            // Without the thread every message is lost, since nothing receives.
            drop(std::thread::Builder::new().name("log-function".to_owned()).spawn(deliver));
            sender
        });
        if sender.try_send(kept).is_err() {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.counts.has_ended.store(true, Ordering::Release);
    }
}

fn deliver(callback: LogCallback, waiting: &Receiver<Kept>, counts: &Counts) {
    IS_FORWARDING.set(true);
    let call = |kind, file: &str, line, at, text: &str| callback.call(&Message { kind, file, line, at, text });
    while let Ok(Kept { kind, file, line, at, text }) = waiting.recv() {
        if counts.has_ended.load(Ordering::Acquire) {
            return;
        }
        let lost = counts.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let text = format!("{lost} messages of the threads for I/O are lost: the function of the log was busy");
            call(MessageKind::Warning, "forwarding.rs", line!(), at, &text);
            if counts.has_ended.load(Ordering::Acquire) {
                return;
            }
        }
        call(kind, &file, line, at, &text);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Calls(Mutex<Sender<(Option<String>, String)>>, Mutex<()>);

    unsafe extern "C-unwind" fn note(
        _: u32,
        _: *const c_char,
        _: c_int,
        _: u64,
        message: *const c_char,
        calls: *mut c_void,
    ) {
        // SAFETY: the test below keeps the calls, and the message is a C string.
        let (calls, text) = unsafe { (&*calls.cast::<Calls>(), CStr::from_ptr(message)) };
        let _may_go_on = calls.1.lock().unwrap();
        let thread = std::thread::current().name().map(str::to_owned);
        assert!(is_forwarding());
        calls.0.lock().unwrap().send((thread, text.to_str().unwrap().to_owned())).unwrap();
    }

    #[test]
    fn another_thread_calls_the_function_and_nothing_waits_for_it() {
        let (sender, called) = channel();
        let calls = Calls(Mutex::new(sender), Mutex::new(()));
        let callback = LogCallback { function: note, userp: (&raw const calls).cast_mut().cast() };
        let forwarding = Forwarding::default();
        let at = Duration::from_secs(1);
        let push = |text: &str| {
            forwarding.push(callback, &Message { kind: MessageKind::Info, file: "file", line: 1, at, text });
        };
        push("first");
        assert_eq!(called.recv().unwrap(), (Some("log-function".to_owned()), "first".to_owned()));
        let busy = calls.1.lock().unwrap();
        (0..WAITING_MAX * 2).for_each(|at| push(&at.to_string()));
        drop(busy);
        // What is lost is told before the next message that is not, at once or in parts: the thread may look for the
        // first time after some are lost.
        let (mut delivered, mut lost) = (0, 0);
        while delivered + lost < WAITING_MAX * 2 {
            let text = called.recv().unwrap().1;
            match text.strip_suffix(" messages of the threads for I/O are lost: the function of the log was busy") {
                Some(count) => lost += count.parse::<usize>().unwrap(),
                None => delivered += usize::from(text.parse::<usize>().is_ok()),
            }
        }
        // Beside those that waited there may be one that the function had already.
        assert!((WAITING_MAX..=WAITING_MAX + 1).contains(&delivered), "{delivered} delivered, {lost} lost");
        assert_eq!(delivered + lost, WAITING_MAX * 2);
    }
}
