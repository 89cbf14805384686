//! Reports the server's state to its supervisor, where one is set: a line of text to the socket that
//! `NOTIFY_SOCKET` names (systemd's protocol, sd_notify(3)).
//!
//! So a service counts as started when its models are loaded and its ports answer, not when the process exists.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::warn;

/// The ports answer.
pub const READY: &str = "READY=1";
/// The server lives, where the unit has a `WatchdogSec=`.
pub const WATCHDOG: &str = "WATCHDOG=1";
/// New requests are refused; accepted ones are finished.
pub const STOPPING: &str = "STOPPING=1";

/// Sends the state to the supervisor, if there is one. A failure is no reason not to serve.
pub fn notify(state: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty()) else { return };
    if let Err(error) = send(&place, state) {
        warn!("cannot report {state} to NOTIFY_SOCKET '{}': {error}", place.display());
    }
}

/// How often the supervisor is to be notified that the server lives: half of what it waits for at most
/// (sd_watchdog_enabled(3)). `None`: it does not wait for that. `is_successor`: this process has taken the service over
/// from the one that the supervisor started.
pub fn watchdog_interval(is_successor: bool) -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_other = number("WATCHDOG_PID").is_some_and(|process| process != u64::from(std::process::id()));
    number("WATCHDOG_USEC")
        .filter(|usec| *usec > 0 && (is_successor || !is_other))
        .map(|usec| Duration::from_micros(usec / 2))
}

fn send(place: &OsString, state: &str) -> io::Result<()> {
    let address = match place.as_bytes() {
        // A name in the abstract namespace, which is no file.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    // The server does not wait for a supervisor that does not read.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_sent_to_a_socket_in_the_file_system_or_without_a_file() {
        let directory = std::env::temp_dir().join(format!("nereid-supervisor-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("notify");
        let name = format!("nereid-supervisor-{}", std::process::id());
        let places = [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (socket, place) in places {
            send(&place, READY).unwrap();
            let mut text = [0; 32];
            let len = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..len], READY.as_bytes());
        }
        std::fs::remove_dir_all(&directory).unwrap();
        for gone in [path.into_os_string(), "relative".into(), "@nobody-listens-here".into(), "x".repeat(200).into()] {
            assert!(send(&gone, READY).is_err(), "{gone:?}");
        }
    }
}
