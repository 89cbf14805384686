//! Unary calls through a ring of shared memory, one after the other, on a client that blocks.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use crate::exchange::metadata;
use crate::plan::Endpoint;
use nereid_client::{CallError, connect_unix};
use nereid_ipc::{Client, ClientError, Route};
use nereid_protocol::grpc::Code;

pub struct RingCalls {
    client: Client,
    metadata: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of the methods that were called.
    routes: HashMap<String, Route>,
    patience: Duration,
}

impl RingCalls {
    pub fn connect(
        endpoint: &Endpoint,
        headers: &[(String, String)],
        patience: Duration,
    ) -> Result<RingCalls, CallError> {
        let Endpoint::Unix(path) = endpoint else {
            let text = "a shared-memory ring is reached through the Unix socket of the server's --ipc-path";
            return Err(CallError::Refused(text.to_owned()));
        };
        let connect = || {
            let stream = connect_unix(path)?;
            stream.set_read_timeout(Some(patience))?;
            Client::over(stream).map_err(|error| io::Error::other(error.to_string()))
        };
        let client = connect().map_err(|error| CallError::Connection(error.to_string()))?;
        Ok(RingCalls { client, metadata: metadata(headers), routes: HashMap::new(), patience })
    }

    /// The message of the answer.
    pub fn call(&mut self, method: &str, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let route = match self.routes.get(method) {
            Some(route) => *route,
            None => {
                let metadata: Vec<_> = self.metadata.iter().map(|(name, value)| (&name[..], &value[..])).collect();
                let path = format!("/inference.GRPCInferenceService/{method}");
                let route = self.client.route(&path, &metadata).map_err(broken)?;
                self.routes.insert(method.to_owned(), route);
                route
            }
        };
        let answer = self.client.call_within(route, message, Some(self.patience)).map_err(broken)?;
        answer.map_err(|status| {
            let code = Code::from_header(status.code.to_string().as_bytes());
            CallError::Refused(format!("{}: {}", code.name(), status.text))
        })
    }
}

fn broken(error: ClientError) -> CallError {
    match error {
        ClientError::TimedOut => CallError::TimedOut(error.to_string()),
        other => CallError::Connection(other.to_string()),
    }
}
