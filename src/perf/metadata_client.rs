//! Calls to the server beside the load: the model's metadata, its statistics, regions of shared memory.
//!
//! They go over a connection of their own, one after the other, over the protocol of the load: a server may offer only
//! one.

mod grpc;
mod http;
mod http2_calls;
mod ring_calls;

use std::time::Duration;

use super::PerfError;
use super::measurement::ServerSide;
use super::model_info::ModelInfo;
use super::plan::{Endpoint, Plan, Protocol, Target};
use grpc::{Calls, GrpcMetadataClient};
use http::HttpMetadataClient;
use http2_calls::Http2Calls;
use nereid_client::{CallError, HttpClient, Security, Wire};
use ring_calls::RingCalls;

/// Questions have quick answers; this only turns a hang into an error.
const PATIENCE: Duration = Duration::from_secs(20);

/// A page of text over plain HTTP.
pub fn fetch(endpoint: &Endpoint, path: &str) -> Result<String, PerfError> {
    let wire = Wire::connect(endpoint, None, PATIENCE);
    let page = wire
        .map_err(CallError::Connection)
        .and_then(|wire| HttpClient::new(wire, endpoint.authority(), Vec::new()).page(path));
    page.map_err(|trouble| match trouble {
        CallError::Connection(reason) | CallError::TimedOut(reason) => {
            PerfError::Unreachable { endpoint: endpoint.clone(), reason }
        }
        CallError::Refused(reason) => PerfError::Refused { what: format!("{endpoint}{path}"), reason },
    })
}

/// Asks one server.
pub struct MetadataClient {
    target: Target,
    security: Option<Security>,
    headers: Vec<(String, String)>,
    link: Option<Link>,
}

#[expect(clippy::large_enum_variant, reason = "there is one")]
enum Link {
    Http(HttpMetadataClient),
    Grpc(Box<GrpcMetadataClient>),
}

impl MetadataClient {
    pub fn new(target: &Target, headers: &[(String, String)]) -> Result<MetadataClient, PerfError> {
        let security = target.security().map_err(PerfError::Plan)?;
        Ok(MetadataClient { target: target.clone(), security, headers: headers.to_vec(), link: None })
    }

    pub fn for_plan(plan: &Plan) -> Result<MetadataClient, PerfError> {
        MetadataClient::new(&plan.target, &plan.work.headers)
    }

    pub fn inspect(&mut self, model: &str, version: &str) -> Result<ModelInfo, PerfError> {
        self.call(&format!("what model '{model}' looks like"), |link| match link {
            Link::Http(client) => client.inspect(model, version),
            Link::Grpc(client) => client.inspect(model, version),
        })
    }

    /// Sums since the server started, of one version or of all together.
    pub fn statistics(&mut self, model: &str, version: &str) -> Result<ServerSide, PerfError> {
        self.call(&format!("statistics of model '{model}'"), |link| match link {
            Link::Http(client) => client.statistics(model, version),
            Link::Grpc(client) => client.statistics(model, version),
        })
    }

    pub fn register(&mut self, region: &str, key: &str, byte_size: u64) -> Result<(), PerfError> {
        self.call(&format!("registration of shared memory '{region}'"), |link| match link {
            Link::Http(client) => client.register(region, key, byte_size),
            Link::Grpc(client) => client.register(region, key, byte_size),
        })
    }

    pub fn unregister(&mut self, region: &str) -> Result<(), PerfError> {
        self.call(&format!("removal of shared memory '{region}'"), |link| match link {
            Link::Http(client) => client.unregister(region),
            Link::Grpc(client) => client.unregister(region),
        })
    }

    /// Asks on the connection that is there, and once more on a new one if that has ended meanwhile.
    fn call<T>(&mut self, what: &str, question: impl Fn(&mut Link) -> Result<T, CallError>) -> Result<T, PerfError> {
        let had_link = self.link.is_some();
        let mut outcome = self.link().and_then(&question);
        if had_link && matches!(outcome, Err(CallError::Connection(_))) {
            self.link = None;
            outcome = self.link().and_then(question);
        }
        outcome.map_err(|trouble| match trouble {
            CallError::Refused(reason) => PerfError::Refused { what: what.to_owned(), reason },
            CallError::Connection(reason) | CallError::TimedOut(reason) => {
                self.link = None;
                PerfError::Unreachable { endpoint: self.target.endpoint.clone(), reason }
            }
        })
    }

    fn link(&mut self) -> Result<&mut Link, CallError> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                let Target { endpoint, tls, protocol } = &self.target;
                let connect = || Wire::connect(endpoint, self.security.as_ref(), PATIENCE);
                let (authority, headers) = (endpoint.authority(), self.headers.clone());
                let of_grpc = |calls: Calls| Link::Grpc(Box::new(GrpcMetadataClient::new(calls)));
                match protocol {
                    Protocol::Http => {
                        let wire = connect().map_err(CallError::Connection)?;
                        Link::Http(HttpMetadataClient::new(HttpClient::new(wire, authority, headers)))
                    }
                    Protocol::GrpcUnary | Protocol::GrpcStream => {
                        let wire = connect().map_err(CallError::Connection)?;
                        of_grpc(Calls::Http2(Box::new(Http2Calls::new(wire, authority, tls.is_some(), headers))))
                    }
                    Protocol::Ipc => of_grpc(Calls::Ring(Box::new(RingCalls::connect(endpoint, &headers, PATIENCE)?))),
                }
            }
        };
        Ok(self.link.insert(link))
    }
}
