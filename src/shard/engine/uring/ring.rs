//! The ring itself: its set-up, the chunks that it shares with the kernel, submission without failure, completions.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use io_uring::types::Timespec;
use io_uring::{Builder, EnterFlags, IoUring, cqueue, squeue};

use super::super::chunk::Chunks;

#[cfg(test)]
pub mod refusals;

/// The kernel's name for our chunks.
pub(super) const CHUNK_GROUP: u16 = 0;
/// Operations that one system call starts; more wait in `backlog`.
const SUBMISSIONS: u32 = if cfg!(test) { 8 } else { 1024 };
/// Beyond this the kernel keeps completions for us (`IORING_FEAT_NODROP`) and sets a flag. Tests overflow all the time.
const COMPLETIONS: u32 = if cfg!(test) { 16 } else { 4096 };

/// Why io_uring cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The system call is not there.
    #[error("{0} answers ENOSYS: the kernel has no io_uring, or a seccomp filter hides it")]
    Absent(&'static str),
    /// The system call is refused.
    #[error("{0} is forbidden to this process, by a seccomp filter or by kernel.io_uring_disabled")]
    Forbidden(&'static str),
    #[error("there is not enough memory, or too little may be locked (ulimit -l), for io_uring")]
    Memory,
    #[error("the kernel's io_uring has no {}", .0.join(", no "))]
    Lacks(Vec<&'static str>),
    #[error("only {limit} bytes of memory may be locked (ulimit -l), {needed} are needed")]
    LockLimit { limit: u64, needed: u64 },
    #[error("the executor that hosts a shard does not start: {0}")]
    Host(io::Error),
    #[error(transparent)]
    System(io::Error),
}

impl Unavailable {
    /// The error for a failed `call`, one of io_uring's system calls. A filter may refuse each of them alone.
    pub(crate) fn refused(call: &'static str) -> impl Fn(io::Error) -> Unavailable {
        move |error| match error.raw_os_error() {
            Some(libc::ENOSYS) => Unavailable::Absent(call),
            Some(libc::EPERM | libc::EACCES) => Unavailable::Forbidden(call),
            Some(libc::ENOMEM) => Unavailable::Memory,
            _ => Unavailable::System(error),
        }
    }
}

/// A failure outside the ring, which is not io_uring's; its text names the cause.
impl From<io::Error> for Unavailable {
    fn from(error: io::Error) -> Unavailable {
        Unavailable::System(error)
    }
}

/// How long a turn waits at most while the kernel refuses to take operations.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy)]
pub(super) enum Wait {
    No,
    AtMost(Duration),
    Forever,
}

/// `io_uring_getevents_arg` of the kernel's interface.
#[repr(C)]
struct WaitArgument {
    signals: u64,
    signals_size: u32,
    wait_min_us: u32,
    /// The address of a [`Timespec`].
    time: u64,
}

/// A completion, out of the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

pub(super) struct Ring {
    /// Closed before the chunks are let go.
    ring: IoUring,
    chunks: Rc<Chunks>,
    /// What found no place in the submission queue, in order. At most a few operations per connection.
    backlog: VecDeque<squeue::Entry>,
    /// Operations that were pushed since the ring exists.
    pushed: u64,
    skips_successes: bool,
    #[cfg(test)]
    refusals: refusals::Refusals,
}

/// A set-up flag that a kernel may lack: its description, and the call that sets it.
type SetupFlag = (&'static str, fn(&mut Builder));

const SETUP_FLAGS: [SetupFlag; 4] = [
    ("cooperative task running (Linux 5.19)", |ring| {
        ring.setup_coop_taskrun().setup_taskrun_flag();
    }),
    ("single issuer (Linux 6.0)", |ring| {
        ring.setup_single_issuer();
    }),
    ("deferred task running (Linux 6.1)", |ring| {
        ring.setup_single_issuer().setup_defer_taskrun();
    }),
    ("submission of a whole batch (Linux 5.18)", |ring| {
        ring.setup_submit_all();
    }),
];

impl Ring {
    pub(super) fn new(chunks: usize) -> Result<Ring, Unavailable> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).setup_clamp().dontfork();
        SETUP_FLAGS.iter().for_each(|(_, set)| set(&mut builder));
        let ring = match builder.build(SUBMISSIONS) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Err(missing(error)),
            other => other.map_err(Unavailable::refused("io_uring_setup"))?,
        };
        let have = ring.params();
        let features = [
            (have.is_feature_nodrop(), "completions that are never dropped (Linux 5.5)"),
            (have.is_feature_submit_stable(), "stable submissions (Linux 5.5)"),
            (have.is_feature_fast_poll(), "internal polling (Linux 5.7)"),
            (have.is_feature_ext_arg(), "waiting with a timeout (Linux 5.11)"),
        ];
        let lacks: Vec<_> = features.iter().filter(|(there, _)| !there).map(|(_, name)| *name).collect();
        if !lacks.is_empty() {
            return Err(Unavailable::Lacks(lacks));
        }
        let chunks = Chunks::in_ring(chunks)?;
        let address = chunks.ring_address().unwrap_or_default();
        // SAFETY: the ring of chunks has this many entries and lives as long as `ring`, with which it is dropped.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, chunks.count() as u16, CHUNK_GROUP, 0) }
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => Unavailable::Lacks(vec!["rings of provided buffers (Linux 5.19)"]),
                _ => Unavailable::refused("io_uring_register")(error),
            })?;
        Ok(Ring {
            skips_successes: ring.params().is_feature_skip_cqe_on_success(),
            ring,
            chunks,
            backlog: VecDeque::new(),
            pushed: 0,
            #[cfg(test)]
            refusals: refusals::Refusals::of_new_ring(),
        })
    }

    pub(super) fn chunks(&self) -> &Rc<Chunks> {
        &self.chunks
    }

    /// Whether an operation may go without the completion of its success (`IORING_FEAT_CQE_SKIP`, Linux 5.17).
    pub(super) fn skips_successes(&self) -> bool {
        self.skips_successes
    }

    /// The number of operations that were pushed, which is also that of the last one.
    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Up to which number the kernel has taken the operations: it takes them in their order.
    pub(super) fn taken(&mut self) -> u64 {
        self.pushed - (self.backlog.len() + self.ring.submission().len()) as u64
    }

    /// # Safety
    /// What the entry points to stays valid, and is used by no other code, until the completion was taken.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        self.pushed += 1;
        // SAFETY: what the entry names stays valid until its completion: this function requires it of its caller.
        if self.backlog.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.backlog.push_back(entry);
        // Makes room now; what is left goes with the next turn, which also reports what is wrong.
        let _ = self.enter(Wait::No);
        self.refill();
    }

    fn refill(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as promised to `push`.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Submits everything, then waits. It is one `io_uring_enter` as a rule, and none if there is nothing to submit, to
    /// wait for or to run.
    ///
    /// The kernel may refuse what is submitted (EAGAIN: no memory; EBUSY: too many completions that were not taken). A
    /// refused operation can be the one that would end the wait, so a turn with refused operations waits no longer than
    /// [`RETRY`], and does not return at once either, which would make the shard spin.
    ///
    /// True if it was ready to wait.
    pub(super) fn enter(&mut self, wait: Wait) -> io::Result<bool> {
        self.enter_and(wait, wait)
    }

    /// Submits everything. It waits only for a moment to retry, if that is needed and `wait` permits it.
    pub(super) fn submit(&mut self, wait: Wait) -> io::Result<bool> {
        self.enter_and(Wait::No, wait)
    }

    fn enter_and(&mut self, wait: Wait, wait_if_refused: Wait) -> io::Result<bool> {
        loop {
            self.refill();
            let (queued, has_work) = {
                let queue = self.ring.submission();
                (queue.len(), queue.taskrun() || queue.cq_overflow())
            };
            let takes_all = self.backlog.is_empty();
            let wait_now = if takes_all { wait } else { Wait::No };
            if matches!(wait_now, Wait::No) && queued == 0 && !has_work {
                return Ok(false);
            }
            match self.call(queued, wait_now)? {
                taken if taken < queued => return self.wait_to_retry(wait_if_refused),
                _ if takes_all => return Ok(!matches!(wait, Wait::No)),
                _ => {}
            }
        }
    }

    /// Lets completions come, which the kernel does not after a refusal; they also free what it lacked.
    fn wait_to_retry(&mut self, wait: Wait) -> io::Result<bool> {
        let wait = match wait {
            Wait::No => Wait::No,
            Wait::AtMost(time) => Wait::AtMost(time.min(RETRY)),
            Wait::Forever => Wait::AtMost(RETRY),
        };
        self.call(0, wait)?;
        Ok(!matches!(wait, Wait::No))
    }

    /// One `io_uring_enter`. Returns how many operations the kernel took; it waits only if it took all.
    fn call(&mut self, submit: usize, wait: Wait) -> io::Result<usize> {
        #[cfg(test)]
        if submit > 0 && self.refusals.next() {
            return Ok(0);
        }
        let submitter = self.ring.submitter();
        let (flags, submit) = (EnterFlags::GETEVENTS, submit as u32);
        let entered = match wait {
            Wait::No | Wait::Forever => {
                let wanted = u32::from(matches!(wait, Wait::Forever));
                // SAFETY: no argument is passed; what is submitted keeps the promise of `push`.
                unsafe { submitter.enter::<libc::sigset_t>(submit, wanted, flags.bits(), None) }
            }
            Wait::AtMost(time) => {
                let time = Timespec::new().sec(time.as_secs()).nsec(time.subsec_nanos());
                let argument =
                    WaitArgument { signals: 0, signals_size: 0, wait_min_us: 0, time: &raw const time as u64 };
                let flags = (flags | EnterFlags::EXT_ARG).bits();
                // SAFETY: the argument has the layout that the flag states, and its time outlives the call.
                unsafe { submitter.enter(submit, 1, flags, Some(&argument)) }
            }
        };
        match entered.map_err(|error| error.raw_os_error().ok_or(error)) {
            Ok(taken) => Ok(taken),
            // A signal; the time is up: the kernel returns these only where it had nothing to submit.
            Err(Ok(libc::EINTR | libc::ETIME)) => Ok(submit as usize),
            Err(Ok(libc::EAGAIN | libc::EBUSY)) => Ok(0),
            Err(Ok(code)) => Err(io::Error::from_raw_os_error(code)),
            Err(Err(error)) => Err(error),
        }
    }

    /// Completions that were not taken, those included for which the queue had no room.
    pub(super) fn has_unread_completions(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.ring.submission().cq_overflow()
    }

    /// There are completions, or the kernel has work that may lead to some and that it does in the next call.
    pub(super) fn has_news(&mut self) -> bool {
        self.has_unread_completions() || self.ring.submission().taskrun()
    }

    /// All completions that have room in the queue.
    pub(super) fn take(&mut self, into: &mut Vec<Completion>) {
        into.extend(self.ring.completion().map(|entry: cqueue::Entry| Completion {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
    }

    /// Leaves the chunks to the kernel, which did not hand back all operations.
    pub(super) fn leak_memory(&mut self) {
        std::mem::forget(Rc::clone(&self.chunks));
    }
}

/// Finds out which of the set-up flags the kernel lacks.
fn missing(error: io::Error) -> Unavailable {
    let lacks = SETUP_FLAGS.iter().filter(|(_, set)| {
        let mut builder = IoUring::builder();
        set(&mut builder);
        builder.build(8).is_err()
    });
    let lacks: Vec<_> = lacks.map(|(name, _)| *name).collect();
    if lacks.is_empty() { Unavailable::System(error) } else { Unavailable::Lacks(lacks) }
}
