//! Calls whose model is not loaded: with loads on demand (docs/many-models.md) they wait for the load, and then begin
//! once more, as if they had come after it.
//!
//! The look-up of a model leads here only when it has failed. What waits lies in its place among the calls under way;
//! its token is the call's, so that a client that leaves ends the wait.

mod resuming;

use std::borrow::Cow;
use std::sync::Arc;

use super::calls::TimerPlace;
use super::calls::work::Work;
use super::error;
use super::facts::ServerState;
use super::grpc::methods::Method;
use super::http::dialect::Dialect;
use super::infer_context::InferContext;
use super::mail::Mail;
use super::management;
use super::routes::{Route, Target};
use super::watch::Arrival;
use crate::repository::demand::{Demand, LoadWait, Loaded, late};
use nereid_clock::now_ns;
use nereid_memory::Slice;
use nereid_protocol::grpc::InferRequest;
use nereid_protocol::http1;
use nereid_protocol::service::{CallKey, GrpcPlan, GrpcReply, HttpReply, Port, Replies, Token};
use nereid_request::{Code, Status};

/// Stands for the error of the part that answers the call, which is not known yet.
const NOT_FOUND: Status = Status { code: Code::NotFound, refusal: None, message: Cow::Borrowed("") };

/// A call that begins once more when its model is loaded.
pub enum ParkedCall {
    HttpInfer(Box<HttpCall>, Dialect),
    Generate {
        http: Box<HttpCall>,
        port: Port,
        streams: bool,
    },
    /// Metadata, or the configuration.
    HttpQuery {
        call: CallKey,
        target: OwnedTarget,
        is_config: bool,
    },
    Grpc(Box<GrpcCall>),
    GrpcQuery {
        call: CallKey,
        method: Method,
        message: Slice,
    },
    Streamed {
        stream: Token,
        message: Box<InferRequest>,
        arrival: Option<Arrival>,
    },
}

/// A call over HTTP.
pub struct HttpCall {
    pub call: CallKey,
    pub target: OwnedTarget,
    pub head: http1::Head,
    pub body: Slice,
    pub arrival: Option<Arrival>,
}

/// A unary call over gRPC.
pub struct GrpcCall {
    pub call: CallKey,
    pub plan: GrpcPlan,
    pub message: Box<InferRequest>,
    pub arrival: Option<Arrival>,
    pub deadline_ns: Option<u64>,
}

/// A [`Target`] that outlives its path.
pub struct OwnedTarget {
    model: Box<[u8]>,
    version: Option<Box<[u8]>>,
}

impl OwnedTarget {
    pub fn of(target: &Target<'_>) -> OwnedTarget {
        OwnedTarget { model: target.model.into(), version: target.version.map(Into::into) }
    }

    pub fn target(&self) -> Target<'_> {
        Target { model: &self.model, version: self.version.as_deref() }
    }
}

/// A call that waits.
pub struct AwaitingModel {
    pub call: ParkedCall,
    model: Box<[u8]>,
    give_up_at_ns: u64,
    pub timer: TimerPlace,
    #[expect(dead_code, reason = "dropped for its effect")]
    wait: LoadWait,
}

impl AwaitingModel {
    /// Why the call has waited for long enough, if it has.
    pub fn is_late(&self) -> Option<Loaded> {
        (now_ns() >= self.give_up_at_ns).then(|| Loaded::Failed(late(&self.model)))
    }
}

/// A call begins once more.
pub struct Resumed {
    token: Token,
    give_up_at_ns: u64,
    /// What its load has come to: a call waits again only after one that succeeded.
    loaded: Loaded,
}

impl InferContext {
    /// Has a call wait for the load of its model, which the look-up did not find. `token`: that of the call, if it has
    /// one; otherwise it gets one. If it cannot wait: why it is refused, and the token is as before.
    #[cold]
    pub fn await_model(
        &mut self,
        token: Option<Token>,
        model: &[u8],
        status: Status,
        call: impl FnOnce() -> ParkedCall,
    ) -> Result<Token, Status> {
        let Some(demand) = self.demand.clone().filter(|_| self.models.is_absent(model)) else { return Err(status) };
        let give_up_at_ns = self.give_up_at_ns(&demand, status.clone())?;
        if self.facts.state() == ServerState::Exiting {
            return Err(status);
        }
        let issued = match token {
            Some(token) => token,
            None => self.calls.new_work(Work::Reserved)?,
        };
        match self.wait_for(&demand, issued, model) {
            Ok(wait) => {
                let timer = self.calls.time_revisit(give_up_at_ns, issued.0);
                let awaiting = AwaitingModel { call: call(), model: model.into(), give_up_at_ns, timer, wait };
                if let Some(place) = self.calls.work_mut(issued.0) {
                    *place = Work::AwaitingModel(Box::new(awaiting));
                }
                Ok(issued)
            }
            Err(refused) => {
                if token.is_none() {
                    self.calls.end_work(issued.0);
                }
                Err(refused.unwrap_or(status))
            }
        }
    }

    /// Has a call to a route about one model wait, or answers it with why it cannot. None: the route answers it.
    pub fn await_route(&mut self, call: CallKey, route: &Route<'_>, replies: &mut Replies) -> Option<Option<Token>> {
        let (target, is_config) = match route {
            Route::ModelMetadata(target) => (target, false),
            Route::ModelConfig(target) => (target, true),
            _ => return None,
        };
        let token = self.resumed_token();
        let parked = || ParkedCall::HttpQuery { call, target: OwnedTarget::of(target), is_config };
        match self.await_model(token, target.model, NOT_FOUND, parked) {
            Ok(token) => Some(Some(token)),
            Err(status) if status == NOT_FOUND => None,
            Err(status) => {
                token.and_then(|token| self.calls.end_work(token.0));
                let reply = error::http_error(&self.pool, &status, route.content_type());
                replies.push(call, HttpReply::Answer(reply));
                Some(None)
            }
        }
    }

    /// The same for an RPC.
    pub fn await_rpc(
        &mut self,
        token: Option<Token>,
        call: CallKey,
        method: Method,
        message: &Slice,
        replies: &mut Replies,
    ) -> Option<Option<Token>> {
        let name = management::model_of_query(method, message)?;
        let parked = || ParkedCall::GrpcQuery { call, method, message: message.clone() };
        match self.await_model(token, name.as_bytes(), NOT_FOUND, parked) {
            Ok(token) => Some(Some(token)),
            Err(status) if status == NOT_FOUND => None,
            Err(status) => {
                token.and_then(|token| self.calls.end_work(token.0));
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
                Some(None)
            }
        }
    }

    /// When a call gives up that begins to wait now, or goes on to; the error, if it does not wait again.
    pub fn give_up_at_ns(&mut self, demand: &Demand, status: Status) -> Result<u64, Status> {
        match self.resumed.take() {
            None => Ok(now_ns().saturating_add(demand.wait_time().as_nanos() as u64)),
            // It was unloaded again, before this call had its turn.
            Some(Resumed { loaded: Loaded::Serves, give_up_at_ns, .. }) => Ok(give_up_at_ns),
            Some(Resumed { loaded: Loaded::Unknown, .. }) => Err(status),
            Some(Resumed { loaded: Loaded::Failed(failed), .. }) => Err(failed),
        }
    }

    /// Has the outcome of the load posted to this shard.
    pub fn wait_for(&self, demand: &Arc<Demand>, token: Token, model: &[u8]) -> Result<LoadWait, Option<Status>> {
        let (post, key) = (self.calls.post(), token.0);
        demand.wait(model, Box::new(move |loaded| post(Mail::ModelLoaded { key, loaded })))
    }

    /// Takes a call that waits out of its place, to begin it once more.
    pub fn resume(&mut self, key: u64, loaded: Loaded) -> Option<ParkedCall> {
        let place @ Work::AwaitingModel(_) = self.calls.work_mut(key)? else { return None };
        let Work::AwaitingModel(awaiting) = std::mem::replace(place, Work::Reserved) else { return None };
        self.calls.forget_time(&awaiting.timer);
        self.resumed = Some(Resumed { token: Token(key), give_up_at_ns: awaiting.give_up_at_ns, loaded });
        Some(awaiting.call)
    }

    /// The token of a call that begins once more; it goes on to be that call's.
    pub fn resumed_token(&self) -> Option<Token> {
        self.resumed.as_ref().map(|resumed| resumed.token)
    }
}
