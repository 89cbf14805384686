//! The [`Actor`] of a thread: it processes the mail that other threads post, in turns of the thread that owns it.

/// Work that runs in turns on the thread of its owner: a shard's service behind the connections.
pub trait Actor {
    /// What other threads post to it.
    type Mail: Send;
    /// The queue of its replies. The owner takes them later in the same turn.
    type Replies;

    fn mail(&mut self, mail: Self::Mail, replies: &mut Self::Replies);

    /// Called once a turn, after the mail and before the owner takes the replies: goes on with work that was put off to
    /// keep turns short, and wakes the threads that have to be woken. The bounds of a turn begin anew here.
    fn work(&mut self, replies: &mut Self::Replies);

    /// Called before the owner sleeps, in the same turn: the same for what has come since [`work`](Actor::work), within
    /// what that has left of the turn's bounds.
    fn work_on(&mut self, replies: &mut Self::Replies);

    /// True while there is work for which neither mail nor an event will come: then the turn does not park.
    fn has_work(&self) -> bool {
        false
    }

    /// The time of its next own deadline, on the monotonic clock.
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Does what is due. Its results come by mail.
    fn on_time(&mut self, _now_ns: u64) {}
}

/// The actor type of an owner without an actor.
#[derive(Debug)]
pub enum NoActor {}

impl Actor for NoActor {
    type Mail = NoActor;
    type Replies = ();

    fn mail(&mut self, _: NoActor, (): &mut ()) {}

    fn work(&mut self, (): &mut ()) {}

    fn work_on(&mut self, (): &mut ()) {}
}
