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
        loaded.map_err(|error| failed(name, Status::invalid(error.to_string()), None))
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
        Port::Ipc => IPC,
    }
}

/// The same of the Unix socket of shared-memory rings, and its name in errors.
const IPC: &str = "ipc";
const IPC_NAME: &str = "IPC";

/// The same of the Unix socket beside the port.
fn unix_service_name(port: Port) -> &'static str {
    if port == Port::Grpc { "grpc-unix" } else { "http-unix" }
}

/// The flag that sets the path of a Unix socket.
fn path_flag(port: Port) -> &'static str {
    match port {
        Port::Ipc => "ipc-path",
        Port::Grpc => "grpc-unix-socket",
        _ => "http-unix-socket",
    }
}

fn failed(service: &'static str, status: Status, next_step: Option<String>) -> Failure {
    Failure::Port { service, status, next_step }
}

/// Why a socket cannot be opened: what goes into Triton's message, and the next step.
struct SocketError {
    status: Status,
    next_step: Option<String>,
}

impl SocketError {
    fn of(self, service: &'static str) -> Failure {
        failed(service, self.status, self.next_step)
    }
}

/// A bound port. It does not listen yet, so connections to it are refused; if another process opened it, it does, and
/// connections wait.
pub struct ReservedPort {
    service: Port,
    socket: OwnedFd,
    port: u16,
    origin: Origin,
}

/// Binds the ports of all services, in their order, or takes their sockets from those that are inherited. The paths of
/// Unix sockets are tried only: a bound one would let clients connect.
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
        let bound = bind_to(listen, port, inherited).map_err(|error| error.of(name))?;
        if let (_, Some(path)) = beside(options, port)
            && !inherited.has_unix(path)
        {
            listener::try_unix(path).map_err(|error| path_error(path, port, &error).of(name))?;
        }
        Ok(bound)
    };
    let bound = services(options).map(bind).collect();
    if let Some(path) = options.ipc.path.as_deref().filter(|path| !inherited.has_unix(path)) {
        listener::try_unix(path).map_err(|error| path_error(path, Port::Ipc, &error).of(IPC_NAME))?;
    }
    bound
}

/// Whether a port speaks TLS, and the Unix socket beside it.
fn beside(options: &Options, port: Port) -> (bool, Option<&Path>) {
    match port {
        Port::Http => (options.http_tls.is_on(), options.http_unix_socket.as_deref()),
        Port::Grpc => (options.grpc_tls.is_on(), options.grpc_unix_socket.as_deref()),
        Port::OpenAi => (options.http_tls.is_on(), None),
        Port::Metrics | Port::SageMaker | Port::Vertex | Port::Ipc => (false, None),
    }
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
        let (tls, path) = beside(options, port);
        let shown = format!("{}:{bound}", listen.address);
        // Another process may have bound it at the same moment.
        let flag = service_name(port);
        listener::listen(socket.as_fd()).map_err(|error| bind_error(&shown, flag, bound, &error).of(name))?;
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
            opened.push(open_unix(path, port, (unix_service_name(port), name, service), None, inherited)?);
        }
    }
    if let Some(path) = &options.ipc.path {
        let mode = Some(options.ipc.mode);
        opened.push(open_unix(path, Port::Ipc, (IPC, IPC_NAME, "shared-memory rings"), mode, inherited)?);
    }
    Ok(opened)
}

/// Listens on a path. `names`: of the service for other processes, in errors, and in the log. `mode`: the permissions
/// of the file, unless a service manager has set them.
fn open_unix(
    path: &Path,
    port: Port,
    (service, name, shown): (&'static str, &'static str, &str),
    mode: Option<u32>,
    inherited: &mut InheritedSockets,
) -> Result<ListeningSocket, Failure> {
    let wrong = |error: io::Error| path_error(path, port, &error).of(name);
    let (socket, file, origin) = match inherited.take_unix(path) {
        Some((socket, origin)) => {
            // The other server may have been started with another flag.
            if let Some(mode) = mode.filter(|_| !origin.is_managed()) {
                listener::set_mode(path, mode).map_err(wrong)?;
            }
            (socket, UnixFile::Inherited(path.to_owned()), origin)
        }
        None => {
            let listener::Unix { listener, file } = listener::unix(path, mode).map_err(wrong)?;
            (listener, UnixFile::Own(file), Origin::ThisServer)
        }
    };
    Ok(ListeningSocket {
        service,
        socket: socket.into(),
        // Only clients on this machine can open the path: no TLS.
        listener: Listener { port, tls: false },
        origin,
        is_shared: false,
        file: Some(file),
        started: format!("Started {shown} at unix:{}", path.display()),
        port: None,
    })
}

/// Binds; a second server on the same port fails unless it is configured to share it. Returns the bound port, because
/// the configured one may be 0, any. The flags of a service begin with its name.
fn bind_to(listen_at: &Listen, of: Port, inherited: &mut InheritedSockets) -> Result<ReservedPort, SocketError> {
    let service = service_name(of);
    let shown = format!("{}:{}", listen_at.address, listen_at.port);
    let invalid =
        |text: String, next_step: String| SocketError { status: Status::invalid(text), next_step: Some(next_step) };
    let port = u16::try_from(listen_at.port).map_err(|_| {
        invalid(format!("port {} is out of range", listen_at.port), format!("--{service}-port takes 0 to 65535"))
    })?;
    let address = (&*listen_at.address, port).to_socket_addrs().map_err(|error| error.to_string());
    let address = address.and_then(|mut found| found.next().ok_or_else(|| "it has no address".to_owned()));
    let address = address.map_err(|error| {
        let step = format!("give --{service}-address an address of this machine, or 0.0.0.0 for all");
        invalid(format!("cannot resolve '{shown}': {error}"), step)
    })?;
    let found = inherited.take_tcp(service, address);
    let bound = found.map_or_else(|| Ok((listener::bind(&address, listen_at.reuse_port)?, Origin::ThisServer)), Ok);
    let bound = bound.and_then(|(socket, origin)| {
        Ok(ReservedPort { service: of, port: socket.local_addr()?.port(), socket: socket.into(), origin })
    });
    bound.map_err(|error| bind_error(&shown, service, port, &error))
}

fn bind_error(shown: &str, service: &str, port: u16, error: &io::Error) -> SocketError {
    let next_step = match error.kind() {
        io::ErrorKind::AddrInUse => Some(format!(
            "another program listens on port {port}; `ss -ltnp 'sport = :{port}'` names it: end it, or choose another \
             port with --{service}-port"
        )),
        io::ErrorKind::AddrNotAvailable => {
            Some(format!("give --{service}-address an address of this machine, or 0.0.0.0 for all"))
        }
        io::ErrorKind::PermissionDenied => {
            Some(format!("choose a port from 1024 on with --{service}-port, or give the process CAP_NET_BIND_SERVICE"))
        }
        _ => None,
    };
    SocketError { status: cannot_listen(shown, error), next_step }
}

fn path_error(path: &Path, port: Port, error: &io::Error) -> SocketError {
    let flag = path_flag(port);
    let next_step = match error.kind() {
        io::ErrorKind::AddrInUse => {
            Some(format!("another server listens at this path: end it, or choose another path with --{flag}"))
        }
        io::ErrorKind::NotFound => Some(format!("make the directory, or choose another path with --{flag}")),
        _ => Some(format!("choose another path with --{flag}")),
    };
    SocketError { status: cannot_listen(&format!("unix:{}", path.display()), error), next_step }
}

fn cannot_listen(shown: &str, error: &io::Error) -> Status {
    Status::unavailable(match error.kind() {
        io::ErrorKind::AddrInUse => format!("Socket '{shown}' already in use "),
        _ => format!("cannot listen at '{shown}': {error}"),
    })
}
