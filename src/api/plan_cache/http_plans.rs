//! What follows from the head of an inference request, worked out once for all requests with such a head.
//!
//! A connection recognises a head that equals the last one but for its lengths, and keeps the mark that was left on it:
//! the number of a plan. A plan holds the model and everything else that the general path, which stands in
//! `http_infer`, would find out anew; and it has the last few texts of JSON, with what was read from them, so that a
//! request that is equal but for its id is compared instead of read. All others take the general path.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::bounds::{HTTP_HEAD_BYTES_MAX, HTTP_PLANS_MAX, JSON_TEXT_BYTES_MAX, JSON_TEXTS_MAX};
use super::json_request::{Bounds, JsonRequest};
use crate::api::coding::packing::Packing;
use crate::api::infer::AnswerForm;
use nereid_memory::{Pool, Portions, Slice};
use nereid_protocol::http1;
use nereid_request::{Request, SharedMemory};
use nereid_scheduler::ServedModel;

/// What a head means.
pub struct HttpPlan {
    /// What heads with this plan have in common.
    kind: Arc<[u8]>,
    /// Weak: a strong reference would keep the model from ending.
    pub model: Weak<ServedModel>,
    pub packing: Option<Packing>,
    known: SmallVec<[KnownText; 1]>,
    /// The one of them that came last.
    last: usize,
}

/// A text of JSON, and the request that it describes.
struct KnownText {
    text: Vec<u8>,
    id: Option<Range<usize>>,
    request: JsonRequest,
}

impl KnownText {
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

impl HttpPlan {
    /// Finds the known text that equals `text` but for the id, and where its id is.
    fn find(&mut self, text: &[u8]) -> Option<Range<usize>> {
        if let Some(id) = self.known.get(self.last)?.id_in(text) {
            return Some(id);
        }
        let (at, id) = self.known.iter().enumerate().find_map(|(at, known)| Some((at, known.id_in(text)?)))?;
        self.last = at;
        Some(id)
    }

    /// Keeps the request of `text` in the place of the oldest.
    fn keep(&mut self, text: &[u8], request: JsonRequest) {
        let known = KnownText { text: text.to_vec(), id: request.id(), request };
        if self.known.len() < JSON_TEXTS_MAX {
            self.last = self.known.len();
            return self.known.push(known);
        }
        self.last = (self.last + 1) % JSON_TEXTS_MAX;
        if let Some(place) = self.known.get_mut(self.last) {
            *place = known;
        }
    }

    /// The length of the JSON in a body of `body_len` bytes, if it is one that needs no words.
    pub fn json_len(&self, head: &http1::Head, body_len: usize) -> Option<usize> {
        let len = head.json_length().unwrap_or(body_len);
        (1..=body_len).contains(&len).then_some(len)
    }
}

/// The JSON of a request with a plan.
pub struct JsonMatch<'a> {
    text: &'a [u8],
    /// Where its id is; empty if it has none.
    id: Range<usize>,
    /// The plan has it, or a text that differs from it in the id only.
    pub is_known: bool,
}

/// The plans of one shard, by the marks of heads.
#[derive(Default)]
pub struct HttpPlans {
    /// Plan number `n` is in place `n % HTTP_PLANS_MAX`, as long as that has its number.
    places: Vec<(u64, Option<Box<HttpPlan>>)>,
    made: u64,
    by_kind: HashMap<Arc<[u8]>, u64>,
    /// What the kind of a head is written into, to be looked for.
    kind: Vec<u8>,
    /// The request of a text that no plan has.
    request: JsonRequest,
}

impl HttpPlans {
    /// Models came or went: what was worked out before may be wrong.
    pub fn forget(&mut self) {
        self.places.clear();
        self.by_kind.clear();
    }

    fn place_of(mark: u64) -> usize {
        (mark % HTTP_PLANS_MAX as u64) as usize
    }

    fn get(&self, mark: u64) -> Option<&HttpPlan> {
        let (number, plan) = self.places.get(HttpPlans::place_of(mark))?;
        plan.as_deref().filter(|_| *number == mark && mark != 0)
    }

    /// Takes a plan out, to be [put back](HttpPlans::put_back).
    #[inline]
    pub fn take(&mut self, mark: u64) -> Option<Box<HttpPlan>> {
        let (number, plan) = self.places.get_mut(HttpPlans::place_of(mark))?;
        if *number != mark || mark == 0 { None } else { plan.take() }
    }

    #[inline]
    pub fn put_back(&mut self, head: &http1::Head, plan: Box<HttpPlan>) {
        let mark = head.mark();
        if let Some((number, place)) = self.places.get_mut(HttpPlans::place_of(mark))
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

    fn add(&mut self, head: &http1::Head, plan: HttpPlan) {
        self.made += 1;
        let at = HttpPlans::place_of(self.made);
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

    /// The plan of the head, if it has one.
    pub fn of_head(&self, head: &http1::Head) -> Option<&HttpPlan> {
        self.get(head.mark())
    }

    /// Makes a plan for heads like this one, which are recognisable and have none.
    pub fn plan(&mut self, head: &http1::Head, model: &Arc<ServedModel>, packing: Option<Packing>) {
        let mut kind = Vec::new();
        head.put_kind(&mut kind);
        if kind.len() > HTTP_HEAD_BYTES_MAX {
            return;
        }
        let (model, kind) = (Arc::downgrade(model), kind.into());
        self.add(head, HttpPlan { kind, model, packing, known: SmallVec::new(), last: 0 });
    }

    /// The plan that a head has got on another connection, taken out.
    pub fn take_unmarked(&mut self, head: &http1::Head) -> Option<Box<HttpPlan>> {
        if self.by_kind.is_empty() || !self.mark(head) {
            return None;
        }
        self.take(head.mark())
    }

    /// Compares `text` with those of the plan, and reads it if it is none of them; `None` if it is not plain.
    #[inline]
    pub fn match_json<'a>(&mut self, plan: &mut HttpPlan, text: &'a [u8], bounds: Bounds<'_>) -> Option<JsonMatch<'a>> {
        if let Some(id) = plan.find(text) {
            return Some(JsonMatch { text, id, is_known: true });
        }
        self.request.read(text, bounds)?;
        let id = self.request.id().unwrap_or_default();
        Some(JsonMatch { text, id, is_known: false })
    }

    /// Fills `request` from the JSON and the `tail` behind it, and keeps JSON that is new. `None`: something is wrong
    /// with it, and the request is unusable.
    #[inline]
    pub fn fill_http(
        &mut self,
        plan: &mut HttpPlan,
        json: JsonMatch<'_>,
        request: &mut Request,
        tail: &Slice,
        memory: (&mut Portions, &Pool),
        regions: &SharedMemory,
    ) -> Option<Rc<AnswerForm>> {
        let JsonMatch { text, id, is_known } = json;
        let said = match plan.known.get(plan.last) {
            Some(known) if is_known => &known.request,
            _ => &self.request,
        };
        let Some(mut form) = said.put(text.get(id)?, request, tail, memory, regions) else {
            self.request = JsonRequest::default();
            return None;
        };
        if !is_known {
            if self.request.is_reusable() && text.len() <= JSON_TEXT_BYTES_MAX {
                plan.keep(text, std::mem::take(&mut self.request));
            }
            self.request.let_go();
        }
        if form.packing != plan.packing {
            Rc::make_mut(&mut form).packing = plan.packing;
        }
        Some(form)
    }
}
