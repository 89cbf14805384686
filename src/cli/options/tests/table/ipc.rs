//! Clients of shared-memory rings.

use super::*;
use crate::server::options::ipc::IpcUsers;

pub const ROWS: &[Row] = &[
    Row {
        flag: "ipc-path",
        beside: "",
        good: &[("", |_| {}), ("/run/x", |o| o.ipc.path = Some("/run/x".into()))],
        bad: &[],
    },
    Row {
        flag: "ipc-mode",
        beside: "",
        good: &[("600", |_| {}), ("0600", |_| {}), ("0660", |o| o.ipc.mode = 0o660)],
        bad: &[
            ("1777", "Provided option value is out of bound. Got 1777"),
            ("0680", "Invalid option value. Got 0680"),
            ("rw", "Invalid option value. Got rw"),
        ],
    },
    Row {
        flag: "ipc-users",
        beside: "",
        good: &[
            ("", |_| {}),
            ("any", |o| o.ipc.users = IpcUsers::Any),
            ("1000,33", |o| o.ipc.users = IpcUsers::Also(vec![1000, 33])),
        ],
        bad: &[("alice", "Invalid option value. Got alice"), ("1,-1", "Invalid option value. Got 1,-1")],
    },
    Row {
        flag: "ipc-arena-bytes",
        beside: "",
        good: &[("67108864", |_| {}), ("0", |o| o.ipc.arena_bytes = 0)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("much", "Invalid option value. Got much")],
    },
    Row {
        flag: "ipc-ring-bytes",
        beside: "",
        good: &[("131072", |_| {}), ("65536", |o| o.ipc.ring_bytes = 65536)],
        bad: &[
            ("65537", "Provided option value is out of bound. Got 65537"),
            ("32768", "Provided option value is out of bound. Got 32768"),
            ("33554432", "Provided option value is out of bound. Got 33554432"),
            ("x", "Invalid option value. Got x"),
        ],
    },
    Row {
        flag: "ipc-connections",
        beside: "",
        good: &[("64", |_| {}), ("1", |o| o.ipc.clients_max = 1)],
        bad: &[
            ("0", "Provided option value is out of bound. Got 0"),
            ("4097", "Provided option value is out of bound. Got 4097"),
        ],
    },
];
