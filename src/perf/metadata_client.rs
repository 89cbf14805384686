//! Calls to the server beside the load: the model's metadata, its statistics, regions of shared memory.
//!
//! They go over a connection of their own, one after the other, over the protocol of the load: a server may offer only
//! one.

mod grpc;
mod http;
mod wire;

use super::PerfError;
use super::measurement::ServerSide;
use super::model_info::ModelInfo;
use super::plan::{Endpoint, Plan, Protocol, Target};
use super::tls::Security;
use grpc::GrpcMetadataClient;
use http::HttpMetadataClient;
use wire::Wire;

/// How a question failed.
#[derive(Debug)]
enum Trouble {
    /// The connection failed, before the call or during it.
    Connection(String),
    /// The server refused.
    Refused(String),
}

/// A page of text over plain HTTP.
pub fn fetch(endpoint: &Endpoint, path: &str) -> Result<String, PerfError> {
    let wire = Wire::connect(endpoint, None);
    let page = wire
        .map_err(Trouble::Connection)
        .and_then(|wire| HttpMetadataClient::new(wire, endpoint.authority(), Vec::new()).page(path));
    page.map_err(|trouble| match trouble {
        Trouble::Connection(reason) => PerfError::Unreachable { endpoint: endpoint.clone(), reason },
        Trouble::Refused(reason) => PerfError::Refused { what: format!("{endpoint}{path}"), reason },
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
        let security = Security::new(target).map_err(PerfError::Plan)?;
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
    fn call<T>(&mut self, what: &str, question: impl Fn(&mut Link) -> Result<T, Trouble>) -> Result<T, PerfError> {
        let had_link = self.link.is_some();
        let mut outcome = self.link().and_then(&question);
        if had_link && matches!(outcome, Err(Trouble::Connection(_))) {
            self.link = None;
            outcome = self.link().and_then(question);
        }
        outcome.map_err(|trouble| match trouble {
            Trouble::Refused(reason) => PerfError::Refused { what: what.to_owned(), reason },
            Trouble::Connection(reason) => {
                self.link = None;
                PerfError::Unreachable { endpoint: self.target.endpoint.clone(), reason }
            }
        })
    }

    fn link(&mut self) -> Result<&mut Link, Trouble> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                let wire = Wire::connect(&self.target.endpoint, self.security.as_ref()).map_err(Trouble::Connection)?;
                let (authority, headers) = (self.target.endpoint.authority(), self.headers.clone());
                match self.target.protocol {
                    Protocol::Http => Link::Http(HttpMetadataClient::new(wire, authority, headers)),
                    Protocol::GrpcUnary | Protocol::GrpcStream => {
                        let tls = self.target.tls.is_some();
                        Link::Grpc(Box::new(GrpcMetadataClient::new(wire, authority, tls, headers)))
                    }
                }
            }
        };
        Ok(self.link.insert(link))
    }
}
