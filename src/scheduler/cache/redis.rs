//! The cache in a Redis that several servers may share.
//!
//! Only the cache's own threads call it. Whatever Redis does, each step has a deadline; a Redis that does not answer is
//! not used for a while, in which every request is a miss, and this is logged once.

mod address;
mod connection;
mod reply;
mod security;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use self::address::Address;
use self::connection::{Connection, Failure};
use self::reply::Reply;
use self::security::Security;
use super::entry::Entry;
use super::key::Key;
use super::{Inserted, Store};
use nereid_clock::now_ns;
use nereid_model_config::ModelSpec;
use nereid_request::Status;

/// Larger answers are not inserted, and larger values not read.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Where the settings wait for ever.
const TIMEOUT_MS: u64 = 1000;
/// No setting lets a request wait longer.
const TIMEOUT_MS_MAX: u64 = 60_000;
/// How long a request waits for a connection that is free.
const WAIT_MS: u64 = 100;
const CONNECTIONS_MAX: u64 = 64;
/// How long a Redis that did not answer is not used.
const PAUSE_NS: u64 = 1_000_000_000;

pub struct Redis {
    options: Options,
    /// Idle connections, at most one for each thread.
    idle: Mutex<Vec<Connection>>,
    /// No command is tried before this time of `now_ns`.
    paused_until_ns: AtomicU64,
    /// The log contains that it does not answer.
    is_unavailable: AtomicBool,
}

/// Options for making connections.
struct Options {
    address: Address,
    user: String,
    password: Option<String>,
    database: u64,
    connect_timeout: Duration,
    command_timeout: Duration,
    wait_timeout: Duration,
    connections: usize,
    keep_alive: bool,
    security: Option<Security>,
}

const KEYS: [&str; 16] = [
    "host",
    "port",
    "user",
    "password",
    "db",
    "connect_timeout",
    "socket_timeout",
    "pool_size",
    "wait_timeout",
    "keep_alive",
    "tls_enabled",
    "cert",
    "key",
    "cacert",
    "cacert_dir",
    "sni",
];

impl Redis {
    /// Opens the cache; Redis has to answer now.
    pub fn open(
        settings: &BTreeMap<&str, &str>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Redis, Status> {
        let (Some(_), Some(_)) = (settings.get("host"), settings.get("port")) else {
            return Err(Status::invalid(
                "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port' \
                 in the configuration - e.g. tritonserver --cache-config redis,host=redis --cache-config \
                 redis,port=6379 --model-repository=/models ...",
            ));
        };
        let failed = |why: String| format!("Failed to initialize RedisCache: {why}");
        let options = Options::read(settings, environment).map_err(|why| Status::invalid(failed(why)))?;
        let redis = Redis {
            options,
            idle: Mutex::default(),
            paused_until_ns: AtomicU64::new(0),
            is_unavailable: AtomicBool::new(false),
        };
        match redis.attempt(&[b"PING"]) {
            Ok((connection, Reply::Status(_))) => redis.put_back(connection),
            Ok((_, reply)) => return Err(Status::internal(failed(format!("PING was answered with {reply}")))),
            Err(failure) => return Err(Status::internal(failed(failure.to_string()))),
        }
        Ok(redis)
    }

    /// Sends one command. None if there is no reply, or an error.
    fn command(&self, words: &[&[u8]]) -> Option<Reply> {
        if self.is_unavailable() {
            return None;
        }
        match self.attempt(words) {
            Ok((connection, reply)) => {
                if self.is_unavailable.swap(false, Ordering::SeqCst) {
                    info!("the response cache in Redis at {} answers again", self.options.address);
                }
                self.put_back(connection);
                match reply {
                    Reply::Error(text) => {
                        self.report(&format!("refuses a command: {text}"));
                        None
                    }
                    reply => Some(reply),
                }
            }
            // Another program's value; the connection is lost, but Redis answers.
            Err(Failure::TooLarge) => None,
            Err(failure) => {
                self.report(&format!("does not answer, requests do without it: {failure}"));
                self.paused_until_ns.store(now_ns().saturating_add(PAUSE_NS), Ordering::SeqCst);
                None
            }
        }
    }

    /// Logs the failure once until Redis answers again.
    fn report(&self, what: &str) {
        if !self.is_unavailable.swap(true, Ordering::SeqCst) {
            warn!("the response cache in Redis at {} {what}", self.options.address);
        }
    }

    fn attempt(&self, words: &[&[u8]]) -> Result<(Connection, Reply), Failure> {
        let deadline = || Instant::now() + self.options.command_timeout;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(mut connection) = idle {
            match connection.command(words, deadline()) {
                Ok(reply) => return Ok((connection, reply)),
                // It was closed while it was idle, and so were the others. A server that timed out is not tried twice.
                Err(Failure::Io(error)) if error.kind() != ErrorKind::TimedOut => {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                Err(failure) => return Err(failure),
            }
        }
        let mut connection = Connection::open(&self.options)?;
        let reply = connection.command(words, deadline())?;
        Ok((connection, reply))
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.options.connections {
            idle.push(connection);
        }
    }
}

impl Store for Redis {
    fn lookup(&self, key: Key, spec: &ModelSpec) -> Option<Arc<Entry>> {
        match self.command(&[b"GET", name(key).as_bytes()])? {
            Reply::Value(bytes) => Entry::decode(&bytes, spec).filter(|entry| entry.seal == key.seal),
            _ => None,
        }
    }

    fn insert(&self, key: Key, entry: Arc<Entry>, replaces: bool) -> Inserted {
        let value = entry.encode().filter(|value| value.len() <= VALUE_BYTES_MAX);
        let Some(value) = value else { return Inserted::Refused };
        let name = name(key);
        let words: [&[u8]; 4] = [b"SET", name.as_bytes(), &value, b"NX"];
        match self.command(if replaces { &words[..3] } else { &words }) {
            Some(Reply::Status(_)) => Inserted::Kept,
            Some(Reply::Nothing) => Inserted::Present,
            _ => Inserted::Refused,
        }
    }

    fn is_quick(&self) -> bool {
        false
    }

    fn is_unavailable(&self) -> bool {
        now_ns() < self.paused_until_ns.load(Ordering::SeqCst)
    }

    fn wait_max_ns(&self) -> u64 {
        u64::try_from(self.options.wait_timeout.as_nanos()).unwrap_or(u64::MAX)
    }

    fn thread_count(&self) -> usize {
        self.options.connections
    }
}

/// The name differs from those of other programs in the same database: Triton's own cache uses the bare number, in
/// another encoding.
fn name(key: Key) -> String {
    format!("nereid:{}", key.hash)
}

impl Options {
    fn read(settings: &BTreeMap<&str, &str>, environment: impl Fn(&str) -> Option<String>) -> Result<Options, String> {
        for key in settings.keys().filter(|key| !KEYS.contains(key)) {
            warn!("the response cache 'redis' has no setting '{key}'");
        }
        let number = |key: &str, default: u64, max: u64| match settings.get(key) {
            None => Ok(default),
            Some(text) => match text.parse() {
                Ok(number) if number <= max => Ok(number),
                _ => Err(format!("'{key}' must be a number from 0 to {max}, got '{text}'")),
            },
        };
        let truth = |key: &str| match settings.get(key).copied() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(text) => Err(format!("'{key}' must be true or false, got '{text}'")),
        };
        let timeout = |key: &str, default: u64| {
            number(key, default, TIMEOUT_MS_MAX).map(|ms| Duration::from_millis(if ms == 0 { TIMEOUT_MS } else { ms }))
        };
        let text =
            |key: &str, variable: &str| settings.get(key).map(|text| (*text).to_owned()).or(environment(variable));
        let host = settings.get("host").copied().unwrap_or_default();
        let port = number("port", 0, u64::from(u16::MAX))?;
        let is_secure = truth("tls_enabled")?
            || ["cert", "key", "cacert", "cacert_dir", "sni"].iter().any(|key| settings.contains_key(key));
        Ok(Options {
            address: Address::new(host, u16::try_from(port).unwrap_or_default()).map_err(|error| error.to_string())?,
            user: text("user", "TRITONCACHE_REDIS_USERNAME").unwrap_or_else(|| "default".to_owned()),
            password: text("password", "TRITONCACHE_REDIS_PASSWORD"),
            database: number("db", 0, i32::MAX.unsigned_abs().into())?,
            connect_timeout: timeout("connect_timeout", TIMEOUT_MS)?,
            command_timeout: timeout("socket_timeout", TIMEOUT_MS)?,
            wait_timeout: timeout("wait_timeout", WAIT_MS)?,
            connections: usize::try_from(number("pool_size", 1, CONNECTIONS_MAX)?.max(1)).unwrap_or(1),
            keep_alive: truth("keep_alive")?,
            security: is_secure.then(|| Security::new(host, settings)).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests;
