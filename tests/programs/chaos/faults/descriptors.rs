//! The server has no descriptor left: its limit is lowered to what it has open, and clients want to connect.

use std::net::TcpStream;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{Fault, meanwhile};
use crate::chaos::campaign::Campaign;

pub const EXHAUSTED: Fault = Fault { name: "descriptors exhausted", inject };
/// More than the descriptors that are left.
const CONNECTIONS: usize = 40;

fn inject(campaign: &mut Campaign) {
    let server = &campaign.site.server;
    let id = Pid::from_raw(server.pid() as i32);
    let left = campaign.random.below(8);
    let open = server.descriptors() + left;
    // The server has inherited this one, and nobody else may raise it again.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let before = prlimit(id, Resource::Nofile, Rlimit { current: Some(open as u64), maximum })
        .unwrap_or_else(|error| panic!("the limit of descriptors: {error}"));
    let addresses = [server.http, server.grpc, server.metrics];
    // They are established by the kernel, and wait there.
    let connections: Vec<_> =
        (0..CONNECTIONS).filter_map(|at| TcpStream::connect(addresses[at % addresses.len()]).ok()).collect();
    campaign.go_on_for(100, 300);
    let is_exhausted = campaign.site.server.descriptors() + 1 >= open;
    // Loads and new workers need descriptors as well. Their requests come over a new connection, hence its room.
    let room = Rlimit { current: Some(open as u64 + 6), maximum: before.maximum };
    prlimit(id, Resource::Nofile, room).expect("the limit of descriptors");
    drop(connections);
    let helper = restore_later(id, before);
    meanwhile(campaign);
    helper.join().expect("the limit of descriptors is restored");
    if is_exhausted {
        campaign.injected(EXHAUSTED.name, 1);
    }
}

/// A load may wait for a connection that is not accepted before.
fn restore_later(id: Option<Pid>, before: Rlimit) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        prlimit(id, Resource::Nofile, before).expect("the limit of descriptors");
    })
}
