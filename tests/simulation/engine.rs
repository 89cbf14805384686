//! The I/O engine of a simulated shard: the contract of `nereid_shard::engine` over the [`Network`], without sockets.
//!
//! It varies all that the contract leaves open: receives and sends come in parts, completions are late, events of
//! different connections change places, operations are refused, connections break between any two of these.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nereid_memory::{BlockMut, Key, Scatter, Slice};
use nereid_shard::engine::{
    CHUNK_BYTES, EVENTS_PER_TURN, Engine, Event, Park, ReceiveChunks, Received, Refused, Waited, Waker,
};

use crate::network::{Network, Stir};
use crate::random::Random;

/// The latest that a completion is reported, in nanoseconds.
const LATE_NS: u64 = 40_000;

/// One of so many turns in which something is started takes nothing of it, and for so long.
const REFUSED_ONE_IN: u64 = 8;
const RETRY_NS: u64 = 1_000_000;

/// What the simulation reads of an engine.
#[derive(Default)]
pub struct EngineState {
    /// The last turn parked: something has to happen before the next one.
    pub is_parked: Cell<bool>,
    /// It started nothing, and tries again soon.
    pub is_refused: Cell<bool>,
    /// When the next event is due.
    pub due_ns: Cell<Option<u64>>,
    /// Chunks that are lent, and sockets that are registered.
    pub lent: Cell<usize>,
    pub sockets: Cell<usize>,
}

enum Receive {
    Chunk,
    Direct { block: BlockMut, at: usize, len: usize },
    Scattered(Box<Scatter>),
}

struct Send {
    pieces: Vec<Slice>,
    taken: usize,
    /// Its success does not end a park.
    is_quiet: bool,
}

struct Socket {
    key: Key,
    link: usize,
    receive: Option<Receive>,
    send: Option<Send>,
    /// Completions of either kind that are not reported yet.
    held_receive: bool,
    held_send: bool,
    closing: bool,
    _fd: OwnedFd,
}

/// See the [module](self).
pub struct Simulated {
    shard: usize,
    network: Rc<RefCell<Network>>,
    state: Rc<EngineState>,
    sockets: Vec<Option<Socket>>,
    limit: usize,
    listeners: Vec<(usize, bool)>,
    /// Events and when they are reported.
    held: Vec<(u64, Event)>,
    /// Ends of quiet sends, which the next event brings along.
    quiet: Vec<Event>,
    chunks: ReceiveChunks,
    starved: Vec<Key>,
    random: Random,
    waker: Waker,
}

impl Simulated {
    pub fn new(
        shard: usize,
        (network, state): (Rc<RefCell<Network>>, Rc<EngineState>),
        (limit, chunks): (usize, usize),
        waker: Waker,
        random: Random,
    ) -> Simulated {
        Simulated {
            shard,
            network,
            state,
            sockets: Vec::new(),
            limit,
            listeners: Vec::new(),
            held: Vec::new(),
            quiet: Vec::new(),
            chunks: ReceiveChunks::new(chunks),
            starved: Vec::new(),
            random,
            waker,
        }
    }

    fn socket(&mut self, key: Key) -> Result<&mut Socket, Refused> {
        let socket = self.sockets.get_mut(key.index()).and_then(Option::as_mut);
        socket.filter(|socket| socket.key == key && !socket.closing).ok_or(Refused::Unknown)
    }

    fn touch(&mut self, key: Key) {
        self.network.borrow_mut().touched[self.shard].push(key);
    }

    /// Whether an operation is refused for once.
    fn refuses(&mut self, kind: &'static str) -> Result<(), Refused> {
        let mut network = self.network.borrow_mut();
        if self.random.once_in(network.refuse_once_in) {
            network.faults.count(kind);
            return Err(Refused::System(io::Error::from_raw_os_error(libc::ENOBUFS)));
        }
        Ok(())
    }

    fn hold(&mut self, now_ns: u64, event: Event) {
        let late_ns = if self.random.once_in(4) { self.random.below(LATE_NS) } else { 0 };
        if late_ns > 0 {
            self.network.borrow_mut().faults.count("late completion");
        }
        self.held.push((now_ns + late_ns, event));
    }

    /// Starts what can be started on one socket.
    fn go_on(&mut self, key: Key, now_ns: u64) {
        if let Some(event) = self.receive_some(key) {
            if let Ok(socket) = self.socket(key) {
                socket.held_receive = true;
            }
            self.hold(now_ns, event);
        }
        if let Some((event, is_quiet)) = self.send_some(key) {
            if let Ok(socket) = self.socket(key) {
                socket.held_send = true;
            }
            match is_quiet {
                true => self.quiet.push(event),
                false => self.hold(now_ns, event),
            }
        }
    }

    fn receive_some(&mut self, key: Key) -> Option<Event> {
        let network = Rc::clone(&self.network);
        let mut network = network.borrow_mut();
        let is_short = self.random.once_in(4);
        let roll = self.random.next();
        let Simulated { sockets, chunks, starved, .. } = self;
        let socket = sockets.get_mut(key.index())?.as_mut().filter(|socket| socket.key == key && !socket.closing)?;
        let link = &mut network.links[socket.link];
        let receive = socket.receive.take()?;
        let portion = |most: usize| if is_short { 1 + (roll as usize) % most } else { most };
        let received = if link.reset {
            Received::Failed(io::Error::from_raw_os_error(libc::ECONNRESET))
        } else if !link.up.is_empty() {
            match receive {
                Receive::Chunk => {
                    let n = portion(link.up.len().min(CHUNK_BYTES));
                    let chunk = chunks.fill(|bytes| {
                        link.up.drain(..n).zip(bytes).for_each(|(from, to)| *to = from);
                        n
                    });
                    let Some(chunk) = chunk else {
                        socket.receive = Some(Receive::Chunk);
                        starved.push(key);
                        return None;
                    };
                    Received::Chunk(chunk)
                }
                Receive::Direct { mut block, at, len } => {
                    let n = portion(link.up.len().min(len));
                    link.up.drain(..n).zip(&mut block[at..at + n]).for_each(|(from, to)| *to = from);
                    Received::Direct { block, at, len: n }
                }
                Receive::Scattered(mut scatter) => {
                    let n = portion(link.up.len().min(scatter.capacity()));
                    let bytes: Vec<u8> = link.up.drain(..n).collect();
                    let len = scatter.fill(&bytes);
                    Received::Scattered { scatter, len }
                }
            }
        } else if link.up_ended {
            Received::End
        } else {
            socket.receive = Some(receive);
            return None;
        };
        if is_short {
            network.faults.count("short receive");
        }
        Some(Event::Received { key, received })
    }

    /// The end of a send, and whether a park goes on behind it.
    fn send_some(&mut self, key: Key) -> Option<(Event, bool)> {
        let network = Rc::clone(&self.network);
        let mut network = network.borrow_mut();
        let is_short = self.random.once_in(8);
        let roll = self.random.next();
        let socket = self.sockets.get_mut(key.index())?.as_mut();
        let socket = socket.filter(|socket| socket.key == key && !socket.closing)?;
        let link = &mut network.links[socket.link];
        let mut send = socket.send.take()?;
        if link.reset {
            send.pieces.clear();
            let result = Err(io::Error::from_raw_os_error(libc::EPIPE));
            return Some((Event::Sent { key, result, pieces: send.pieces }, false));
        }
        let mut room = link.window.saturating_sub(link.down.len());
        if is_short && room > 0 {
            room = 1 + (roll as usize) % room;
        }
        let before = room;
        while room > 0
            && let Some(piece) = send.pieces.first_mut()
        {
            let n = room.min(piece.len());
            link.down.extend(&piece[..n]);
            (send.taken, room) = (send.taken + n, room - n);
            match n == piece.len() {
                true => drop(send.pieces.remove(0)),
                false => piece.advance(n),
            }
        }
        if before > room {
            network.stirs.push(Stir::Readable(socket.link));
        }
        if send.pieces.iter().any(|piece| !piece.is_empty()) {
            // The rest goes when there is room, or in the next turn after a short write.
            if is_short {
                network.faults.count("short send");
                network.touch(socket.link);
            }
            send.is_quiet = false;
            socket.send = Some(send);
            return None;
        }
        send.pieces.clear();
        if send.is_quiet {
            network.faults.count("quiet send");
        }
        Some((Event::Sent { key, result: Ok(send.taken), pieces: send.pieces }, send.is_quiet))
    }

    fn start_send(&mut self, key: Key, pieces: Vec<Slice>, is_quiet: bool) -> Result<(), Refused> {
        let socket = self.socket(key)?;
        if socket.send.is_some() || socket.held_send {
            return Err(Refused::Busy);
        }
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Err(Refused::Window);
        }
        self.refuses("refused send")?;
        self.socket(key)?.send = Some(Send { pieces, taken: 0, is_quiet });
        self.touch(key);
        Ok(())
    }

    /// Reports the ends of quiet sends from then on.
    fn release_quiet(&mut self, at_ns: u64) {
        self.held.extend(self.quiet.drain(..).map(|event| (at_ns, event)));
    }

    fn accept(&mut self, now_ns: u64) {
        let mut accepted = Vec::new();
        {
            let mut network = self.network.borrow_mut();
            let listens = |listener| self.listeners.iter().any(|(id, closing)| *id == listener && !closing);
            for (listener, fd, link) in std::mem::take(&mut network.backlog) {
                // Without a listener the client is refused.
                if listens(listener) {
                    network.accepted(&fd, link);
                    accepted.push(Event::Accepted { listener, fd });
                } else {
                    network.links[link].reset = true;
                    network.stirs.push(Stir::Readable(link));
                }
            }
        }
        for event in accepted {
            self.hold(now_ns, event);
        }
        for (listener, _) in self.listeners.extract_if(.., |(_, closing)| *closing) {
            self.held.push((now_ns + LATE_NS, Event::ListenerClosed { listener }));
        }
    }

    /// Reports what is due, in an order of its own.
    fn report(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        let start = events.len();
        let mut at = 0;
        while at < self.held.len() && events.len() - start < EVENTS_PER_TURN {
            match self.held[at].0 <= now_ns {
                true => events.push(self.held.swap_remove(at).1),
                false => at += 1,
            }
        }
        for at in (start + 1..events.len()).rev() {
            let other = start + self.random.below((at - start) as u64 + 1) as usize;
            events.swap(at, other);
        }
        for event in &events[start..] {
            match event {
                Event::Received { key, .. } => {
                    if let Ok(socket) = self.socket(*key) {
                        socket.held_receive = false;
                    }
                }
                Event::Sent { key, .. } => {
                    if let Ok(socket) = self.socket(*key) {
                        socket.held_send = false;
                    }
                }
                Event::Closed { key } => self.sockets[key.index()] = None,
                _ => {}
            }
        }
    }
}

impl Engine for Simulated {
    fn listen(&mut self, _socket: OwnedFd, listener: usize) -> Result<(), Refused> {
        self.listeners.push((listener, false));
        Ok(())
    }

    fn stop_listening(&mut self, listener: usize) -> Result<(), Refused> {
        let found = self.listeners.iter_mut().find(|(id, closing)| *id == listener && !closing);
        found.ok_or(Refused::Unknown)?.1 = true;
        Ok(())
    }

    fn register(&mut self, fd: OwnedFd, key: Key) -> Result<(), Refused> {
        let index = key.index();
        if index >= self.limit {
            return Err(Refused::Full { limit: self.limit });
        }
        self.refuses("refused registration")?;
        if index >= self.sockets.len() {
            self.sockets.resize_with(index + 1, || None);
        }
        if self.sockets[index].is_some() {
            return Err(Refused::Occupied);
        }
        let link = self.network.borrow_mut().register(&fd, self.shard, key).ok_or(Refused::Unknown)?;
        self.sockets[index] = Some(Socket {
            key,
            link,
            receive: None,
            send: None,
            held_receive: false,
            held_send: false,
            closing: false,
            _fd: fd,
        });
        Ok(())
    }

    fn receive(&mut self, key: Key) -> Result<(), Refused> {
        let socket = self.socket(key)?;
        if socket.receive.is_some() || socket.held_receive {
            return Err(Refused::Busy);
        }
        socket.receive = Some(Receive::Chunk);
        self.touch(key);
        Ok(())
    }

    fn receive_direct(&mut self, key: Key, block: BlockMut, at: usize, len: usize) -> Result<(), Refused> {
        let socket = self.socket(key)?;
        if socket.receive.is_some() || socket.held_receive {
            return Err(Refused::Busy);
        }
        if len == 0 || at.checked_add(len).is_none_or(|end| end > block.len()) {
            return Err(Refused::Window);
        }
        socket.receive = Some(Receive::Direct { block, at, len });
        self.touch(key);
        self.network.borrow_mut().faults.count("direct receive");
        Ok(())
    }

    fn receive_scattered(&mut self, key: Key, scatter: Box<Scatter>) -> Result<(), Refused> {
        let socket = self.socket(key)?;
        if socket.receive.is_some() || socket.held_receive {
            return Err(Refused::Busy);
        }
        if scatter.capacity() == 0 {
            return Err(Refused::Window);
        }
        socket.receive = Some(Receive::Scattered(scatter));
        self.touch(key);
        self.network.borrow_mut().faults.count("scattered receive");
        Ok(())
    }

    fn send(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.start_send(key, pieces, false)
    }

    fn send_quietly(&mut self, key: Key, pieces: Vec<Slice>) -> Result<(), Refused> {
        self.start_send(key, pieces, true)
    }

    fn await_sent(&mut self, key: Key) {
        if let Ok(Socket { send: Some(send), .. }) = self.socket(key) {
            send.is_quiet = false;
        }
        let of_key = |event: &mut Event| matches!(event, Event::Sent { key: of, .. } if *of == key);
        self.held.extend(self.quiet.extract_if(.., of_key).map(|event| (0, event)));
    }

    fn recall(&mut self, key: Key) -> Result<(), Refused> {
        let socket = self.socket(key)?;
        let Some(send) = socket.send.take() else {
            let is_held = socket.held_send;
            self.release_quiet(0);
            return if is_held { Ok(()) } else { Err(Refused::Unknown) };
        };
        socket.held_send = true;
        self.network.borrow_mut().faults.count("recalled send");
        self.held.push((0, Event::Sent { key, result: Ok(send.taken), pieces: send.pieces }));
        Ok(())
    }

    fn shutdown(&mut self, key: Key) -> Result<(), Refused> {
        let link = self.socket(key)?.link;
        let mut network = self.network.borrow_mut();
        network.links[link].down_ended = true;
        network.stirs.push(Stir::Readable(link));
        Ok(())
    }

    fn close(&mut self, key: Key) -> Result<(), Refused> {
        let socket = self.socket(key)?;
        socket.closing = true;
        (socket.receive, socket.send) = (None, None);
        let link = socket.link;
        self.network.borrow_mut().close(link);
        let of_key = |event: &Event| match event {
            Event::Received { key: of, .. } | Event::Sent { key: of, .. } => *of == key,
            _ => false,
        };
        self.held.retain(|(_, event)| !of_key(event));
        self.quiet.retain(|event| !of_key(event));
        let late_ns = self.random.below(LATE_NS);
        self.held.push((nereid_clock::now_ns() + late_ns, Event::Closed { key }));
        Ok(())
    }

    fn has_events(&mut self) -> bool {
        let now_ns = nereid_clock::now_ns();
        self.held.iter().any(|(at_ns, _)| *at_ns <= now_ns)
    }

    fn turn(&mut self, park: Park, events: &mut Vec<Event>) -> io::Result<Option<Waited>> {
        let now_ns = nereid_clock::now_ns();
        // The park of the last turn is over.
        self.release_quiet(now_ns);
        if self.shard == 0 {
            self.accept(now_ns);
        }
        let mut touched = std::mem::take(&mut self.network.borrow_mut().touched[self.shard]);
        touched.append(&mut self.starved);
        // The kernel may refuse what is started, for a moment: the connections go on in a later turn.
        let is_refused = !touched.is_empty() && self.random.once_in(REFUSED_ONE_IN);
        if is_refused {
            self.network.borrow_mut().faults.count("refused submission");
            self.network.borrow_mut().touched[self.shard].append(&mut touched);
        }
        for key in touched.drain(..) {
            self.go_on(key, now_ns);
        }
        if park == Park::Never || self.held.iter().any(|(at_ns, _)| *at_ns <= now_ns) {
            self.release_quiet(now_ns);
        }
        self.report(now_ns, events);
        let is_over = match park {
            Park::Never => true,
            Park::Until(at_ns) => at_ns <= now_ns,
            Park::Forever => false,
        };
        let parks = !is_over && events.is_empty();
        self.state.is_parked.set(parks);
        self.state.is_refused.set(is_refused);
        let is_stirred = !self.network.borrow().touched[self.shard].is_empty() || !self.starved.is_empty();
        let due = self.held.iter().map(|(at_ns, _)| *at_ns).min();
        let stirred_ns = now_ns + if is_refused { RETRY_NS } else { 1000 };
        self.state.due_ns.set(match is_stirred {
            true => Some(due.map_or(stirred_ns, |due_ns| due_ns.min(stirred_ns))),
            false => due,
        });
        self.state.lent.set(self.chunks.lent());
        self.state.sockets.set(self.sockets.iter().flatten().count());
        Ok(parks.then(Waited::default))
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
