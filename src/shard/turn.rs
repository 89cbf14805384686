//! The turn: mail, one send per dirty connection, one look at the engine, its events, due timers; and again.
//!
//! A turn is a plain function of its handler, so that a simulation can call it with a fake engine and a clock of its
//! own. When nothing moves it spins for a bounded time where placement allows it, then parks: it says that it sleeps,
//! looks again, and waits for the engine, the next timer or a wake-up.

use std::io;

use super::clock::Clock;
use super::engine::{Engine, Event, Park};
use super::mailbox::Mailbox;
use super::timer::Timers;

/// Mails taken in one turn before the engine has its say again.
const MAIL_PER_TURN: usize = 256;
/// Timers that fire in one turn.
const TIMERS_PER_TURN: usize = 256;

/// What a handler works with.
pub struct Core<'a> {
    pub engine: &'a mut dyn Engine,
    pub timers: &'a mut Timers<u64>,
    pub clock: &'a dyn Clock,
}

/// What a shard serves.
pub trait Handler {
    type Mail: Send;

    /// Something another thread posted.
    fn mail(&mut self, mail: Self::Mail, core: &mut Core<'_>);

    fn event(&mut self, event: Event, core: &mut Core<'_>);

    /// A timer that was started with this token is due.
    fn timer(&mut self, token: u64, core: &mut Core<'_>);

    /// Everything of this turn was told: sends and reads go out now.
    fn flush(&mut self, core: &mut Core<'_>);

    /// There is something to do that nobody will tell about: the turn does not park.
    fn has_work(&self) -> bool;

    /// The shard may end.
    fn is_stopped(&self) -> bool;
}

/// One shard's loop and its scratch memory.
pub struct Turn<M> {
    mailbox: Mailbox<M>,
    events: Vec<Event>,
    due: Vec<u64>,
    /// Nanoseconds of spinning before a park; 0 where the core may be shared.
    spin_ns: u64,
}

impl<M: Send> Turn<M> {
    pub fn new(mailbox: Mailbox<M>, spin_ns: u64) -> Turn<M> {
        Turn { mailbox, events: Vec::new(), due: Vec::new(), spin_ns }
    }

    /// Goes round until the handler has stopped. An error is the engine's, and final.
    pub fn run(&mut self, handler: &mut impl Handler<Mail = M>, core: &mut Core<'_>) -> io::Result<()> {
        while !handler.is_stopped() {
            self.once(handler, core, true)?;
        }
        Ok(())
    }

    /// One turn; parks only if `may_park` and nothing moved.
    pub fn once(
        &mut self,
        handler: &mut impl Handler<Mail = M>,
        core: &mut Core<'_>,
        may_park: bool,
    ) -> io::Result<()> {
        let mut moved = false;
        for _ in 0..MAIL_PER_TURN {
            let Some(mail) = self.mailbox.take() else { break };
            handler.mail(mail, core);
            moved = true;
        }
        handler.flush(core);
        let is_idle = may_park && !moved && !handler.has_work() && !handler.is_stopped();
        if is_idle && !self.spin(core)? {
            let until = core.timers.next_deadline().map_or(Park::Forever, Park::Until);
            let (mailbox, events) = (&self.mailbox, &mut self.events);
            match mailbox.sleep(|| core.engine.turn(until, events)) {
                Some(outcome) => outcome?,
                None => core.engine.turn(Park::Never, events)?,
            }
        } else if !is_idle {
            core.engine.turn(Park::Never, &mut self.events)?;
        }
        for event in self.events.drain(..) {
            handler.event(event, core);
        }
        core.timers.sweep(core.clock.now_ns(), TIMERS_PER_TURN, &mut self.due);
        for token in self.due.drain(..) {
            handler.timer(token, core);
        }
        Ok(())
    }

    /// Looks again and again for a bounded time; true if something came up.
    fn spin(&mut self, core: &mut Core<'_>) -> io::Result<bool> {
        if self.spin_ns == 0 {
            return Ok(false);
        }
        let end = core.clock.now_ns().saturating_add(self.spin_ns);
        loop {
            core.engine.turn(Park::Never, &mut self.events)?;
            if !self.events.is_empty() || !self.mailbox.is_empty() {
                return Ok(true);
            }
            if core.clock.now_ns() >= end {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }
}
