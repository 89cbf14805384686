//! The options of a front end, by the names that they have in Triton's `tritonfrontend` (contract/python_api.md
//! section 14), and some of the program's beside them.
//!
//! Each fills in what the program's flag of that meaning does. Files are read and addresses resolved at the start.

use std::path::PathBuf;
use std::time::Duration;

use crate::api::HeaderPattern;
use crate::api::routes::Category;
use crate::server::options::{IoEngine, Level, Listen, Options, Restriction, TlsOptions};
use nereid_request::Status;

/// Which service a front end offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Http,
    Grpc,
    Metrics,
}

impl Kind {
    /// As in Triton's errors, in which the front end of the metrics is one for HTTP.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Http | Kind::Metrics => "HTTP",
            Kind::Grpc => "GRPC",
        }
    }

    pub fn thread_name(self) -> &'static str {
        match self {
            Kind::Http => "http-shard",
            Kind::Grpc => "grpc-shard",
            Kind::Metrics => "metrics-shard",
        }
    }
}

/// The value of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    Text(&'a str),
    Int(i64),
    Bool(bool),
}

impl Value<'_> {
    /// As in Triton's errors.
    fn kind(self) -> &'static str {
        match self {
            Value::Text(_) => "string",
            Value::Int(_) => "int",
            Value::Bool(_) => "bool",
        }
    }
}

/// The name of an option and the value that it got.
#[derive(Clone, Copy)]
struct Given<'a> {
    name: &'a str,
    value: Value<'a>,
}

impl<'a> Given<'a> {
    fn wrong(self, expected: &str) -> Status {
        let (name, found) = (self.name, self.value.kind());
        Status::invalid(format!("Key: {name} found, but incorrect type. Expected {expected} Found: {found}"))
    }

    fn text(self) -> Result<&'a str, Status> {
        match self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong("string")),
        }
    }

    fn path(self) -> Result<PathBuf, Status> {
        self.text().map(PathBuf::from)
    }

    fn boolean(self) -> Result<bool, Status> {
        match self.value {
            Value::Bool(value) => Ok(value),
            _ => Err(self.wrong("bool")),
        }
    }

    /// A number from `least` on that fits its option.
    fn number<T: TryFrom<i64>>(self, least: i64) -> Result<T, Status> {
        let Value::Int(value) = self.value else { return Err(self.wrong("int")) };
        let in_range = Some(value).filter(|value| *value >= least).and_then(|value| T::try_from(value).ok());
        in_range.ok_or_else(|| Status::invalid(format!("{} must be a number from {least} on, got {value}", self.name)))
    }

    /// A pattern of names of headers; empty: none.
    fn pattern(self) -> Result<String, Status> {
        let text = self.text()?;
        if !text.is_empty() {
            HeaderPattern::new(text).map_err(|error| Status::invalid(format!("{}: {error}", self.name)))?;
        }
        Ok(text.to_owned())
    }
}

/// What a front end starts with.
#[derive(Debug, Clone)]
pub struct Settings {
    pub kind: Kind,
    /// Those of the server, with the port of this front end alone.
    pub options: Options,
    /// Most shards.
    pub threads: usize,
    /// How long accepted requests may take once the port is to be closed; `None`: the server's exit timeout.
    pub drain_timeout: Option<Duration>,
}

impl Settings {
    /// The defaults of a kind, for a server with these options.
    pub fn new(kind: Kind, server: Options) -> Settings {
        let closed = |listen: Listen| Listen { allowed: false, ..listen };
        let mut options = Options {
            http: closed(Listen::at(8000)),
            grpc: closed(Listen::at(8001)),
            metrics: closed(Listen::at(8002)),
            // The page is about a whole server.
            allow_ui: false,
            ..server
        };
        let (listen, threads) = match kind {
            Kind::Http => (&mut options.http, 8),
            Kind::Grpc => (&mut options.grpc, 2),
            Kind::Metrics => (&mut options.metrics, 1),
        };
        listen.allowed = true;
        Settings { kind, options, threads, drain_timeout: None }
    }

    pub fn set(&mut self, name: &str, value: Value<'_>) -> Result<(), Status> {
        let given = Given { name, value };
        match (name, self.kind) {
            ("address", _) => self.listen().address = given.text()?.to_owned(),
            // Its range is that of the address, which binding checks.
            ("port", _) => self.listen().port = given.number(0)?,
            ("io_engine", _) => self.options.io_engine = engine(given)?,
            ("drain_timeout_ms", _) => self.drain_timeout = Some(Duration::from_millis(given.number(0)?)),
            ("thread_count", Kind::Http | Kind::Metrics) => self.threads = given.number(1)?,
            ("reuse_port", Kind::Http | Kind::Grpc) => self.listen().reuse_port = given.boolean()?,
            ("uds", Kind::Http) => self.options.http_unix_socket = socket(given)?,
            ("uds", Kind::Grpc) => self.options.grpc_unix_socket = socket(given)?,
            ("use_ssl" | "server_cert" | "server_key" | "root_cert" | "use_mutual_auth", Kind::Http) => {
                set_tls(&mut self.options.http_tls, given)?;
            }
            ("use_ssl" | "server_cert" | "server_key" | "root_cert" | "use_mutual_auth", Kind::Grpc) => {
                set_tls(&mut self.options.grpc_tls, given)?;
            }
            ("header_forward_pattern", Kind::Http) => self.options.http_header_forward_pattern = given.pattern()?,
            ("max_input_size", Kind::Http) => self.options.http_max_input_size = given.number(1)?,
            (_, Kind::Grpc) => return self.set_of_grpc(given),
            (_, kind @ (Kind::Http | Kind::Metrics)) => return Err(unknown(name, kind)),
        }
        Ok(())
    }

    fn set_of_grpc(&mut self, given: Given<'_>) -> Result<(), Status> {
        let Settings { options, threads, .. } = self;
        let keepalive = &mut options.grpc_keepalive;
        match given.name {
            // Triton has threads for each kind of call beside these.
            "infer_thread_count" => *threads = given.number::<usize>(0)?.max(1),
            "keepalive_time_ms" => keepalive.time_ms = given.number(0)?,
            "keepalive_timeout_ms" => keepalive.timeout_ms = given.number(0)?,
            "keepalive_permit_without_calls" => keepalive.without_calls = given.boolean()?,
            "http2_max_pings_without_data" => keepalive.pings_without_data_max = given.number(0)?,
            "http2_min_recv_ping_interval_without_data_ms" => keepalive.ping_interval_min_ms = given.number(0)?,
            "http2_max_ping_strikes" => keepalive.ping_strikes_max = given.number(0)?,
            "max_connection_age_ms" => keepalive.age_max_ms = given.number(0)?,
            "max_connection_age_grace_ms" => keepalive.age_grace_ms = given.number(0)?,
            "infer_compression_level" => options.grpc_response_compression = compression(given)?,
            // Memory is pooled by the shards as it is needed.
            "infer_allocation_pool_size" => drop(given.number::<i32>(0)?),
            // 0 would hold every response back for ever.
            "max_response_pool_size" => options.grpc_max_response_pool_size = given.number::<u32>(0)?.max(1),
            "max_receive_message_size" => options.grpc_max_receive_message_size = given.number(1)?,
            "forward_header_pattern" => options.grpc_header_forward_pattern = given.pattern()?,
            name => return Err(unknown(name, self.kind)),
        }
        Ok(())
    }

    /// Adds a key; each group has one at most.
    pub fn restrict(&mut self, restriction: Restriction) -> Result<(), Status> {
        let keys = match self.kind {
            Kind::Http => &mut self.options.http_restricted,
            Kind::Grpc => &mut self.options.grpc_restricted,
            Kind::Metrics => return Err(Status::unsupported("a front end for metrics has no groups to restrict")),
        };
        let Restriction { group, key, value } = &restriction;
        if !Category::ALL.iter().any(|(_, name)| name == group) {
            let groups = Category::ALL.map(|(_, name)| name).join(", ");
            return Err(Status::invalid(format!("unknown group '{group}'; the groups are {groups}")));
        }
        if keys.iter().any(|known| known.group == *group) {
            return Err(Status::invalid(format!("the group '{group}' can not be in several groups of features")));
        }
        if key.is_empty() || value.is_empty() {
            return Err(Status::invalid(format!("the group '{group}' needs a header and a value")));
        }
        keys.push(restriction);
        Ok(())
    }

    fn listen(&mut self) -> &mut Listen {
        match self.kind {
            Kind::Http => &mut self.options.http,
            Kind::Grpc => &mut self.options.grpc,
            Kind::Metrics => &mut self.options.metrics,
        }
    }
}

fn unknown(name: &str, kind: Kind) -> Status {
    let of = match kind {
        Kind::Http => "HTTP",
        Kind::Grpc => "gRPC",
        Kind::Metrics => "the metrics",
    };
    Status::invalid(format!("a front end for {of} has no option '{name}'"))
}

fn set_tls(tls: &mut TlsOptions, given: Given<'_>) -> Result<(), Status> {
    match given.name {
        "use_ssl" => tls.allowed = given.boolean()?,
        "server_cert" => tls.credentials.certificate = given.path()?,
        "server_key" => tls.credentials.key = given.path()?,
        "root_cert" => tls.credentials.roots = given.path()?,
        _ => tls.credentials.mutual = given.boolean()?,
    }
    Ok(())
}

/// A path; empty: none.
fn socket(given: Given<'_>) -> Result<Option<PathBuf>, Status> {
    Ok(Some(given.path()?).filter(|path| !path.as_os_str().is_empty()))
}

fn engine(given: Given<'_>) -> Result<IoEngine, Status> {
    match given.text()? {
        "auto" => Ok(IoEngine::Auto),
        "io_uring" => Ok(IoEngine::IoUring),
        "epoll" => Ok(IoEngine::Epoll),
        other => Err(Status::invalid(format!("io_engine must be auto, io_uring or epoll, not '{other}'"))),
    }
}

/// One of Triton's levels.
fn compression(given: Given<'_>) -> Result<Option<Level>, Status> {
    match given.number::<u32>(0)? {
        0 => Ok(None),
        1 => Ok(Some(Level::Low)),
        2 => Ok(Some(Level::Medium)),
        3 => Ok(Some(Level::High)),
        other => {
            let text =
                format!("infer_compression_level must be 0 (none), 1 (low), 2 (medium) or 3 (high), not {other}");
            Err(Status::invalid(text))
        }
    }
}
