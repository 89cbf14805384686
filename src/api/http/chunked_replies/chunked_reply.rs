//! An HTTP answer that leaves response by response, on its way to text.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::api::error;
use crate::api::http::generate::reply;
use crate::api::infer::{AnswerForm, Manner, http_reply};
use crate::api::send_window::SendWindow;
use nereid_memory::{Gather, Pool};
use nereid_protocol::service::CallKey;
use nereid_request::{Credit, Delivery, Response, Status, Text, Value};
use nereid_scheduler::ServedModel;

/// Which responses are the last ones.
const FINAL: &str = "triton_final_response";

/// An answer whose responses leave one by one, each as a chunk.
pub struct ChunkedReply {
    pub(super) call: CallKey,
    model: Arc<ServedModel>,
    pub(super) form: Rc<AnswerForm>,
    /// Responses that are not begun.
    queue: VecDeque<Response>,
    /// The one that is being written.
    writing: Option<Writing>,
    /// The status of the first response, and of an answer of one part that part.
    pub(super) first: Option<(u16, Gather)>,
    pub(super) head_sent: bool,
    responses: u64,
    /// No response follows.
    pub(super) over: bool,
    /// There is more to write, which was put off to a later turn.
    pub(super) is_deferred: bool,
    pub send_window: SendWindow,
}

/// A response on its way to text.
struct Writing {
    encoder: Result<Encoder, Status>,
    credit: Option<Credit>,
}

enum Encoder {
    Whole(Box<http_reply::Encoder>),
    Generate(Box<reply::Encoder>),
}

impl Encoder {
    fn step(&mut self, pool: &Pool) -> Result<bool, Status> {
        match self {
            Encoder::Whole(encoder) => encoder.step(pool),
            Encoder::Generate(encoder) => encoder.step(pool),
        }
    }

    fn into_json(self) -> Gather {
        match self {
            Encoder::Whole(encoder) => encoder.into_json(),
            Encoder::Generate(encoder) => encoder.into_json(),
        }
    }
}

/// What a step came to.
pub(super) enum Written {
    /// No response is left.
    Nothing,
    /// It was as long as a step may be.
    Partly,
    /// A response, with its status and what is given back once it is out.
    Response(u16, Gather, Option<Credit>),
}

impl ChunkedReply {
    /// None for answers that are given in one piece.
    pub fn of(call: CallKey, model: &Arc<ServedModel>, form: &Rc<AnswerForm>) -> Option<Box<ChunkedReply>> {
        (form.manner != Manner::Whole).then(|| {
            Box::new(ChunkedReply {
                call,
                model: Arc::clone(model),
                form: Rc::clone(form),
                queue: VecDeque::new(),
                writing: None,
                first: None,
                head_sent: false,
                responses: 0,
                over: false,
                is_deferred: false,
                send_window: SendWindow::default(),
            })
        })
    }

    /// Each response is a part of its own.
    pub(super) fn sends_each(&self) -> bool {
        match self.form.manner {
            Manner::GenerateEvents => true,
            // Who promises one response is held to it, as without events.
            Manner::Events => self.model.spec.decoupled,
            Manner::Generate | Manner::Whole => false,
        }
    }

    pub(super) fn is_events(&self) -> bool {
        self.form.manner != Manner::Generate
    }

    /// Takes a response in, or the news that none follows. `id` is that of the request.
    pub(super) fn take_in(&mut self, delivery: Delivery, id: Text) {
        let Delivery { response, last } = delivery;
        self.over |= last;
        let response = match response {
            None if last && self.sends_each() && self.form.empty_final_response => Some(Response::new(id)),
            Some(response) => {
                self.responses = self.responses.saturating_add(1);
                Some(response)
            }
            None => None,
        };
        let Some(mut response) = response else { return };
        if !self.sends_each() {
            if self.responses > 1 {
                return;
            }
            // It stays here, and another one may wait for its credit.
            response.credit = None;
        }
        if self.form.manner == Manner::Events && response.error.is_none() {
            response.parameters.push(FINAL.into(), Value::Bool(last || !self.sends_each()));
        }
        self.queue.push_back(response);
    }

    pub(super) fn step(&mut self, pool: &Pool) -> Written {
        if self.writing.is_none()
            && let Some(response) = self.queue.pop_front()
        {
            self.writing = Some(self.begin(response, pool));
        }
        let Some(writing) = &mut self.writing else { return Written::Nothing };
        let outcome = match &mut writing.encoder {
            Ok(encoder) => encoder.step(pool),
            Err(status) => Err(status.clone()),
        };
        if let Ok(false) = outcome {
            return Written::Partly;
        }
        let Some(Writing { encoder, credit }) = self.writing.take() else { return Written::Nothing };
        match (outcome, encoder) {
            (Ok(_), Ok(encoder)) => Written::Response(200, encoder.into_json(), credit),
            (Err(status), _) | (Ok(_), Err(status)) => {
                Written::Response(error::http_status(status.code), error::json(pool, &status.message), credit)
            }
        }
    }

    fn begin(&self, mut response: Response, pool: &Pool) -> Writing {
        let credit = response.credit.take();
        let encoder = match response.error.take() {
            Some(status) => Err(status),
            None if self.form.manner == Manner::Events => {
                http_reply::Encoder::new(response, &self.model, Rc::clone(&self.form), pool)
                    .map(Box::new)
                    .map(Encoder::Whole)
            }
            None => reply::Encoder::new(response, &self.model).map(Box::new).map(Encoder::Generate),
        };
        Writing { encoder, credit }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none()
    }

    /// What an answer of one part is in the end.
    pub(super) fn only_part(&mut self, pool: &Pool) -> (u16, Gather) {
        match (self.first.take(), self.form.manner) {
            (Some(first), _) if self.responses == 1 => first,
            (first, Manner::Generate) => {
                let text = "generate expects model to produce exactly 1 response, use generate stream for model that \
                            generates various number of responses";
                (first.map_or(200, |(status, _)| status), error::json(pool, text))
            }
            _ => (500, error::json(pool, &format!("expected a single response, got {}", self.responses))),
        }
    }
}
