//! Calls of OpenAI's interface whose model is being loaded on demand (docs/many-models.md).

use std::sync::Arc;

use super::answering::{execute, refuse, refuse_status};
use super::job::Job;
use super::port::OpenAiPort;
use crate::api::facts::ServerState;
use crate::api::infer_context::InferContext;
use crate::repository::demand::{LoadWait, Loaded, late};
use nereid_clock::now_ns;
use nereid_openai::error::Refusal;
use nereid_openai::plan::Prepared;
use nereid_protocol::service::{Replies, Token};
use nereid_request::RefusalReason;

/// What goes on when the model is loaded.
pub enum Rest {
    /// The request is prepared, for which its model is needed.
    Job(Box<Job>),
    /// It is handed to its model, which was unloaded in between.
    Prepared(Box<Prepared>),
}

/// A call that waits.
pub struct Awaited {
    rest: Rest,
    model: String,
    #[expect(dead_code, reason = "dropped for its effect")]
    wait: LoadWait,
}

/// Has a call wait for the load of a model that the look-up did not find; answers it with the refusal if it cannot.
#[cold]
pub fn park(
    context: &mut InferContext,
    token: Token,
    model: &str,
    rest: Rest,
    (refusal, lacks): (Refusal, Option<RefusalReason>),
    replies: &mut Replies,
) {
    let is_serving = context.facts.state() != ServerState::Exiting;
    let demand = context.demand.clone().filter(|_| is_serving && context.models.is_absent(model.as_bytes()));
    let Some(demand) = demand else { return refuse(context, token, &refusal, lacks, replies) };
    let Some(call) = context.calls.openai(token) else { return };
    let now = now_ns();
    let give_up_at_ns = *call.gives_up_at_ns.get_or_insert(now.saturating_add(demand.wait_time().as_nanos() as u64));
    if now >= give_up_at_ns {
        return refuse_status(context, token, &late(model.as_bytes()), replies);
    }
    match context.wait_for(&demand, token, model.as_bytes()) {
        Ok(wait) => {
            if let Some(call) = context.calls.openai(token) {
                call.awaited = Some(Box::new(Awaited { rest, model: model.to_owned(), wait }));
            }
            context.calls.time_openai(give_up_at_ns, token);
        }
        Err(Some(status)) => refuse_status(context, token, &status, replies),
        Err(None) => refuse(context, token, &refusal, lacks, replies),
    }
}

/// Refuses a call that waits, if it has waited for long enough. True if it waits or did.
pub fn look(context: &mut InferContext, token: Token, replies: &mut Replies) -> bool {
    let Some(call) = context.calls.openai(token) else { return false };
    let Some(awaited) = &call.awaited else { return false };
    if call.gives_up_at_ns.is_some_and(|at_ns| now_ns() >= at_ns) {
        let status = late(awaited.model.as_bytes());
        refuse_status(context, token, &status, replies);
    }
    true
}

/// A request could not be prepared because its model is not loaded.
pub fn missing(
    context: &mut InferContext,
    token: Token,
    model: String,
    mut job: Box<Job>,
    refusal: Refusal,
    replies: &mut Replies,
) {
    job.tried.push(model.clone());
    // A map would keep its models from being unloaded.
    job.models = Arc::default();
    park(context, token, &model, Rest::Job(job), (refusal, None), replies);
}

impl OpenAiPort {
    /// Goes on with a call when the load has ended that it waits for.
    pub fn resume(&self, context: &mut InferContext, token: Token, loaded: Loaded, replies: &mut Replies) {
        let Some(openai) = self.openai.clone() else { return };
        let Some(call) = context.calls.openai(token) else { return };
        let Some(awaited) = call.awaited.take() else { return };
        if let Loaded::Failed(status) = loaded {
            return refuse_status(context, token, &status, replies);
        }
        match awaited.rest {
            Rest::Job(mut job) => {
                job.models = Arc::clone(&context.models);
                self.begin(context, &openai, token, *job, replies);
            }
            Rest::Prepared(prepared) => execute(context, &openai, token, *prepared, replies),
        }
    }
}
