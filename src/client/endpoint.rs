//! Addresses of servers, as command lines name them.

use std::path::PathBuf;

/// Bytes that the kernel accepts as the path of a socket.
const SOCKET_PATH_MAX: usize = 107;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}"),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Endpoint {
    /// As requests name it.
    pub fn authority(&self) -> String {
        match self {
            Endpoint::Tcp { .. } => self.to_string(),
            Endpoint::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Reads `host`, `host:port`, `scheme://host:port` or `unix:<path>`: the scheme, empty without one, and the
    /// endpoint. A URL with a path is none.
    pub fn parse(url: &str, default_port: u16) -> Option<(&str, Endpoint)> {
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let fits = (1..=SOCKET_PATH_MAX).contains(&path.len());
            return fits.then(|| ("unix", Endpoint::Unix(path.into())));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let default_port = match scheme {
            // As other clients have it.
            "https" => 443,
            _ => default_port,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                match rest {
                    "" => (host, None),
                    _ => (host, Some(rest.strip_prefix(':')?)),
                }
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let is_v6 = rest.starts_with('[');
        let is_name = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if host.is_empty() || !(is_v6 || is_name(host)) {
            return None;
        }
        let port = match port {
            None => default_port,
            Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        };
        Some((scheme, Endpoint::Tcp { host: host.to_owned(), port }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A port of this machine, and who listens there.
    pub fn listen() -> (TcpListener, Endpoint) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, Endpoint::Tcp { host: "127.0.0.1".to_owned(), port })
    }

    #[test]
    fn endpoints_are_written_as_they_are_asked_for() {
        let tcp = |host: &str| Endpoint::Tcp { host: host.to_owned(), port: 8001 };
        assert_eq!(tcp("localhost").to_string(), "localhost:8001");
        assert_eq!(tcp("::1").to_string(), "[::1]:8001");
        assert_eq!(Endpoint::Unix("/a/b".into()).to_string(), "unix:/a/b");
        assert_eq!(Endpoint::Unix("/a/b".into()).authority(), "localhost");
    }

    #[test]
    fn a_socket_path_is_as_long_as_the_kernel_takes() {
        let path = |len: usize| format!("unix:/{}", "x".repeat(len - 1));
        assert!(Endpoint::parse(&path(SOCKET_PATH_MAX), 1).is_some());
        assert!(Endpoint::parse(&path(SOCKET_PATH_MAX + 1), 1).is_none());
    }
}
