//! A blocking connection, with TLS or without.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};

use super::Endpoint;
use super::connect::{connect_tcp, connect_unix};
use super::tls::Security;

pub enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
    TlsTcp(Box<StreamOwned<ClientConnection, TcpStream>>),
    TlsUnix(Box<StreamOwned<ClientConnection, UnixStream>>),
}

impl Wire {
    /// `patience`: the longest time without a byte of the server, which turns a hang into an error.
    pub fn connect(endpoint: &Endpoint, security: Option<&Security>, patience: Duration) -> Result<Wire, String> {
        let session = security.map(Security::session).transpose()?;
        let text = |error: io::Error| error.to_string();
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = connect_tcp(host, *port).map_err(text)?;
                stream.set_read_timeout(Some(patience)).map_err(text)?;
                stream.set_write_timeout(Some(patience)).map_err(text)?;
                Ok(match session {
                    None => Wire::Tcp(stream),
                    Some(session) => Wire::TlsTcp(Box::new(StreamOwned::new(session, stream))),
                })
            }
            Endpoint::Unix(path) => {
                let stream = connect_unix(path).map_err(text)?;
                stream.set_read_timeout(Some(patience)).map_err(text)?;
                stream.set_write_timeout(Some(patience)).map_err(text)?;
                Ok(match session {
                    None => Wire::Unix(stream),
                    Some(session) => Wire::TlsUnix(Box::new(StreamOwned::new(session, stream))),
                })
            }
        }
    }

    fn patience(&self) -> Duration {
        let limit = match self {
            Wire::Tcp(stream) => stream.read_timeout(),
            Wire::Unix(stream) => stream.read_timeout(),
            Wire::TlsTcp(stream) => stream.sock.read_timeout(),
            Wire::TlsUnix(stream) => stream.sock.read_timeout(),
        };
        limit.ok().flatten().unwrap_or_default()
    }

    /// Reads something; the end is an error, for an answer is awaited.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        loop {
            let read = match self {
                Wire::Tcp(stream) => stream.read(buffer),
                Wire::Unix(stream) => stream.read(buffer),
                Wire::TlsTcp(stream) => stream.read(buffer),
                Wire::TlsUnix(stream) => stream.read(buffer),
            };
            match read {
                Ok(0) => return Err("the server closed the connection".to_owned()),
                Ok(n) => return Ok(n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(format!("no answer within {} s", self.patience().as_secs()));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = match self {
            Wire::Tcp(stream) => stream.write_all(bytes),
            Wire::Unix(stream) => stream.write_all(bytes),
            Wire::TlsTcp(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Wire::TlsUnix(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
        sent.map_err(|error| error.to_string())
    }
}
