//! Options about clients on the same host that use a shared-memory ring (docs/ipc.md).

use std::path::PathBuf;

pub use nereid_net::IpcUsers;

/// Bytes of a ring.
pub const RING_BYTES_MIN: u64 = nereid_ipc::RING_BYTES_MIN as u64;
pub const RING_BYTES_MAX: u64 = nereid_ipc::RING_BYTES_MAX as u64;
/// Bytes of an arena: 1 TiB.
pub const ARENA_BYTES_MAX: u64 = 1 << 40;
/// Clients at a time.
pub const CLIENTS_MAX: u32 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpcOptions {
    /// None: there is no such socket.
    pub path: Option<PathBuf>,
    /// Permissions of the socket's file.
    pub mode: u32,
    pub users: IpcUsers,
    /// Of each client.
    pub arena_bytes: u64,
    /// Of each of a client's two rings; a power of two.
    pub ring_bytes: u64,
    pub clients_max: u32,
}

impl Default for IpcOptions {
    fn default() -> IpcOptions {
        IpcOptions {
            path: None,
            mode: 0o600,
            users: IpcUsers::Also(Vec::new()),
            arena_bytes: 64 << 20,
            ring_bytes: 128 << 10,
            clients_max: 64,
        }
    }
}
