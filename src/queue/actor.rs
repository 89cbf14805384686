//! What reads the mail that other threads post, in turns of the thread on which it lives.

/// What does its work in turns, on the thread of its owner: a shard's service behind the connections.
pub trait Actor {
    /// What other threads post to it.
    type Mail: Send;
    /// Where it puts what it has to say. The owner takes it from there later in the same turn.
    type Replies;

    fn mail(&mut self, mail: Self::Mail, replies: &mut Self::Replies);

    /// Called once a turn, after the mail and before the owner takes the replies: goes on with work that was put off to
    /// keep turns short, and wakes the threads that have to be woken.
    fn work(&mut self, replies: &mut Self::Replies);

    /// True while there is work that no mail and no event will announce: the turn does not park.
    fn has_work(&self) -> bool {
        false
    }

    /// When it next has something to do by itself, as a time of the monotonic clock.
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Does what is due. What comes of it is told by mail.
    fn on_time(&mut self, _now_ns: u64) {}
}

/// The actor of an owner that has none.
#[derive(Debug)]
pub enum NoActor {}

impl Actor for NoActor {
    type Mail = NoActor;
    type Replies = ();

    fn mail(&mut self, _: NoActor, (): &mut ()) {}

    fn work(&mut self, (): &mut ()) {}
}
