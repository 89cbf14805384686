//! The turn of a shard, which it repeats: mail, the actor's work, sends, one call of the engine, events, timers.
//!
//! A turn is a plain function without hidden time or threads, so a simulation runs it with a fake engine and a clock
//! that it moves by hand. Every part has a budget, so that none starves the others.

use std::io;
use std::rc::Rc;

use super::clock::Clock;
use super::engine::{Engine, Event, Park, Waited};
use super::mailbox::{Inbox, Mail};
use super::timer::Timers;
use nereid_memory::Pool;
use nereid_queue::Actor;

/// Mails that one turn reads.
const MAILS_PER_TURN: usize = 256;
/// Timers that one turn fires or moves.
const TIMERS_PER_TURN: usize = 256;

/// An actor, and the queue of its replies.
pub type WithReplies<'a, A> = (&'a mut A, &'a mut <A as Actor>::Replies);

/// The handler of a shard: it runs the connections, from the bytes to the request and back.
pub trait Handler {
    /// What other threads post about connections.
    type Mail: Send;
    /// The value that a timer carries. It refers to its owner by a generational key, as operations do.
    type Timer;
    type Actor: Actor;

    /// `None` where the handler answers its connections itself.
    fn actor(&mut self) -> Option<WithReplies<'_, Self::Actor>> {
        None
    }

    fn mail(&mut self, mail: Self::Mail, core: &mut Core<Self::Timer>);

    fn event(&mut self, event: Event, core: &mut Core<Self::Timer>);

    fn timer(&mut self, timer: Self::Timer, core: &mut Core<Self::Timer>);

    /// Gives the actor's replies to their connections, and starts one send for each connection that has output. Called
    /// once a turn, after the mail and the actor's work and before the engine.
    fn flush(&mut self, core: &mut Core<Self::Timer>);

    /// The time of the handler's next own deadline, beside its timers.
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Called when the handler's own deadline may have passed.
    fn on_time(&mut self, _core: &mut Core<Self::Timer>) {}

    /// The turn is about to park: what the handler polls has to wake it from now on. False: there is work already.
    fn prepare_park(&mut self) -> bool {
        true
    }

    /// True while there is work that no event announces, replies of the actor included that are still to be given to
    /// connections: then the turn does not park.
    fn has_work(&self) -> bool {
        false
    }

    /// True once the shard may end.
    fn stopped(&self) -> bool;
}

/// What a shard offers to its handler.
pub struct Core<T> {
    pub engine: Box<dyn Engine>,
    pub timers: Timers<T>,
    pub pool: Pool,
    clock: Rc<dyn Clock>,
    now_ns: u64,
}

impl<T> Core<T> {
    /// `clock` is also the engine's; at most `timers_max` timers run at a time.
    pub fn new(engine: Box<dyn Engine>, clock: Rc<dyn Clock>, pool: Pool, timers_max: usize) -> Core<T> {
        let now_ns = clock.now_ns();
        Core { engine, timers: Timers::new(timers_max, now_ns), pool, clock, now_ns }
    }

    /// The time at which this part of the turn began: cheap, and the same for all events of a turn.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The clock itself, for stamps that must not be shared.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn read_clock(&mut self) {
        self.now_ns = self.clock.now_ns();
    }
}

/// What is posted to the shard of a handler.
pub type MailOf<H> = Mail<<H as Handler>::Mail, <<H as Handler>::Actor as Actor>::Mail>;

/// A handler, its core, and what comes in from other threads.
pub struct Shard<H: Handler> {
    pub handler: H,
    pub core: Core<H::Timer>,
    inbox: Inbox<MailOf<H>>,
    events: Vec<Event>,
    waited: Option<Waited>,
}

impl<H: Handler> Shard<H> {
    /// The engine must wait for the inbox's waker.
    pub fn new(handler: H, core: Core<H::Timer>, inbox: Inbox<MailOf<H>>) -> Shard<H> {
        Shard { handler, core, inbox, events: Vec::new(), waited: None }
    }

    /// How long the last turn was ready to wait; `None`: not at all.
    pub fn waited(&self) -> Option<Waited> {
        self.waited
    }

    /// One turn. If there is no work it waits, unless `may_park` is false. True if anything was done: then there may be
    /// more work at once.
    pub fn turn(&mut self, may_park: bool) -> io::Result<bool> {
        let Shard { handler, core, inbox, events, waited } = self;
        core.read_clock();
        let drained = inbox.drain(MAILS_PER_TURN, |mail| match mail {
            Mail::Handler(mail) => handler.mail(mail, core),
            Mail::Actor(mail) => {
                if let Some((actor, replies)) = handler.actor() {
                    actor.mail(mail, replies);
                }
            }
        });
        let mut moved = drained > 0;
        let may_park = may_park && !handler.stopped();
        if let Some((actor, replies)) = handler.actor() {
            actor.work(replies);
        }
        handler.flush(core);
        // Events that are there would end a park at once. A thread that posts meanwhile need not wake one that does not
        // park.
        let mut parks = may_park && !handler.stopped() && !handler.has_work() && !core.engine.has_events();
        // A turn with work can wait in the call that starts its sends. What the flush has led to comes before that, and
        // what this leads to is for the next turn, so that no bound of a turn counts twice.
        if parks && let Some((actor, replies)) = handler.actor() {
            actor.work_on(replies);
            parks = !handler.has_work();
        }
        let parked = match parks {
            true => {
                let deadlines = [core.timers.next_deadline(), handler.next_deadline_ns()];
                let park = deadlines.into_iter().flatten().min().map_or(Park::Forever, Park::Until);
                inbox.sleep(|| {
                    let park = if handler.prepare_park() { park } else { Park::Never };
                    core.engine.turn(park, events)
                })
            }
            false => None,
        };
        // Mail came just before the park, or parking was not allowed: the handler's operations are started all the
        // same.
        *waited = parked.unwrap_or_else(|| core.engine.turn(Park::Never, events))?;
        core.read_clock();
        for event in events.drain(..) {
            moved = true;
            handler.event(event, core);
        }
        let mut budget = TIMERS_PER_TURN;
        while let Some(timer) = core.timers.pop_due(core.now_ns, &mut budget) {
            moved = true;
            handler.timer(timer, core);
        }
        if handler.next_deadline_ns().is_some_and(|at_ns| at_ns <= core.now_ns) {
            moved = true;
            handler.on_time(core);
        }
        Ok(moved || budget == 0 || handler.has_work())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::clock::Manual;
    use crate::engine::{Epoll, Fake, Limits, Received};
    use crate::mailbox::{Mailbox, mailbox};
    use nereid_memory::Slice;
    use nereid_memory::{Key, Slab};
    use nereid_queue::{NoActor, Post};

    enum Mail {
        Connection(UnixStream),
        Stop,
    }

    /// Echoes, sends "late" after a silence of a second, and closes when the peer does.
    struct Echo {
        connections: Slab<Option<Vec<u8>>>,
        dirty: Vec<Key>,
        flushes: usize,
        stopped: bool,
    }

    const SILENCE_NS: u64 = 1_000_000_000;

    impl Handler for Echo {
        type Mail = Mail;
        type Timer = Key;
        type Actor = NoActor;

        fn mail(&mut self, mail: Mail, core: &mut Core<Key>) {
            match mail {
                Mail::Connection(stream) => {
                    let key = self.connections.insert(None).unwrap();
                    core.engine.register(stream.into(), key).unwrap();
                    core.engine.receive(key).unwrap();
                    core.timers.start(core.now_ns() + SILENCE_NS, key).unwrap();
                }
                Mail::Stop => self.stopped = true,
            }
        }

        fn event(&mut self, event: Event, core: &mut Core<Key>) {
            match event {
                Event::Received { key, received: Received::Chunk(chunk) } => {
                    *self.connections.get_mut(key).unwrap() = Some(chunk.to_vec());
                    self.dirty.push(key);
                }
                Event::Sent { key, result, .. } => {
                    result.unwrap();
                    // The reply to the silence is not an answer.
                    let _ = core.engine.receive(key);
                }
                Event::Received { key, .. } => core.engine.close(key).unwrap(),
                Event::Closed { key } => drop(self.connections.remove(key)),
                Event::Woken => {}
                other => panic!("{other:?}"),
            }
        }

        fn timer(&mut self, key: Key, core: &mut Core<Key>) {
            if self.connections.contains(key) {
                core.engine.send(key, vec![Slice::from_static(b"late")]).unwrap();
            }
        }

        fn flush(&mut self, core: &mut Core<Key>) {
            self.flushes += 1;
            for key in self.dirty.drain(..) {
                if let Some(bytes) = self.connections.get_mut(key).and_then(Option::take) {
                    core.engine.send(key, vec![Slice::copy_of(&bytes)]).unwrap();
                }
            }
        }

        fn stopped(&self) -> bool {
            self.stopped
        }
    }

    fn shard(seed: u64) -> (Shard<Echo>, Mailbox<MailOf<Echo>>, Manual) {
        let (clock, (mailbox, inbox)) = (Manual::new(5), mailbox().unwrap());
        let epoll = Epoll::new(Limits::default(), Rc::new(clock.clone()), inbox.waker()).unwrap();
        let engine = Box::new(Fake::new(epoll, seed).with_clock(clock.clone()));
        let core = Core::new(engine, Rc::new(clock.clone()), Pool::new(1 << 20), 100);
        let handler = Echo { connections: Slab::new(10), dirty: Vec::new(), flushes: 0, stopped: false };
        (Shard::new(handler, core, inbox), mailbox, clock)
    }

    #[test]
    fn a_late_and_disorderly_engine_changes_nothing() {
        for seed in 1..30 {
            let (mut shard, mailbox, clock) = shard(seed);
            let mut peers = Vec::new();
            for _ in 0..5 {
                let (mine, peer) = UnixStream::pair().unwrap();
                peer.set_nonblocking(true).unwrap();
                mailbox.post(Mail::Connection(mine));
                peers.push(peer);
            }
            for round in 0..3u8 {
                for (i, peer) in peers.iter_mut().enumerate() {
                    peer.write_all(&[round, i as u8]).unwrap();
                }
                for (i, peer) in peers.iter_mut().enumerate() {
                    let mut answer = [0; 2];
                    while peer.read(&mut answer).is_err() {
                        shard.turn(false).unwrap();
                    }
                    assert_eq!(answer, [round, i as u8]);
                }
            }
            assert_eq!(clock.now_ns(), 5, "no turn waited");
            drop(peers);
            while !shard.handler.connections.is_empty() {
                shard.turn(false).unwrap();
            }
            assert_eq!(shard.core.pool.bytes_in_use(), 0);
        }
    }

    #[test]
    fn an_idle_shard_sleeps_until_its_next_timer() {
        let (mut shard, mailbox, clock) = shard(3);
        let (mine, mut peer) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        mailbox.post(Mail::Connection(mine));
        assert!(shard.turn(true).unwrap(), "there was mail");
        let mut answer = [0; 8];
        let mut turns = 0;
        while peer.read(&mut answer).is_err() {
            shard.turn(true).unwrap();
            turns += 1;
            assert!(turns < 50, "each park ends at the next deadline");
        }
        assert_eq!(&answer[..4], b"late");
        let now = clock.now_ns();
        assert!((5 + SILENCE_NS..5 + SILENCE_NS + 1_000_000).contains(&now), "{now}");
    }

    #[test]
    fn a_shard_that_is_stopped_does_not_park() {
        let (mut shard, mailbox, _) = shard(1);
        mailbox.post(Mail::Stop);
        shard.turn(true).unwrap();
        assert!(shard.handler.stopped());
        // With no timer and no event it would hang.
        assert!(!shard.turn(true).unwrap());
        assert_eq!(shard.handler.flushes, 2);
    }

    /// Replies with its mail, and once a turn with a mark that it has worked; what a flush has led to makes it reply
    /// with another one.
    #[derive(Default)]
    struct Repeats {
        was_led_to: bool,
    }

    impl Actor for Repeats {
        type Mail = u8;
        type Replies = Vec<u8>;

        fn mail(&mut self, mail: u8, replies: &mut Vec<u8>) {
            replies.push(mail);
        }

        fn work(&mut self, replies: &mut Vec<u8>) {
            replies.push(0);
        }

        fn work_on(&mut self, replies: &mut Vec<u8>) {
            replies.extend(std::mem::take(&mut self.was_led_to).then_some(99));
        }
    }

    /// Takes the replies of its actor.
    #[derive(Default)]
    struct Takes {
        actor: Option<Repeats>,
        replies: Vec<u8>,
        own_mail_after: Option<usize>,
        taken: Vec<u8>,
        /// Its next flush leads to work of the actor.
        leads: bool,
        parks: usize,
    }

    impl Handler for Takes {
        type Mail = ();
        type Timer = ();
        type Actor = Repeats;

        fn actor(&mut self) -> Option<WithReplies<'_, Repeats>> {
            self.actor.as_mut().map(|actor| (actor, &mut self.replies))
        }

        fn mail(&mut self, (): (), _: &mut Core<()>) {
            self.own_mail_after = Some(self.replies.len());
        }

        fn event(&mut self, _: Event, _: &mut Core<()>) {}

        fn timer(&mut self, (): (), _: &mut Core<()>) {}

        fn flush(&mut self, _: &mut Core<()>) {
            self.taken.append(&mut self.replies);
            if let Some(actor) = &mut self.actor {
                actor.was_led_to = std::mem::take(&mut self.leads);
            }
        }

        fn has_work(&self) -> bool {
            !self.replies.is_empty()
        }

        fn prepare_park(&mut self) -> bool {
            self.parks += 1;
            false
        }

        fn stopped(&self) -> bool {
            false
        }
    }

    fn takes() -> (Shard<Takes>, Mailbox<MailOf<Takes>>) {
        let (clock, (mailbox, inbox)) = (Manual::new(5), mailbox::<MailOf<Takes>>().unwrap());
        let epoll = Epoll::new(Limits::default(), Rc::new(clock.clone()), inbox.waker()).unwrap();
        let core = Core::new(Box::new(Fake::new(epoll, 1)), Rc::new(clock), Pool::new(1 << 20), 100);
        let handler = Takes { actor: Some(Repeats::default()), ..Takes::default() };
        (Shard::new(handler, core, inbox), mailbox)
    }

    #[test]
    fn what_an_actor_replies_leaves_in_the_turn_of_its_mail() {
        let (mut shard, mailbox) = takes();
        Post::post(&mailbox, 1);
        mailbox.post(());
        Post::post(&mailbox, 2);
        assert!(shard.turn(false).unwrap(), "there was mail");
        assert_eq!((&shard.handler.taken[..], shard.handler.own_mail_after), (&[1, 2, 0][..], Some(1)));
    }

    /// A park leaves nothing behind, and no part of a turn comes twice in it, or its bounds would be doubled.
    #[test]
    fn what_a_flush_leads_to_comes_before_a_park_and_its_replies_in_the_next_turn() {
        let (mut shard, mailbox) = takes();
        shard.handler.leads = true;
        mailbox.post(());
        assert!(shard.turn(true).unwrap());
        assert_eq!((&shard.handler.taken[..], &shard.handler.replies[..]), (&[0][..], &[99][..]));
        assert_eq!(shard.handler.parks, 0, "a reply waits");
        shard.turn(true).unwrap();
        assert_eq!((&shard.handler.taken[..], shard.handler.parks), (&[0, 99, 0][..], 1));
    }

    /// A turn with mail starts its send and waits in the same call of the engine.
    #[test]
    fn a_turn_with_work_parks_behind_it() {
        let (mut shard, mailbox, clock) = shard(3);
        let (mine, _peer) = UnixStream::pair().unwrap();
        mailbox.post(Mail::Connection(mine));
        assert!(shard.turn(true).unwrap(), "there was mail");
        let waited = shard.waited().expect("it waited for the timers to move");
        assert!(waited.least_ns > 0 && waited == Waited::exactly(clock.now_ns() - 5));
        assert_eq!(shard.handler.flushes, 1);
        shard.turn(false).unwrap();
        assert!(shard.waited().is_none());
    }

    /// Threads that post to a shard which has events to read need not wake it.
    #[test]
    fn a_shard_with_events_does_not_sleep() {
        let (mut shard, _mailbox) = takes();
        let (mine, _peer) = UnixStream::pair().unwrap();
        let key = Key::from_u64(1 << 32).unwrap();
        shard.core.engine.register(mine.into(), key).unwrap();
        shard.core.engine.send(key, vec![Slice::from_static(b"x")]).unwrap();
        assert!(shard.core.engine.has_events(), "it can be sent at once");
        while shard.core.engine.has_events() {
            shard.turn(true).unwrap();
            assert_eq!(shard.handler.parks, 0);
        }
        shard.turn(true).unwrap();
        assert_eq!(shard.handler.parks, 1);
    }
}
