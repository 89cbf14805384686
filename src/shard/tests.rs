//! Tests of whole shards on threads of their own, on each engine that this host has.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use super::engine::{Event, Received};
use super::*;
use nereid_memory::Slab;
use nereid_memory::Slice;
use nereid_queue::NoActor;
use nereid_test_support::skip::skip;

/// The shard on which `listen` was called hands connections to the lightest shard; every shard echoes.
struct Echo {
    me: usize,
    peers: Vec<Mailbox<MailOf<Echo>>>,
    load: Load,
    connections: Slab<LoadGuard>,
    stopped: bool,
}

enum Mail {
    Connection(OwnedFd, LoadGuard),
    /// Answered through the channel, after everything that was posted before.
    Ping(mpsc::Sender<usize>, u64),
    Stop,
}

impl Handler for Echo {
    type Mail = Mail;
    type Actor = NoActor;
    type Timer = mpsc::Sender<usize>;

    fn mail(&mut self, mail: Mail, core: &mut Core<Self::Timer>) {
        match mail {
            Mail::Connection(fd, load_guard) => {
                assert_eq!(load_guard.shard(), self.me);
                let key = self.connections.insert(load_guard).unwrap();
                core.engine.register(fd, key).unwrap();
                core.engine.receive(key).unwrap();
            }
            Mail::Ping(answer, 0) => drop(answer.send(self.me)),
            Mail::Ping(answer, after_ns) => drop(core.timers.start(core.now_ns() + after_ns, answer).unwrap()),
            Mail::Stop => self.stopped = true,
        }
    }

    fn event(&mut self, event: Event, core: &mut Core<Self::Timer>) {
        match event {
            Event::Accepted { fd, .. } => {
                let load_guard = self.load.enter();
                self.peers[load_guard.shard()].post(Mail::Connection(fd, load_guard));
            }
            Event::Received { key, received: Received::Chunk(chunk) } => {
                core.engine.send(key, vec![Slice::copy_of(&chunk)]).unwrap();
            }
            Event::Sent { key, .. } => core.engine.receive(key).unwrap(),
            Event::Received { key, .. } => core.engine.close(key).unwrap(),
            Event::Closed { key } => drop(self.connections.remove(key)),
            Event::Woken => {}
            other => panic!("{other:?}"),
        }
    }

    fn timer(&mut self, answer: Self::Timer, _: &mut Core<Self::Timer>) {
        let _ = answer.send(self.me);
    }

    fn flush(&mut self, _: &mut Core<Self::Timer>) {}

    fn stopped(&self) -> bool {
        self.stopped
    }
}

fn options(engine: EngineKind, name: &str) -> Options {
    Options {
        name: name.into(),
        engine,
        host: Host::Glommio,
        cpu: None,
        spin: Spin::default(),
        limits: Limits { chunks: 8, ..Limits::default() },
        timers_max: 100,
        pool: Pool::new(1 << 20),
    }
}

fn engines() -> Vec<EngineKind> {
    let choice = probe::choose(probe::EngineRequest::Auto, || probe::Probe::begin().outcome()).unwrap();
    if choice.engine == EngineKind::Epoll {
        skip(&choice.message);
        return vec![choice.engine];
    }
    vec![EngineKind::Epoll, EngineKind::IoUring]
}

struct Servers {
    address: SocketAddr,
    mailboxes: Vec<Mailbox<MailOf<Echo>>>,
    load: Load,
    shards: Vec<Running>,
}

fn servers(engine: EngineKind, count: usize, change: impl Fn(&mut Options)) -> Servers {
    let listener = listener::tcp(&"127.0.0.1:0".parse().unwrap(), false).unwrap();
    let address = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    let (mailboxes, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| mailbox().unwrap()).unzip();
    let load = Load::new(count);
    let shards = inboxes.into_iter().enumerate().map(|(me, inbox)| {
        let (peers, load, listener) = (mailboxes.clone(), load.clone(), listener.take());
        let mut options = options(engine, &format!("shard-{me}"));
        change(&mut options);
        let make = move |core: &mut Core<_>| {
            if let Some(listener) = listener {
                core.engine.listen(listener.into(), 0).map_err(io::Error::other)?;
            }
            Ok(Echo { me, peers, load, connections: Slab::new(1000), stopped: false })
        };
        start(options, inbox, make).unwrap()
    });
    let shards = shards.collect();
    Servers { address, mailboxes, load, shards }
}

impl Servers {
    fn stop(self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.post(Mail::Stop));
        self.shards.into_iter().for_each(|shard| shard.join().unwrap());
        assert_eq!(self.load.total(), 0, "every connection is gone with its shard");
    }
}

#[test]
fn shards_share_the_connections_and_echo() {
    for engine in engines() {
        let servers = servers(engine, 2, |_| {});
        let mut peers: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(servers.address).unwrap()).collect();
        for round in 0..3 {
            for (i, peer) in peers.iter_mut().enumerate() {
                let message = vec![(i + round) as u8; 1000 + i];
                peer.write_all(&message).unwrap();
                let mut answer = vec![0; message.len()];
                peer.read_exact(&mut answer).unwrap();
                assert_eq!(answer, message);
            }
        }
        assert_eq!((servers.load.on(0), servers.load.on(1)), (10, 10));
        servers.stop();
        // Those that were open when the shards ended are closed.
        for mut peer in peers {
            assert!(matches!(peer.read(&mut [0; 8]), Ok(0) | Err(_)));
        }
    }
}

#[test]
fn a_parked_shard_wakes_for_mail_and_for_timers() {
    for engine in engines() {
        let servers = servers(engine, 1, |_| {});
        let (answer, answers) = mpsc::channel();
        for round in 0..2000u64 {
            servers.mailboxes[0].post(Mail::Ping(answer.clone(), 0));
            if round % 100 == 0 {
                servers.mailboxes[0].post(Mail::Ping(answer.clone(), 1_000_000));
                assert_eq!(answers.recv().unwrap(), 0);
            }
            // Hangs if a wake-up is lost or a timer is missed.
            assert_eq!(answers.recv().unwrap(), 0);
        }
        servers.stop();
    }
}

#[test]
fn many_threads_post_to_a_sleepy_shard() {
    for engine in engines() {
        let servers = servers(engine, 1, |_| {});
        let posters: Vec<_> = (0..4)
            .map(|_| {
                let mailbox = servers.mailboxes[0].clone();
                thread::spawn(move || {
                    let (answer, answers) = mpsc::channel();
                    for _ in 0..500 {
                        mailbox.post(Mail::Ping(answer.clone(), 0));
                        answers.recv().unwrap();
                    }
                })
            })
            .collect();
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        servers.stop();
    }
}

#[test]
fn a_bound_and_spinning_shard_is_a_shard_too() {
    let cpu = placement::Cores::of_this_process().unwrap().cpus[0];
    for engine in engines() {
        let servers = servers(engine, 1, |options| {
            options.cpu = Some(cpu);
            options.spin = Spin::new(Spin::BUDGET_NS, 1);
        });
        let mut peer = TcpStream::connect(servers.address).unwrap();
        for i in 0..100u8 {
            peer.write_all(&[i]).unwrap();
            let mut answer = [0];
            peer.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [i]);
        }
        servers.stop();
    }
}

#[test]
fn a_failed_start_is_reported() {
    for engine in engines() {
        let (_mailbox, inbox) = mailbox().unwrap();
        let failed = start::<Echo>(options(engine, "fails"), inbox, |_| Err(io::Error::other("no handler")));
        assert_eq!(failed.unwrap_err().to_string(), "fails could not start: no handler");
        let (_mailbox, inbox) = mailbox().unwrap();
        let failed = start::<Echo>(options(engine, "panics"), inbox, |_| panic!("in the handler's making"));
        assert_eq!(failed.unwrap_err().to_string(), "panics could not start: its thread panicked");
        let (_mailbox, inbox) = mailbox().unwrap();
        let mut nowhere = options(engine, "nowhere");
        nowhere.cpu = Some(100_000);
        assert!(start::<Echo>(nowhere, inbox, |_| Err(io::Error::other("never called"))).is_err());
    }
}
