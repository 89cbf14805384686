//! What follows from the head of an inference request, worked out once for all requests with such a head.
//!
//! A connection recognises a head that says what the last one said, but for its lengths, and keeps the mark that was
//! left on it: the number of a plan. A plan knows the model and everything else that the general way, which stands in
//! `http_infer`, would find out anew; and it has the last few texts of JSON, with what was read from them, so that a
//! request that says the same, but for its id, is compared instead of read. Whatever does not fit goes the general way.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::json_request::{Bounds, Draft};
use crate::api::Api;
use crate::api::calls::Peer;
use crate::api::dialect::{Dialect, HEADER_LENGTH};
use crate::api::http_service::log_request;
use crate::api::packing::Packing;
use crate::repository::ServedModel;
use nereid_memory::Slice;
use nereid_protocol::http1;
use nereid_protocol::service::{CallKey, Port, Replies, Token};

/// Plans of one shard; the oldest makes way.
const PLANS_MAX: usize = 256;
/// Bytes of a head that gets a plan.
const KIND_BYTES_MAX: usize = 4096;
/// Texts that one plan knows, and the longest that is kept.
const TEXTS_MAX: usize = 4;
const TEXT_BYTES_MAX: usize = 4096;

/// What a head means.
pub(in crate::api) struct Plan {
    /// What heads with this plan have in common.
    kind: Arc<[u8]>,
    /// Who holds a model may still send to it, and it would wait for that before it goes.
    model: Weak<ServedModel>,
    packing: Option<Packing>,
    /// The field that says how long the JSON is.
    length_at: Option<usize>,
    known: SmallVec<[Known; 1]>,
    /// The one of them that came last.
    last: usize,
}

/// A text of JSON, and what it says.
struct Known {
    text: Vec<u8>,
    id: Option<Range<usize>>,
    draft: Draft,
}

impl Known {
    /// Where the id of `text` is, if it differs from this one at most in that; an empty range if there is none.
    fn id_in(&self, text: &[u8]) -> Option<Range<usize>> {
        let Some(id) = &self.id else { return (self.text == text).then_some(0..0) };
        let (before, after) = (self.text.get(..id.start)?, self.text.get(id.end..)?);
        let end = text.len().checked_sub(after.len()).filter(|end| *end >= id.start)?;
        if !text.starts_with(before) || !text.ends_with(after) {
            return None;
        }
        let is_plain = |byte: &u8| *byte >= 0x20 && !matches!(byte, b'"' | b'\\');
        text.get(id.start..end)?.iter().all(is_plain).then_some(id.start..end)
    }
}

impl Plan {
    /// The known text that says what `text` says, and where its id is.
    fn find(&mut self, text: &[u8]) -> Option<Range<usize>> {
        if let Some(id) = self.known.get(self.last)?.id_in(text) {
            return Some(id);
        }
        let (at, id) = self.known.iter().enumerate().find_map(|(at, known)| Some((at, known.id_in(text)?)))?;
        self.last = at;
        Some(id)
    }

    /// Keeps what `text` says in the place of the oldest.
    fn keep(&mut self, text: &[u8], draft: Draft) {
        let known = Known { text: text.to_vec(), id: draft.id(), draft };
        if self.known.len() < TEXTS_MAX {
            self.last = self.known.len();
            return self.known.push(known);
        }
        self.last = (self.last + 1) % TEXTS_MAX;
        if let Some(place) = self.known.get_mut(self.last) {
            *place = known;
        }
    }

    /// The length of the JSON in a body of `body_len` bytes, if it is one that needs no words.
    fn json_len(&self, head: &http1::Head, body_len: usize) -> Option<usize> {
        let len = self.length_at.map_or(body_len, |at| number(head.value_at(at)));
        (1..=body_len).contains(&len).then_some(len)
    }
}

/// The value of digits that a head is recognised by: few enough for any number.
fn number(digits: &[u8]) -> usize {
    digits.iter().fold(0usize, |number, digit| number.wrapping_mul(10).wrapping_add(usize::from(digit & 15)))
}

/// The plans of one shard, by the marks of heads.
#[derive(Default)]
pub(in crate::api) struct Plans {
    /// Plan number `n` is in place `n % PLANS_MAX`, as long as that has its number.
    places: Vec<(u64, Option<Box<Plan>>)>,
    made: u64,
    by_kind: HashMap<Arc<[u8]>, u64>,
    kind: Vec<u8>,
    draft: Draft,
}

impl Plans {
    /// Models came or went: what was worked out before may be wrong.
    pub fn forget(&mut self) {
        self.places.clear();
        self.by_kind.clear();
    }

    fn place_of(mark: u64) -> usize {
        (mark % PLANS_MAX as u64) as usize
    }

    fn get(&self, mark: u64) -> Option<&Plan> {
        let (number, plan) = self.places.get(Plans::place_of(mark))?;
        plan.as_deref().filter(|_| *number == mark && mark != 0)
    }

    /// Takes a plan out, to be [put back](Plans::put_back).
    fn take(&mut self, mark: u64) -> Option<Box<Plan>> {
        let (number, plan) = self.places.get_mut(Plans::place_of(mark))?;
        if *number != mark || mark == 0 { None } else { plan.take() }
    }

    fn put_back(&mut self, mark: u64, plan: Box<Plan>) {
        if let Some((number, place)) = self.places.get_mut(Plans::place_of(mark))
            && *number == mark
        {
            *place = Some(plan);
        }
    }

    /// Marks a head whose kind is known already; false if it is not.
    fn mark(&mut self, head: &http1::Head) -> bool {
        self.kind.clear();
        head.put_kind(&mut self.kind);
        let known = self.by_kind.get(&self.kind[..]).copied();
        known.inspect(|mark| head.set_mark(*mark)).is_some()
    }

    fn add(&mut self, head: &http1::Head, plan: Plan) {
        self.made += 1;
        let at = Plans::place_of(self.made);
        if self.places.len() <= at {
            self.places.resize_with(at + 1, Default::default);
        }
        let Some(place) = self.places.get_mut(at) else { return };
        self.by_kind.insert(Arc::clone(&plan.kind), self.made);
        if let (_, Some(oldest)) = std::mem::replace(place, (self.made, Some(Box::new(plan)))) {
            self.by_kind.remove(&oldest.kind);
        }
        head.set_mark(self.made);
    }
}

impl Api {
    /// Whether the head has a plan: what it asks for in its other fields is nothing that a plan does not know.
    pub(in crate::api) fn is_planned(&self, head: &http1::Head) -> bool {
        self.plans.get(head.mark()).is_some()
    }

    /// Whether somebody wants to know when this request began to arrive.
    pub(in crate::api) fn times_http(&self, head: &http1::Head) -> bool {
        self.watches.times_http(head, self.is_planned(head))
    }

    /// Where the byte of the body is that is to be aligned, of a request with a plan that may be received.
    pub(in crate::api) fn planned_alignment(&self, head: &http1::Head) -> Option<usize> {
        let plan = self.plans.get(head.mark())?;
        match (plan.length_at, head.body_length()) {
            (Some(at), _) => Some(number(head.value_at(at))),
            (None, http1::BodyLength::Known(len)) if len <= self.facts.settings.http_input_bytes_max as u64 => Some(0),
            _ => None,
        }
    }

    /// Finds the plan of a head that has none, if one was made for another connection.
    pub(in crate::api) fn look_for_plan(&mut self, port: Port, head: &http1::Head) {
        let may_have = self.plan_cache.is_on
            && port == Port::Http
            && head.method() == http1::Method::Post
            && head.is_recognisable();
        if may_have && !self.is_planned(head) && !self.plans.by_kind.is_empty() {
            self.plans.mark(head);
        }
    }

    /// The head of a request that was let in: those that follow may take the short way.
    pub(in crate::api) fn plan_infer(
        &mut self,
        head: &http1::Head,
        model: &Arc<ServedModel>,
        packing: Option<Packing>,
    ) {
        let is_special = !self.plan_cache.is_on || self.http_forwarded.is_some() || self.times_http(head);
        if is_special || !head.is_recognisable() || self.is_planned(head) {
            return;
        }
        let mut kind = Vec::new();
        head.put_kind(&mut kind);
        if kind.len() > KIND_BYTES_MAX {
            return;
        }
        let (model, kind) = (Arc::downgrade(model), kind.into());
        let length_at = head.position_of(HEADER_LENGTH);
        self.plans.add(head, Plan { kind, model, packing, length_at, known: SmallVec::new(), last: 0 });
    }

    /// Takes an inference request in by the plan of its head; gives the body back if that is not possible.
    pub(in crate::api) fn infer_planned(
        &mut self,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Result<Token, Slice> {
        let mark = head.mark();
        if self.watches.has_arrival() {
            return Err(body);
        }
        let Some(mut plan) = self.plans.take(mark) else { return Err(body) };
        let outcome = self.infer_by(&mut plan, call, head, &body, replies);
        self.plans.put_back(mark, plan);
        outcome.ok_or(body)
    }

    fn infer_by(
        &mut self,
        plan: &mut Plan,
        call: CallKey,
        head: &http1::Head,
        body: &Slice,
        replies: &mut Replies,
    ) -> Option<Token> {
        let model = plan.model.upgrade()?;
        let json_len = plan.json_len(head, body.len())?;
        let input_bytes_max = self.facts.settings.http_input_bytes_max;
        if json_len > input_bytes_max {
            return None;
        }
        let text = body.get(..json_len)?;
        let found = plan.find(text);
        if found.is_none() {
            self.plans.draft.read(text, Bounds { pool: &self.pool, input_bytes_max })?;
        }
        let (draft, id) = match (&found, plan.known.get(plan.last)) {
            (Some(id), Some(known)) => (&known.draft, id.clone()),
            _ => (&self.plans.draft, self.plans.draft.id().unwrap_or_default()),
        };
        let id = text.get(id)?;
        let token = self.calls.reserve()?;
        let mut request = self.calls.request_of(token);
        let tail = body.window(json_len..body.len());
        let copies = (&mut self.portions, &self.pool);
        let Some(mut form) = draft.put(id, &mut request, &tail, copies, &self.facts.regions) else {
            self.plans.draft = Draft::default();
            self.calls.give_up(token, request);
            return None;
        };
        if found.is_none() {
            if self.plans.draft.is_reusable() && json_len <= TEXT_BYTES_MAX {
                plan.keep(text, std::mem::take(&mut self.plans.draft));
            }
            self.plans.draft.let_go();
        }
        log_request(head);
        self.plan_cache.hits.heads += 1;
        self.plan_cache.hits.json += u64::from(found.is_some());
        if form.packing != plan.packing {
            Rc::make_mut(&mut form).packing = plan.packing;
        }
        if let Err(status) = self.submit(token, Peer::Http(call), model, request, form) {
            self.refuse_http(token.0, call, Dialect::Kserve, &status, replies);
        }
        Some(token)
    }
}
