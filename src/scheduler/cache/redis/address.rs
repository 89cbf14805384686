//! The address of Redis. A thread of its own resolves the name: the system's resolver may take any time.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub struct Address {
    host: String,
    port: u16,
    known: Arc<Known>,
}

/// The addresses of the last resolution.
struct Known {
    addresses: Mutex<Vec<SocketAddr>>,
    is_asked_for: AtomicBool,
}

impl Address {
    /// Resolves the name at once, because the server is only starting.
    pub fn new(host: &str, port: u16) -> std::io::Result<Address> {
        let addresses = (host, port).to_socket_addrs()?.collect();
        let known = Known { addresses: Mutex::new(addresses), is_asked_for: AtomicBool::new(false) };
        Ok(Address { host: host.to_owned(), port, known: Arc::new(known) })
    }

    pub fn known(&self) -> Vec<SocketAddr> {
        self.known.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Called when an address did not answer: the name may resolve to another one by now. Returns at once.
    pub fn renew(&self) {
        if self.known.is_asked_for.swap(true, Ordering::SeqCst) {
            return;
        }
        let (host, port, known) = (self.host.clone(), self.port, Arc::clone(&self.known));
        let ask = move || {
            if let Ok(found) = (host.as_str(), port).to_socket_addrs() {
                let found: Vec<SocketAddr> = found.collect();
                if !found.is_empty() {
                    *known.addresses.lock().unwrap_or_else(PoisonError::into_inner) = found;
                }
            }
            known.is_asked_for.store(false, Ordering::SeqCst);
        };
        if std::thread::Builder::new().name("cache-resolve".to_owned()).spawn(ask).is_err() {
            self.known.is_asked_for.store(false, Ordering::SeqCst);
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
