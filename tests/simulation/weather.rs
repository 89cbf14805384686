//! The conditions of a run, which follow from its seed.

use crate::ledger::Troubles;
use crate::random::Random;
use crate::server::Bounds;

/// How a run goes: what its models, its network and its clients do.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub name: &'static str,
    pub requests: u64,
    pub clients: usize,
    pub bounds: Bounds,
    pub troubles: Troubles,
    pub refuse_once_in: u64,
    pub vanish_once_in: u64,
    pub reset_once_in: u64,
    pub cancel_once_in: u64,
    pub slow_once_in: u64,
    pub rogue_once_in: u64,
    pub large_once_in: u64,
    /// Requests between two reloads, and between two changes of workers; 0: none.
    pub reload_every: u64,
    pub replace_every: u64,
    /// The server ends in the middle of the traffic.
    pub ends_early: bool,
    /// Memory or places run out.
    pub is_tight: bool,
}

impl Weather {
    pub fn of(requests: u64, random: &mut Random) -> Weather {
        let bounds = Bounds {
            pool_bytes: 256 << 20,
            connection_bytes: 128 << 20,
            connections: 10_000,
            waiting: 10_000,
            chunks: 64,
            responses: 8,
            slow_peer_s: 60,
        };
        let calm = Weather {
            name: "calm",
            requests,
            clients: random.between(4, 24) as usize,
            bounds,
            troubles: Troubles::default(),
            refuse_once_in: 0,
            vanish_once_in: 0,
            reset_once_in: 0,
            cancel_once_in: 0,
            slow_once_in: 0,
            rogue_once_in: 0,
            large_once_in: 40,
            reload_every: 0,
            replace_every: 0,
            ends_early: false,
            is_tight: false,
        };
        let troubles =
            Troubles { failure_once_in: 30, panic_once_in: 150, late_once_in: 8, drop_once_in: 60, hold_once_in: 100 };
        match random.below(7) {
            0 => calm,
            1 => Weather { name: "models in trouble", troubles, replace_every: 100, ..calm },
            2 => Weather {
                name: "reloads",
                reload_every: 40,
                replace_every: 200,
                troubles: Troubles { late_once_in: 8, ..Troubles::default() },
                ..calm
            },
            3 => Weather {
                name: "a bad network",
                refuse_once_in: 400,
                vanish_once_in: 2000,
                reset_once_in: 150,
                cancel_once_in: 20,
                slow_once_in: 4,
                rogue_once_in: 20,
                troubles: Troubles { hold_once_in: 100, ..Troubles::default() },
                bounds: Bounds { slow_peer_s: 3, chunks: 8, ..bounds },
                ..calm
            },
            4 => Weather {
                name: "little memory",
                bounds: Bounds {
                    pool_bytes: random.between(200, 1500) as usize * 1024,
                    connection_bytes: random.between(100, 400) as usize * 1024,
                    connections: 12,
                    waiting: random.between(6, 30) as usize,
                    chunks: 4,
                    responses: 2,
                    slow_peer_s: 3,
                },
                large_once_in: 8,
                slow_once_in: 3,
                is_tight: true,
                ..calm
            },
            5 => Weather {
                name: "an early end",
                ends_early: true,
                troubles: Troubles { late_once_in: 8, hold_once_in: 300, ..Troubles::default() },
                slow_once_in: 10,
                ..calm
            },
            _ => Weather {
                name: "everything",
                troubles,
                refuse_once_in: 1000,
                vanish_once_in: 4000,
                reset_once_in: 400,
                cancel_once_in: 40,
                slow_once_in: 8,
                rogue_once_in: 30,
                reload_every: 100,
                replace_every: 200,
                bounds: Bounds { slow_peer_s: 5, ..bounds },
                ends_early: random.once_in(2),
                ..calm
            },
        }
    }
}
