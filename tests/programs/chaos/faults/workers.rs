//! Workers of Python models are killed and stopped, and the server itself is stopped.

use rustix::process::{Pid, Signal, kill_process};

use super::Fault;
use crate::chaos::campaign::Campaign;
use crate::chaos::resources::children;

pub const KILLED: Fault = Fault { name: "worker killed", inject: kill };
pub const STOPPED: Fault = Fault { name: "worker stopped", inject: stop };
pub const STOPPED_SERVER: Fault = Fault { name: "server stopped", inject: stop_server };

/// A process of the server, if it has one just now.
pub fn any(campaign: &mut Campaign) -> Option<Pid> {
    let all = children(&campaign.site.server);
    let at = campaign.random.below(all.len().max(1));
    all.get(at).and_then(|id| Pid::from_raw(*id as i32))
}

fn kill(campaign: &mut Campaign) {
    // It may have ended by itself meanwhile.
    if any(campaign).is_some_and(|worker| kill_process(worker, Signal::KILL).is_ok()) {
        campaign.injected(KILLED.name, 1);
    }
    campaign.go_on_for(20, 200);
}

fn stop(campaign: &mut Campaign) {
    let Some(worker) = any(campaign) else { return };
    if kill_process(worker, Signal::STOP).is_err() {
        return;
    }
    campaign.go_on_for(50, 400);
    let _ = kill_process(worker, Signal::CONT);
    campaign.injected(STOPPED.name, 1);
}

fn stop_server(campaign: &mut Campaign) {
    let server = Pid::from_raw(campaign.site.server.pid() as i32).expect("the server's process");
    kill_process(server, Signal::STOP).expect("stop the server");
    campaign.go_on_for(50, 300);
    kill_process(server, Signal::CONT).expect("let the server go on");
    campaign.injected(STOPPED_SERVER.name, 1);
}
