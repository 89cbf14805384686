//! The mailbox through which other threads reach a shard: they post, and wake it only if it sleeps.
//!
//! Posting cannot fail and never waits. What bounds a mailbox is what may be posted to it: responses of admitted
//! requests, one model map per swap, connections that the acceptor counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::engine::Waker;
use nereid_queue::waits::SHARDS;
use nereid_queue::{Mpsc, Post, Sleeper};

/// What is posted to a shard, by its reader there.
pub enum Mail<H, A> {
    /// For the [handler](super::Handler): connections come, go and end.
    Handler(H),
    /// For the handler's [actor](nereid_queue::Actor).
    Actor(A),
}

impl<H, A> From<H> for Mail<H, A> {
    #[inline]
    fn from(mail: H) -> Mail<H, A> {
        Mail::Handler(mail)
    }
}

/// The senders' end. Clones post to the same shard.
pub struct Mailbox<M>(Arc<MailboxState<M>>);

/// The shard's end. There is one.
pub struct Inbox<M>(Arc<MailboxState<M>>);

struct MailboxState<M> {
    queue: Mpsc<M>,
    sleeper: Sleeper<Waker>,
    closed: AtomicBool,
}

/// A mailbox and its inbox.
pub fn mailbox<M>() -> io::Result<(Mailbox<M>, Inbox<M>)> {
    let sleeper = Sleeper::new(Waker::new()?);
    let shared = Arc::new(MailboxState { queue: Mpsc::new(), sleeper, closed: AtomicBool::new(false) });
    Ok((Mailbox(Arc::clone(&shared)), Inbox(shared)))
}

impl<M> Mailbox<M> {
    /// Hands `mail` to the shard. If the shard is gone, the mail is dropped.
    pub fn post(&self, mail: impl Into<M>) {
        if self.0.closed.load(Ordering::Acquire) {
            return;
        }
        self.0.queue.push(mail.into());
        if self.0.sleeper.notify() {
            SHARDS.count_wake_up();
        }
    }

    /// True once the shard is gone.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }
}

/// Posts every type that converts into mail of the actor.
impl<H: Send, A: Send + From<T>, T> Post<T> for Mailbox<Mail<H, A>> {
    #[inline]
    fn post(&self, mail: T) {
        Mailbox::post(self, Mail::Actor(mail.into()));
    }
}

impl<M> Inbox<M> {
    /// Takes at most `most` mails, oldest first, and returns how many there were.
    pub fn drain(&mut self, most: usize, mut read: impl FnMut(M)) -> usize {
        let Some(mut consumer) = self.0.queue.consume() else { return 0 };
        let mut taken = 0;
        while taken < most
            && let Some(mail) = consumer.pop()
        {
            taken += 1;
            read(mail);
        }
        taken
    }

    /// Runs `park`, which waits for the [`waker`](Inbox::waker), unless there is mail. Mail that comes meanwhile ends
    /// it.
    pub fn sleep<R>(&mut self, park: impl FnOnce() -> R) -> Option<R> {
        let has_mail = || self.0.queue.consume().is_none_or(|consumer| !consumer.is_empty());
        self.0.sleeper.sleep(has_mail, park)
    }

    /// The waker that posting uses; the engine waits for it.
    pub fn waker(&self) -> Waker {
        self.0.sleeper.waker().clone()
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Mailbox<M> {
        Mailbox(Arc::clone(&self.0))
    }
}

impl<M> Drop for Inbox<M> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.drain(usize::MAX, drop);
    }
}

impl<M> std::fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

impl<M> std::fmt::Debug for Inbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_comes_in_order_and_in_portions() {
        let (mailbox, mut inbox) = mailbox::<i32>().unwrap();
        let second = mailbox.clone();
        mailbox.post(1);
        second.post(2);
        mailbox.post(3);
        let mut read = Vec::new();
        assert_eq!(inbox.drain(2, |mail| read.push(mail)), 2);
        assert_eq!(inbox.sleep(|| ()), None, "there is mail");
        assert_eq!(inbox.drain(2, |mail| read.push(mail)), 1);
        assert_eq!(inbox.drain(2, |mail| read.push(mail)), 0);
        assert_eq!(read, [1, 2, 3]);
        assert_eq!(inbox.sleep(|| "slept"), Some("slept"));
    }

    /// The counter of an eventfd counts its writes: a batch of answers is one wake-up.
    #[test]
    fn a_sleeping_shard_is_woken_once_for_many_mails() {
        let (mailbox, mut inbox) = mailbox::<i32>().unwrap();
        let waker = inbox.waker();
        mailbox.post(0);
        assert_eq!(waker.count(), 0, "it is awake");
        inbox.drain(10, drop);
        let slept = inbox.sleep(|| (1..=16).for_each(|mail| mailbox.post(mail)));
        assert_eq!((slept, waker.count()), (Some(()), 1));
        assert_eq!(inbox.drain(100, drop), 16);
    }

    #[test]
    fn mail_without_a_reader_is_dropped() {
        let (mailbox, inbox) = mailbox::<Arc<()>>().unwrap();
        let mail = Arc::new(());
        mailbox.post(Arc::clone(&mail));
        assert!(!mailbox.is_closed());
        drop(inbox);
        assert!(mailbox.is_closed());
        mailbox.post(Arc::clone(&mail));
        assert_eq!(Arc::strong_count(&mail), 1);
    }

    #[test]
    fn a_reader_may_post_to_itself() {
        let (mailbox, mut inbox) = mailbox::<u32>().unwrap();
        mailbox.post(3_u32);
        let mut read = 0;
        inbox.drain(10, |left: u32| {
            read += 1;
            if left > 0 {
                mailbox.post(left - 1);
            }
        });
        assert_eq!(read, 4);
    }
}
