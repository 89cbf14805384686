//! Requests that their models get later: after a delay, or when they have been copied or checked.

use std::rc::Rc;
use std::sync::Arc;

use super::reply_to::ReplyTo;
use crate::api::http::dialect::Dialect;
use crate::api::infer::AnswerForm;
use nereid_request::{Request, Text};
use nereid_scheduler::ServedModel;

/// A request that is not submitted yet, with its model and the form of its answer.
pub struct PendingSubmit {
    pub reply_to: ReplyTo,
    pub model: Arc<ServedModel>,
    pub request: Box<Request>,
    pub form: Rc<AnswerForm>,
}

/// What the answer to a pending request needs if the request is refused, and what goes on if it is not.
pub struct Prepared {
    pub reply_to: ReplyTo,
    pub dialect: Dialect,
    pub id: Text,
    pub decoupled: bool,
}

impl Prepared {
    pub fn of(pending: &PendingSubmit) -> Prepared {
        let (id, decoupled) = (pending.request.id.clone(), pending.model.spec.decoupled);
        Prepared { reply_to: pending.reply_to, dialect: pending.form.dialect, id, decoupled }
    }
}
