//! The address of Redis. A thread of its own resolves the name: the system's resolver may take any time.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub struct Address {
    host: String,
    port: u16,
    resolved: Arc<ResolvedAddresses>,
}

/// The addresses of the last resolution.
struct ResolvedAddresses {
    addresses: Mutex<Vec<SocketAddr>>,
    is_resolving: AtomicBool,
}

impl Address {
    /// Resolves the name at once, because the server is only starting.
    pub fn new(host: &str, port: u16) -> std::io::Result<Address> {
        let addresses = (host, port).to_socket_addrs()?.collect();
        let resolved = ResolvedAddresses { addresses: Mutex::new(addresses), is_resolving: AtomicBool::new(false) };
        Ok(Address { host: host.to_owned(), port, resolved: Arc::new(resolved) })
    }

    pub fn resolved(&self) -> Vec<SocketAddr> {
        self.resolved.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Called when an address did not answer: the name may resolve to another one by now. Returns at once.
    pub fn renew(&self) {
        if self.resolved.is_resolving.swap(true, Ordering::SeqCst) {
            return;
        }
        let (host, port, resolved) = (self.host.clone(), self.port, Arc::clone(&self.resolved));
        let resolve = move || {
            if let Ok(found) = (host.as_str(), port).to_socket_addrs() {
                let found: Vec<SocketAddr> = found.collect();
                if !found.is_empty() {
                    *resolved.addresses.lock().unwrap_or_else(PoisonError::into_inner) = found;
                }
            }
            resolved.is_resolving.store(false, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("cache-resolve".to_owned()).spawn(resolve).is_err() {
            self.resolved.is_resolving.store(false, Ordering::SeqCst);
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
