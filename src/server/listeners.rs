//! Listening sockets: the ports and Unix sockets of each service, and their TLS settings.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use tracing::warn;

use super::options::{Listen, Options, TlsOptions};
use super::{Failure, clouds};
use nereid_net::{Listener, Post, Run, Secure};
use nereid_protocol::service::Port;
use nereid_shard::listener::{self, SocketFile};

/// A listening socket and the service behind it.
pub struct ListeningSocket {
    pub socket: OwnedFd,
    pub listener: Listener,
    /// Another process may listen at the same port.
    pub is_shared: bool,
    /// Of a Unix socket.
    pub file: Option<SocketFile>,
    /// The log line of its start.
    pub started: String,
}

/// TLS settings of the ports.
pub struct ServerTls {
    http: Option<Arc<ServerConfig>>,
    grpc: Option<Arc<ServerConfig>>,
}

impl ServerTls {
    pub fn is_on(&self) -> bool {
        self.http.is_some() || self.grpc.is_some()
    }

    /// The TLS layer of one shard.
    pub fn secure(&self, run: Run, post: Post) -> Secure {
        Secure { http: self.http.clone(), grpc: self.grpc.clone(), run, post }
    }
}

/// Reads certificates and keys, of allowed services only.
pub fn load_tls(options: &Options) -> Result<ServerTls, Failure> {
    let load = |listen: &Listen, tls: &TlsOptions, service: &'static str, name: &str, protocol: &[u8]| {
        if !listen.allowed {
            return Ok(None);
        }
        if !tls.is_on() {
            note_unused(tls, service);
            return Ok(None);
        }
        let loaded = tls.credentials.load(service, protocol).map(Some);
        loaded.map_err(|error| Failure::Start(format!("failed to start {name} service: Invalid argument - {error}")))
    };
    Ok(ServerTls {
        grpc: load(&options.grpc, &options.grpc_tls, "grpc", "GRPC", b"h2")?,
        http: load(&options.http, &options.http_tls, "http", "HTTP", b"http/1.1")?,
    })
}

/// A user who gives a port a key assumes that it uses TLS, so this is logged.
fn note_unused(tls: &TlsOptions, service: &str) {
    let credentials = &tls.credentials;
    let files = [
        (&credentials.certificate, "server-cert"),
        (&credentials.key, "server-key"),
        (&credentials.roots, "root-cert"),
    ];
    for (_, what) in files.iter().filter(|(path, _)| !path.as_os_str().is_empty()) {
        warn!("--{service}-{what} has no effect without --{service}-use-ssl: the port speaks plain text");
    }
}

/// A service: its address, its port, its name in errors, and its name in the log.
type Service<'a> = (&'a Listen, Port, &'static str, &'static str);

fn services(options: &Options) -> impl Iterator<Item = Service<'_>> {
    let services = [
        (&options.grpc, Port::Grpc, "GRPC", "GRPCInferenceService"),
        (&options.http, Port::Http, "HTTP", "HTTPService"),
        (&options.sagemaker, Port::SageMaker, clouds::SAGEMAKER, "Sagemaker HTTPService"),
        (&options.vertex, Port::Vertex, clouds::VERTEX, "Vertex AI HTTPService"),
        (&options.metrics, Port::Metrics, "Metrics", "Metrics Service"),
    ];
    services.into_iter().filter(|(listen, ..)| listen.allowed)
}

fn failed(name: &str, error: &str) -> Failure {
    Failure::Start(format!("failed to start {name} service: {error}"))
}

/// A bound port that does not listen yet: connections to it are refused.
pub struct ReservedPort {
    socket: OwnedFd,
    port: u16,
}

/// Binds the ports of all services, in their order.
pub fn reserve(options: &Options) -> Result<Vec<ReservedPort>, Failure> {
    services(options).map(|(listen, _, name, _)| bind_to(listen).map_err(|error| failed(name, &error))).collect()
}

/// Makes the reserved ports listen, and binds the paths.
pub fn open(options: &Options, reserved: Vec<ReservedPort>) -> Result<Vec<ListeningSocket>, Failure> {
    let mut opened = Vec::new();
    for ((listen, port, name, service), ReservedPort { socket, port: bound }) in services(options).zip(reserved) {
        let (tls, path) = match port {
            Port::Http => (options.http_tls.is_on(), options.http_unix_socket.as_deref()),
            Port::Grpc => (options.grpc_tls.is_on(), options.grpc_unix_socket.as_deref()),
            Port::Metrics | Port::SageMaker | Port::Vertex => (false, None),
        };
        let shown = format!("{}:{bound}", listen.address);
        // Another process may have bound it at the same moment.
        listener::listen(socket.as_fd()).map_err(|error| failed(name, &bind_error(&shown, &error)))?;
        let started = format!("Started {service} at {shown}");
        opened.push(ListeningSocket {
            socket,
            listener: Listener { port, tls },
            is_shared: listen.reuse_port,
            file: None,
            started,
        });
        if let Some(path) = path {
            let listener::Unix { listener: socket, file } = bind_path(path).map_err(|error| failed(name, &error))?;
            let started = format!("Started {service} at unix:{}", path.display());
            // Only clients on this machine can open the path: no TLS.
            let listener = Listener { port, tls: false };
            opened.push(ListeningSocket {
                socket: socket.into(),
                listener,
                is_shared: false,
                file: Some(file),
                started,
            });
        }
    }
    Ok(opened)
}

fn bind_path(path: &Path) -> Result<listener::Unix, String> {
    let shown = format!("unix:{}", path.display());
    listener::unix(path).map_err(|error| bind_error(&shown, &error))
}

/// Binds; a second server on the same port fails unless it is configured to share it. Returns the bound port, because
/// the configured one may be 0, any.
fn bind_to(listen_at: &Listen) -> Result<ReservedPort, String> {
    let shown = format!("{}:{}", listen_at.address, listen_at.port);
    let wrong = |text: String| format!("Invalid argument - {text}");
    let port = u16::try_from(listen_at.port).map_err(|_| wrong(format!("port {} is out of range", listen_at.port)))?;
    let address = (&*listen_at.address, port)
        .to_socket_addrs()
        .map_err(|error| wrong(format!("cannot resolve '{shown}': {error}")))?
        .next()
        .ok_or_else(|| wrong(format!("'{shown}' has no address")))?;
    let bound = listener::bind(&address, listen_at.reuse_port);
    let bound = bound.and_then(|socket| Ok(ReservedPort { port: socket.local_addr()?.port(), socket: socket.into() }));
    bound.map_err(|error| bind_error(&shown, &error))
}

fn bind_error(shown: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("Unavailable - Socket '{shown}' already in use "),
        _ => format!("Unavailable - cannot listen at '{shown}': {error}"),
    }
}
