//! The ports and Unix sockets of a server: free, or who has them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::access::{Need, User};
use super::report::{Area, Level, Report};
use crate::cli::options::{Listen, ServeOptions};

/// Processes and descriptors that are searched for the holder of a port.
const PROCESSES_MAX: usize = 65_536;
const DESCRIPTORS_MAX: usize = 65_536;
/// The state of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

pub fn check(report: &mut Report, options: &ServeOptions, user: &User) {
    let services: [(&str, &Listen); 6] = [
        ("http", &options.http),
        ("grpc", &options.grpc),
        ("metrics", &options.metrics),
        ("sagemaker", &options.sagemaker),
        ("vertex-ai", &options.vertex),
        ("openai", &options.openai.listen),
    ];
    for (service, listen) in services.into_iter().filter(|(_, listen)| listen.allowed) {
        port(report, service, listen, user);
    }
    let paths = [("http", &options.http_unix_socket), ("grpc", &options.grpc_unix_socket), ("ipc", &options.ipc.path)];
    for (service, path) in paths {
        if let Some(path) = path {
            unix_socket(report, service, path, user);
        }
    }
}

fn port(report: &mut Report, service: &str, listen: &Listen, user: &User) {
    let name = format!("{service}-port");
    let shown = format!("{}:{}", listen.address, listen.port);
    let Ok(number) = u16::try_from(listen.port) else {
        let next = format!("--{name} takes 0 to 65535");
        return report.bad(Level::Problem, Area::Ports, name, format!("{shown} is not a port"), next);
    };
    if number == 0 {
        return report.ok(Area::Ports, name, "any free port; the log will name it");
    }
    let first = first_unprivileged();
    if number < first && !user.is_root() {
        let what = format!("{shown}: {} may not open ports below {first}", user.name);
        let next = format!("another --{name}, or CAP_NET_BIND_SERVICE for the service");
        return report.bad(Level::Problem, Area::Ports, name, what, next);
    }
    let bound = (listen.address.as_str(), number).to_socket_addrs().and_then(|mut all| {
        let address: SocketAddr = all.next().ok_or_else(|| io::Error::other("the name has no address"))?;
        TcpListener::bind(address)
    });
    match bound {
        Ok(_) => report.ok(Area::Ports, name, format!("{shown} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let holder = holder_of(number).unwrap_or_else(|| "another program".to_owned());
            let what = format!("{shown} is in use by {holder}");
            match listen.reuse_port {
                true => report.bad(
                    Level::Warning,
                    Area::Ports,
                    name,
                    format!("{what}, which shares it if it was opened with --reuse-{service}-port by the same user"),
                    "stop the other program if it is not a server of yours",
                ),
                false => {
                    let next = format!("stop it, or choose another --{name}");
                    report.bad(Level::Problem, Area::Ports, name, what, next);
                }
            }
        }
        Err(error) => {
            let next = format!("choose another --{name} or --{service}-address");
            report.bad(Level::Problem, Area::Ports, name, format!("{shown} cannot be opened: {error}"), next);
        }
    }
}

/// The first port that anybody may open.
fn first_unprivileged() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

/// The program that listens at a port, as far as this process may see it.
fn holder_of(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let inodes: HashSet<String> = tables.iter().flat_map(|table| listeners(table, port)).collect();
    if inodes.is_empty() {
        return None;
    }
    let sockets: HashSet<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in numbers.take(PROCESSES_MAX) {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let links = descriptors.flatten().take(DESCRIPTORS_MAX).filter_map(|entry| fs::read_link(entry.path()).ok());
        let mut links = links.map(|link| link.to_string_lossy().into_owned());
        if links.any(|link| sockets.contains(&link)) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Some(format!("{} (process {pid})", name.trim()));
        }
    }
    None
}

/// Inodes of the listening sockets of a table of the kernel at this port.
fn listeners(table: &str, port: u16) -> Vec<String> {
    let wanted = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.filter_map(|row| {
        let (local, state, inode) = (row.get(1)?, row.get(3)?, row.get(9)?);
        (local.ends_with(&wanted) && *state == LISTENING).then(|| (*inode).to_owned())
    });
    found.collect()
}

fn unix_socket(report: &mut Report, service: &str, path: &Path, user: &User) {
    let name = format!("{service}-socket");
    let shown = path.display();
    if path.exists() && UnixStream::connect(path).is_ok() {
        let next = "stop the server that has it, or choose another path";
        return report.bad(Level::Problem, Area::Ports, name, format!("{shown} is in use"), next);
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let next = format!("mkdir -p {}", parent.display());
        return report.bad(Level::Problem, Area::Ports, name, format!("{shown}: there is no such directory"), next);
    }
    match user.reaches(parent, &[Need::Execute, Need::Write]) {
        Ok(()) => report.ok(Area::Ports, name, format!("{shown} can be made")),
        Err(refusal) => {
            let next = format!("chown {} {}", user.name, parent.display());
            report.bad(Level::Problem, Area::Ports, name, format!("{shown}: {}", refusal.text(user)), next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_in_the_tables_of_the_kernel() {
        let row = |number: u32, local: &str, state: &str, inode: u32| {
            let rest = "00000000:00000000 00:00000000 00000000     0        0";
            format!("   {number}: {local} 00000000:0000 {state} {rest} {inode} 1 0\n")
        };
        let rows = [
            row(0, "0100007F:1F40", "0A", 4711),
            row(1, "0100007F:1F40", "01", 4712),
            row(2, "00000000:1F41", "0A", 4713),
        ];
        let table = &format!("  sl  local_address rem_address   st tx_queue rx_queue\n{}   3: x\n", rows.concat());
        assert_eq!(listeners(table, 8000), ["4711"]);
        assert_eq!(listeners(table, 8001), ["4713"]);
        assert!(listeners(table, 31).is_empty() && listeners("", 8000).is_empty());
    }

    #[test]
    fn a_port_in_use_is_a_problem_and_its_holder_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = taken.local_addr().unwrap().port();
        let listen = Listen { address: "127.0.0.1".into(), ..Listen::at(i32::from(number)) };
        let check = |listen: &Listen| {
            let user = User::of_process();
            let mut report = Report::new(&user);
            port(&mut report, "http", listen, &user);
            report.findings.remove(0)
        };
        let found = check(&listen);
        assert_eq!(found.level, Level::Problem);
        let holder = format!("(process {})", std::process::id());
        assert!(found.what.contains(&format!("127.0.0.1:{number} is in use by ")), "{found:?}");
        assert!(found.what.ends_with(&holder), "{found:?}");
        assert_eq!(check(&Listen { port: 70_000, ..listen.clone() }).level, Level::Problem);
        assert_eq!(check(&Listen { port: 0, ..listen }).level, Level::Ok);
    }
}
