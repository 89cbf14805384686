//! Answers of the Responses API (contract/openai.md section 5): one object, or typed events that build it.
//!
//! The items of the output are kept whole either way, since the last event repeats them.

use nereid_memory::{Gather, Pool};

use super::Progress;
use super::document::Document;
use super::finish::Finish;
use super::held::Held;
use super::message::Message;
use super::outputs::Arrived;
use super::usage::Counts;
use crate::error::Refusal;
use crate::plan::{Plan, ToolPlan};
use crate::tools::Delta;
use events::Events;
use items::{Item, ItemKind};
use object::State;

mod events;
mod items;
mod object;

/// What an answer of the Responses API is written by.
pub(super) struct ResponsesWriter {
    message: Message,
    deltas: Vec<Delta>,
    items: Vec<Item>,
    events: Events,
    document: Document,
    arrived: Option<Arrived>,
    /// In all items.
    bytes: usize,
    held: Held,
    reported: Option<Finish>,
    counts: Counts,
    is_finished: bool,
}

impl ResponsesWriter {
    pub fn new(plan: &Plan) -> ResponsesWriter {
        ResponsesWriter {
            message: Message::new(plan),
            deltas: Vec::new(),
            items: Vec::new(),
            events: Events::new(plan.stream),
            document: Document::default(),
            arrived: None,
            bytes: 0,
            held: Held::default(),
            reported: None,
            counts: Counts::default(),
            is_finished: false,
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn begin(&mut self, mut arrived: Arrived) {
        self.counts.add(&arrived);
        self.reported = arrived.finish.or(self.reported);
        self.message.begin(&mut arrived);
        self.arrived = Some(arrived);
    }

    pub fn step(&mut self, plan: &Plan, pool: &Pool, out: &mut Gather) -> Result<Progress, Refusal> {
        // Events of long texts are still to be written.
        if !self.document.write(pool, out) {
            return Ok(Progress::More);
        }
        let Some(mut arrived) = self.arrived.take() else { return Ok(Progress::Done) };
        self.events.open(plan, &mut self.document);
        let Ok(is_rest) = self.message.push(&mut arrived, &mut self.deltas) else {
            self.end(plan, Finish::Length);
            return Ok(Progress::Enough);
        };
        self.take_deltas(plan);
        self.held.set(self.bytes, pool)?;
        if !is_rest {
            self.arrived = Some(arrived);
        }
        let is_written = self.document.write(pool, out);
        Ok(if is_written && is_rest { Progress::Done } else { Progress::More })
    }

    fn take_deltas(&mut self, plan: &Plan) {
        for delta in std::mem::take(&mut self.deltas) {
            match (delta, &plan.tools) {
                (Delta::Content(text), ToolPlan::Forced { name }) => {
                    if self.items.is_empty() {
                        let kind = ItemKind::Call { call_id: items::id("call_", plan, 0), name: name.clone() };
                        self.begin_item(plan, kind);
                    }
                    self.add(&text);
                }
                (Delta::Content(text), _) => {
                    self.begin_item_unless(plan, ItemKind::Message);
                    self.add(&text);
                }
                (Delta::Reasoning(text), _) => {
                    self.begin_item_unless(plan, ItemKind::Reasoning);
                    self.add(&text);
                }
                (Delta::CallStarted { id, name, .. }, _) => self.begin_item(plan, ItemKind::Call { call_id: id, name }),
                (Delta::Arguments { fragment, .. }, _) => self.add(&fragment),
            }
        }
    }

    /// The open item has this kind afterwards.
    fn begin_item_unless(&mut self, plan: &Plan, kind: ItemKind) {
        if self.items.last().is_none_or(|item| item.kind != kind) {
            self.begin_item(plan, kind);
        }
    }

    fn begin_item(&mut self, plan: &Plan, kind: ItemKind) {
        self.end_item(State::Completed);
        let item = Item::new(plan, self.items.len(), kind);
        self.bytes = self.bytes.saturating_add(size_of::<Item>());
        self.events.begin_item(&item, &mut self.document);
        self.items.push(item);
    }

    fn add(&mut self, text: &str) {
        if let Some(item) = self.items.last_mut() {
            item.add(text);
            self.bytes = self.bytes.saturating_add(text.len());
            self.events.add(item, text, &mut self.document);
        }
    }

    fn end_item(&mut self, state: State) {
        if let Some(item) = self.items.last_mut()
            && item.close(state)
        {
            self.events.end_item(item, &mut self.document);
        }
    }

    fn end(&mut self, plan: &Plan, finish: Finish) {
        self.is_finished = true;
        self.arrived = None;
        let state = match finish {
            Finish::Length => State::Incomplete("max_output_tokens"),
            Finish::ContentFilter => State::Incomplete("content_filter"),
            Finish::Stop | Finish::ToolCalls => State::Completed,
        };
        if self.items.is_empty() {
            self.begin_item(plan, ItemKind::Message);
        }
        self.end_item(state);
        let counts = self.counts.with_prompt_of(plan);
        self.events.end(plan, state, &self.items, counts, &mut self.document);
    }

    /// Writes a bounded part of what is left. True when it is all.
    pub fn finish(&mut self, plan: &Plan, pool: &Pool, out: &mut Gather) -> bool {
        if !self.is_finished {
            self.events.open(plan, &mut self.document);
            self.message.finish(&mut self.deltas);
            self.take_deltas(plan);
            let counts = self.counts;
            self.end(plan, Finish::of(plan, self.reported, counts.completion, self.message.has_calls()));
        }
        self.document.write(pool, out)
    }

    pub fn fail(&mut self, plan: &Plan, message: &str, pool: &Pool, out: &mut Gather) {
        // An event that is written in part is written to its end.
        while !self.document.write(pool, out) {}
        if !std::mem::replace(&mut self.is_finished, true) {
            self.events.open(plan, &mut self.document);
            self.events.fail(plan, message, &mut self.document);
            while !self.document.write(pool, out) {}
        }
    }
}
