//! Flags about clients on the same host that use a shared-memory ring (docs/ipc.md).

use super::own::GROUP;
use super::{Flag, Group};
use crate::cli::values::{Value, ValueError};
use crate::server::options::ipc::{ARENA_BYTES_MAX, CLIENTS_MAX, IpcUsers, RING_BYTES_MAX, RING_BYTES_MIN};

const NEREID: Group = Group(GROUP);

pub static FLAGS: &[Flag] = &[
    NEREID.set(
        "ipc-path",
        "path",
        "Unix socket at which clients on this host get a ring in shared memory, over which they make calls of gRPC. \
         Default: none.",
        |g, v| {
            g.options.ipc.path = Some(v.path()).filter(|path| !path.as_os_str().is_empty());
            Ok(())
        },
    ),
    NEREID.set("ipc-mode", "octal", "Permissions of that socket's file. Default: 0600.", |g, v| {
        mode(v).map(|given| g.options.ipc.mode = given)
    }),
    NEREID.set(
        "ipc-users",
        "list or any",
        "Numbers of users that may connect there beside the server's own and root, separated by commas; any: whoever \
         can open the file. Default: none.",
        |g, v| users(v).map(|given| g.options.ipc.users = given),
    ),
    NEREID.set(
        "ipc-arena-bytes",
        "integer",
        "Bytes of shared memory that each such client has for tensors; 0: none. Memory is taken when it is touched. \
         Default: 67108864.",
        |g, v| bytes(v, 0, ARENA_BYTES_MAX).map(|given| g.options.ipc.arena_bytes = given),
    ),
    NEREID.set(
        "ipc-ring-bytes",
        "integer",
        "Bytes of each of the two rings of such a client, a power of two from 65536 to 16777216. Default: 131072.",
        |g, v| {
            let given = bytes(v, RING_BYTES_MIN, RING_BYTES_MAX)?;
            if !given.is_power_of_two() {
                return Err(ValueError::OutOfBound(v.text()));
            }
            g.options.ipc.ring_bytes = given;
            Ok(())
        },
    ),
    NEREID.set(
        "ipc-connections",
        "integer",
        "Such clients at a time; further ones are refused. Default: 64.",
        |g, v| {
            let given = Some(v.natural()?).filter(|given| (1..=CLIENTS_MAX).contains(given));
            g.options.ipc.clients_max = given.ok_or_else(|| ValueError::OutOfBound(v.text()))?;
            Ok(())
        },
    ),
];

fn bytes(value: Value<'_>, least: u64, most: u64) -> Result<u64, ValueError> {
    let given = Some(value.bytes()?).filter(|given| (least..=most).contains(given));
    given.ok_or_else(|| ValueError::OutOfBound(value.text()))
}

fn mode(value: Value<'_>) -> Result<u32, ValueError> {
    let given = u32::from_str_radix(&value.text(), 8).map_err(|_| ValueError::Number(value.text()))?;
    Some(given).filter(|given| *given <= 0o777).ok_or_else(|| ValueError::OutOfBound(value.text()))
}

fn users(value: Value<'_>) -> Result<IpcUsers, ValueError> {
    let text = value.text();
    if text == "any" {
        return Ok(IpcUsers::Any);
    }
    let users = text.split(',').filter(|user| !user.is_empty()).map(str::parse).collect::<Result<Vec<u32>, _>>();
    users.map(IpcUsers::Also).map_err(|_| ValueError::Number(text))
}
