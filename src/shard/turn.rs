//! The turn of a shard, which it repeats: mail, the actor's work, sends, one call of the engine, events, timers.
//!
//! A turn is a plain function without hidden time or threads, so a simulation runs it with a fake engine and a clock
//! that it moves by hand. Every part has a budget, so that none starves the others.

use std::io;
use std::rc::Rc;

use super::clock::Clock;
use super::engine::{Engine, Event, Park};
use super::mailbox::{Inbox, Mail};
use super::timer::Timers;
use nereid_memory::Pool;
use nereid_queue::waits::SHARDS;
use nereid_queue::{Actor, AdaptiveSpin, Spin};

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
    parked_ns: Option<u64>,
}

impl<H: Handler> Shard<H> {
    /// The engine must wait for the inbox's waker.
    pub fn new(handler: H, core: Core<H::Timer>, inbox: Inbox<MailOf<H>>) -> Shard<H> {
        Shard { handler, core, inbox, events: Vec::new(), parked_ns: None }
    }

    /// How long the last turn was ready to wait; `None`: not at all. A wait for what was there already took no time.
    pub fn parked_ns(&self) -> Option<u64> {
        self.parked_ns
    }

    /// One turn. If there is no work it waits, unless `may_park` is false. True if anything was done: then there may be
    /// more work at once.
    pub fn turn(&mut self, may_park: bool) -> io::Result<bool> {
        let Shard { handler, core, inbox, events, parked_ns } = self;
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
        let mut parks = may_park && !handler.stopped() && !handler.has_work();
        // A turn with work can wait in the call that starts its sends. What the flush has led to comes before that, and
        // what this leads to is for the next turn, so that no bound of a turn counts twice.
        if parks && let Some((actor, replies)) = handler.actor() {
            actor.work_on(replies);
            parks = !handler.has_work();
        }
        let mut park_began_ns = 0;
        let parked = match parks {
            true => {
                let deadlines = [core.timers.next_deadline(), handler.next_deadline_ns()];
                let park = deadlines.into_iter().flatten().min().map_or(Park::Forever, Park::Until);
                inbox.sleep(|| {
                    let park = if handler.prepare_park() { park } else { Park::Never };
                    park_began_ns = core.clock.now_ns();
                    core.engine.turn(park, events)
                })
            }
            false => None,
        };
        // Mail came just before the park, or parking was not allowed: the handler's operations are started all the
        // same.
        let has_waited = parked.unwrap_or_else(|| core.engine.turn(Park::Never, events))?;
        core.read_clock();
        *parked_ns = has_waited.then(|| core.now_ns.saturating_sub(park_began_ns));
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

/// A wait that took less found what it waited for: to put a thread to sleep and to wake it takes longer.
const SLEEP_NS: u64 = 5_000;

/// When an idle shard stops spinning and parks: at once, unless its last waits were short.
#[derive(Debug)]
pub struct ParkPolicy {
    spin: AdaptiveSpin,
    wait: Option<Wait>,
}

/// The wait of a shard for its next work.
#[derive(Debug)]
struct Wait {
    since_ns: u64,
    spins_for_ns: u64,
    /// It spins, and none of that was taken from what it may.
    is_spinning: bool,
    has_slept: bool,
}

impl Wait {
    fn new(since_ns: u64, spins_for_ns: u64) -> Wait {
        Wait { since_ns, spins_for_ns, is_spinning: spins_for_ns > 0, has_slept: false }
    }

    /// How long it has spun by then; 0 where that is known already.
    fn end_spin(&mut self, now_ns: u64) -> u64 {
        let is_spinning = std::mem::replace(&mut self.is_spinning, false);
        if is_spinning { now_ns.saturating_sub(self.since_ns) } else { 0 }
    }
}

impl ParkPolicy {
    pub fn new(spin: Spin) -> ParkPolicy {
        ParkPolicy { spin: AdaptiveSpin::new(spin, &SHARDS), wait: None }
    }

    /// Whether the next turn may park, once it has done what the last one brought. `moved`: the last turn had work;
    /// `parked_ns`: it was ready to wait, and that took so long.
    pub fn may_park(&mut self, moved: bool, parked_ns: Option<u64>, now_ns: u64) -> bool {
        if let Some(parked_ns) = parked_ns {
            let park_began_ns = now_ns.saturating_sub(parked_ns);
            let wait = self.wait.get_or_insert_with(|| Wait::new(park_began_ns, 0));
            self.spin.spend(wait.end_spin(park_began_ns));
            if parked_ns >= SLEEP_NS {
                wait.has_slept = true;
                SHARDS.count_sleep();
            }
        }
        if moved {
            if let Some(mut wait) = self.wait.take() {
                self.spin.spend(wait.end_spin(now_ns));
                self.spin.record_wait(now_ns.saturating_sub(wait.since_ns), wait.has_slept);
            }
            return self.spin.limit_ns(now_ns) == 0;
        }
        let spin = &mut self.spin;
        let wait = self.wait.get_or_insert_with(|| Wait::new(now_ns, spin.limit_ns(now_ns)));
        now_ns.saturating_sub(wait.since_ns) >= wait.spins_for_ns
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
        let parked_ns = shard.parked_ns().expect("it waited for the timers to move");
        assert!(parked_ns > 0 && clock.now_ns() == 5 + parked_ns);
        assert_eq!(shard.handler.flushes, 1);
        shard.turn(false).unwrap();
        assert!(shard.parked_ns().is_none());
    }

    #[test]
    fn a_park_policy_spins_for_its_time_and_then_parks() {
        let mut park_policy = ParkPolicy::new(Spin::new(100_000, 1));
        assert!(park_policy.may_park(false, None, 900_000), "no short wait is recorded");
        assert!(!park_policy.may_park(true, Some(10_000), 920_000), "that one was short");
        assert!(!park_policy.may_park(false, None, 1_000_000));
        assert!(!park_policy.may_park(false, None, 1_099_999));
        assert!(park_policy.may_park(false, None, 1_100_000));
        assert!(park_policy.may_park(false, None, 1_101_000), "still idle");
        assert!(!park_policy.may_park(true, Some(SLEEP_NS), 1_106_000));
        assert!(!park_policy.may_park(false, None, 1_107_000), "that wait was short but for the wake-up");
        assert!(!park_policy.may_park(true, None, 1_110_000));
        assert!(!park_policy.may_park(false, None, 1_111_000));
        assert!(park_policy.may_park(true, Some(7_800_000), 9_000_000), "a pause is what to expect now");
        assert!(park_policy.may_park(false, None, 9_001_000));
        assert!(ParkPolicy::new(Spin::default()).may_park(false, None, 7));
    }

    #[test]
    fn a_wait_that_takes_no_time_is_no_sleep() {
        let mut park_policy = ParkPolicy::new(Spin::default());
        let has_slept = |park_policy: &ParkPolicy| park_policy.wait.as_ref().map(|wait| wait.has_slept);
        park_policy.may_park(false, Some(SLEEP_NS - 1), 100_000);
        assert_eq!(has_slept(&park_policy), Some(false));
        park_policy.may_park(false, Some(SLEEP_NS), 200_000);
        assert_eq!(has_slept(&park_policy), Some(true));
        park_policy.may_park(true, Some(1), 300_000);
        assert_eq!(has_slept(&park_policy), None);
    }

    /// Of a spin that ends in several parks only the time before the first one was spun.
    #[test]
    fn a_spin_is_counted_once() {
        let mut wait = Wait::new(1_000, 50);
        assert_eq!([wait.end_spin(1_060), wait.end_spin(2_000)], [60, 0]);
        assert_eq!(Wait::new(1_000, 0).end_spin(2_000), 0);
    }

    #[test]
    fn a_shard_that_does_not_spin_may_park_behind_its_work() {
        let mut park_policy = ParkPolicy::new(Spin::default());
        assert!(park_policy.may_park(true, None, 10) && park_policy.may_park(true, Some(5), 20));
    }

    #[test]
    fn the_time_of_spins_is_taken_from_their_share() {
        // Of every 100 ns one may spin for 10; 100 ms are its memory.
        let mut park_policy = ParkPolicy::new(Spin::limited(100, 1, 10));
        let (mut now_ns, mut spun_ns) = (1, 0);
        for _ in 0..2_000_000 {
            // Work always comes after 50 ns.
            match park_policy.may_park(true, None, now_ns) {
                true => {
                    now_ns += 50;
                    park_policy.may_park(true, Some(50), now_ns);
                }
                false => {
                    park_policy.may_park(false, None, now_ns);
                    now_ns += 50;
                    spun_ns += 50;
                    park_policy.may_park(true, None, now_ns);
                }
            }
        }
        let share_ns = now_ns / 10;
        assert!((share_ns * 9 / 10..=share_ns + 150).contains(&spun_ns), "{spun_ns} ns of {now_ns} ns");
    }
}
