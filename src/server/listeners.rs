//! Listening sockets: the ports and Unix sockets of each service, and their TLS settings.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use tracing::warn;

use super::inherited::{InheritedSockets, Origin};
use super::options::{Listen, Options, TlsOptions};
use super::{Failure, clouds, openai};
use nereid_net::{Listener, Post, Run, Secure};
use nereid_protocol::service::Port;
use nereid_request::Status;
use nereid_shard::listener::{self, SocketFile};

/// A listening socket and the service behind it.
pub struct ListeningSocket {
    /// The name of the service for other processes.
    pub service: &'static str,
    pub socket: OwnedFd,
    pub listener: Listener,
    pub origin: Origin,
    /// Another process may listen at the same port.
    pub is_shared: bool,
    /// Of a Unix socket.
    pub file: Option<UnixFile>,
    /// The log line of its start.
    pub started: String,
    /// The port that is bound; `None`: a Unix socket.
    pub port: Option<u16>,
}

/// The file of a Unix socket.
pub enum UnixFile {
    Own(SocketFile),
    /// Another process made it.
    Inherited(PathBuf),
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
    let load = |is_served: bool, tls: &TlsOptions, service: &'static str, name: &'static str, protocol: &[u8]| {
        if !is_served {
            return Ok(None);
        }
        if !tls.is_on() {
            note_unused(tls, service);
            return Ok(None);
        }
        let loaded = tls.credentials.load(service, protocol).map(Some);
        loaded.map_err(|error| failed(name, Status::invalid(error.to_string())))
    };
    Ok(ServerTls {
        grpc: load(options.grpc.allowed, &options.grpc_tls, "grpc", "GRPC", b"h2")?,
        // The port of OpenAI's interface has the settings of HTTP, also where that port is off.
        http: load(
            options.http.allowed || options.openai.listen.allowed,
            &options.http_tls,
            "http",
            "HTTP",
            b"http/1.1",
        )?,
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
        (&options.openai.listen, Port::OpenAi, openai::NAME, "OpenAI HTTPService"),
        (&options.metrics, Port::Metrics, "Metrics", "Metrics Service"),
    ];
    services.into_iter().filter(|(listen, ..)| listen.allowed)
}

/// The name of a port's service for another server that takes its socket over. A later version must know it too.
fn service_name(port: Port) -> &'static str {
    match port {
        Port::Http => "http",
        Port::Grpc => "grpc",
        Port::Metrics => "metrics",
        Port::SageMaker => "sagemaker",
        Port::Vertex => "vertex-ai",
        Port::OpenAi => "openai",
    }
}

/// The same of the Unix socket beside the port.
fn unix_service_name(port: Port) -> &'static str {
    if port == Port::Grpc { "grpc-unix" } else { "http-unix" }
}

fn failed(service: &'static str, status: Status) -> Failure {
    Failure::Port { service, status }
}

/// A bound port. It does not listen yet, so connections to it are refused; if another process opened it, it does, and
/// connections wait.
pub struct ReservedPort {
    service: Port,
    socket: OwnedFd,
    port: u16,
    origin: Origin,
}

/// Binds the ports of all services, in their order, or takes their sockets from those that are inherited.
pub fn reserve(options: &Options, inherited: &mut InheritedSockets) -> Result<Vec<ReservedPort>, Failure> {
    reserve_rest(options, Vec::new(), inherited)
}

/// The same of the services that have none of these ports.
pub fn reserve_rest(
    options: &Options,
    mut reserved: Vec<ReservedPort>,
    inherited: &mut InheritedSockets,
) -> Result<Vec<ReservedPort>, Failure> {
    let bind = |(listen, port, name, _): Service<'_>| {
        if let Some(at) = reserved.iter().position(|reserved| reserved.service == port) {
            return Ok(reserved.swap_remove(at));
        }
        bind_to(listen, port, inherited).map_err(|status| failed(name, status))
    };
    services(options).map(bind).collect()
}

/// Makes the reserved ports listen, and binds the paths.
pub fn open(
    options: &Options,
    reserved: Vec<ReservedPort>,
    inherited: &mut InheritedSockets,
) -> Result<Vec<ListeningSocket>, Failure> {
    let mut opened = Vec::new();
    for ((listen, port, name, service), ReservedPort { socket, port: bound, origin, .. }) in
        services(options).zip(reserved)
    {
        let (tls, path) = match port {
            Port::Http => (options.http_tls.is_on(), options.http_unix_socket.as_deref()),
            Port::Grpc => (options.grpc_tls.is_on(), options.grpc_unix_socket.as_deref()),
            Port::OpenAi => (options.http_tls.is_on(), None),
            Port::Metrics | Port::SageMaker | Port::Vertex => (false, None),
        };
        let shown = format!("{}:{bound}", listen.address);
        // Another process may have bound it at the same moment.
        listener::listen(socket.as_fd()).map_err(|error| failed(name, bind_error(&shown, &error)))?;
        let started = format!("Started {service} at {shown}");
        opened.push(ListeningSocket {
            service: service_name(port),
            socket,
            listener: Listener { port, tls },
            origin,
            is_shared: listen.reuse_port,
            file: None,
            started,
            port: Some(bound),
        });
        if let Some(path) = path {
            let (socket, file, origin) = match inherited.take_unix(path) {
                Some((socket, origin)) => (socket, UnixFile::Inherited(path.to_owned()), origin),
                None => {
                    let listener::Unix { listener, file } = bind_path(path).map_err(|status| failed(name, status))?;
                    (listener, UnixFile::Own(file), Origin::ThisServer)
                }
            };
            let started = format!("Started {service} at unix:{}", path.display());
            // Only clients on this machine can open the path: no TLS.
            let listener = Listener { port, tls: false };
            opened.push(ListeningSocket {
                service: unix_service_name(port),
                socket: socket.into(),
                listener,
                origin,
                is_shared: false,
                file: Some(file),
                started,
                port: None,
            });
        }
    }
    Ok(opened)
}

fn bind_path(path: &Path) -> Result<listener::Unix, Status> {
    let shown = format!("unix:{}", path.display());
    listener::unix(path).map_err(|error| bind_error(&shown, &error))
}

/// Binds; a second server on the same port fails unless it is configured to share it. Returns the bound port, because
/// the configured one may be 0, any.
fn bind_to(listen_at: &Listen, service: Port, inherited: &mut InheritedSockets) -> Result<ReservedPort, Status> {
    let shown = format!("{}:{}", listen_at.address, listen_at.port);
    let out_of_range = |_| Status::invalid(format!("port {} is out of range", listen_at.port));
    let port = u16::try_from(listen_at.port).map_err(out_of_range)?;
    let address = (&*listen_at.address, port)
        .to_socket_addrs()
        .map_err(|error| Status::invalid(format!("cannot resolve '{shown}': {error}")))?
        .next()
        .ok_or_else(|| Status::invalid(format!("'{shown}' has no address")))?;
    let found = inherited.take_tcp(service_name(service), address);
    let bound = found.map_or_else(|| Ok((listener::bind(&address, listen_at.reuse_port)?, Origin::ThisServer)), Ok);
    let bound = bound.and_then(|(socket, origin)| {
        Ok(ReservedPort { service, port: socket.local_addr()?.port(), socket: socket.into(), origin })
    });
    bound.map_err(|error| bind_error(&shown, &error))
}

fn bind_error(shown: &str, error: &io::Error) -> Status {
    Status::unavailable(match error.kind() {
        io::ErrorKind::AddrInUse => format!("Socket '{shown}' already in use "),
        _ => format!("cannot listen at '{shown}': {error}"),
    })
}
