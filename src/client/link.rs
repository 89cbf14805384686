//! A server that is called again and again over HTTP, on one connection as long as that lasts.

use std::time::Duration;

use super::http::{CallError, HttpClient};
use super::tls::Security;
use super::wire::Wire;
use super::{Alpn, Endpoint, Tls};

/// Calls one server; connects when there is no connection.
pub struct HttpLink {
    endpoint: Endpoint,
    security: Option<Security>,
    headers: Vec<(String, String)>,
    patience: Duration,
    client: Option<HttpClient>,
}

impl HttpLink {
    /// `patience`: the longest time until an answer, or more of it, is there. The error names the file of `tls` that is
    /// of no use.
    pub fn new(
        endpoint: Endpoint,
        tls: Option<&Tls>,
        headers: Vec<(String, String)>,
        patience: Duration,
    ) -> Result<HttpLink, String> {
        let security = tls.map(|tls| Security::new(tls, &endpoint, Alpn::Http1)).transpose()?;
        Ok(HttpLink { endpoint, security, headers, patience, client: None })
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Calls on the connection that is there, and once more on a new one if that has ended meanwhile.
    pub fn call<T>(&mut self, call: impl Fn(&mut HttpClient) -> Result<T, CallError>) -> Result<T, CallError> {
        if let Some(client) = &mut self.client {
            match call(client) {
                Err(CallError::Connection(_)) => self.client = None,
                Err(error @ CallError::TimedOut(_)) => {
                    // The answer may still come, and is none to the next call.
                    self.client = None;
                    return Err(error);
                }
                outcome => return outcome,
            }
        }
        let wire = Wire::connect(&self.endpoint, self.security.as_ref(), self.patience);
        let wire = wire.map_err(CallError::Connection)?;
        let mut client = HttpClient::new(wire, self.endpoint.authority(), self.headers.clone());
        let outcome = call(&mut client);
        if !matches!(outcome, Err(CallError::Connection(_) | CallError::TimedOut(_))) {
            self.client = Some(client);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};

    use super::*;
    use crate::endpoint::tests::listen;

    #[test]
    fn a_connection_that_ended_is_replaced_and_one_that_lasts_is_kept() {
        let (listener, endpoint) = listen();
        // Two answers on the first connection, one on the second, then no server.
        let server = std::thread::spawn(move || {
            for answers in [2, 1] {
                let mut connection = BufReader::new(listener.accept().unwrap().0);
                for number in 0..answers {
                    let mut line = String::new();
                    while line != "\r\n" {
                        line.clear();
                        connection.read_line(&mut line).unwrap();
                    }
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{answers}.{number}");
                    connection.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            }
        });
        let mut link = HttpLink::new(endpoint, None, Vec::new(), Duration::from_secs(60)).unwrap();
        let pages: Vec<_> = (0..3).map(|_| link.call(|client| client.page("/"))).collect();
        assert_eq!(pages, [Ok("2.0".to_owned()), Ok("2.1".to_owned()), Ok("1.0".to_owned())]);
        server.join().unwrap();
        assert!(matches!(link.call(|client| client.page("/")), Err(CallError::Connection(_))));
    }
}
