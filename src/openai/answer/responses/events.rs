//! The events of a stream of the Responses API: their type twice, as that of the event and in its JSON, and numbered.

use super::super::document::Document;
use super::super::text::{put_number, put_string};
use super::super::usage::Counts;
use super::items::{Item, ItemKind};
use super::object::{self, State};
use crate::plan::Plan;

pub(super) struct Events {
    sequence: u64,
    is_open: bool,
    /// Otherwise only the object at the end is written.
    are_wanted: bool,
}

impl Events {
    pub fn new(are_wanted: bool) -> Events {
        Events { sequence: 0, is_open: false, are_wanted }
    }

    /// The events that name the answer, before the first item.
    pub fn open(&mut self, plan: &Plan, document: &mut Document) {
        if !self.are_wanted || std::mem::replace(&mut self.is_open, true) {
            return;
        }
        for kind in ["response.created", "response.in_progress"] {
            self.begin(kind, document);
            document.put(",\"response\":");
            object::put(plan, State::InProgress, None, &[], Counts::default(), document);
            document.put("}\n\n");
        }
    }

    fn begin(&mut self, kind: &str, document: &mut Document) {
        let json = document.json();
        json.extend_from_slice(b"event: ");
        json.extend_from_slice(kind.as_bytes());
        json.extend_from_slice(b"\ndata: {\"type\":\"");
        json.extend_from_slice(kind.as_bytes());
        json.extend_from_slice(b"\",\"sequence_number\":");
        put_number(json, self.sequence);
        self.sequence = self.sequence.saturating_add(1);
    }

    fn begin_of(&mut self, kind: &str, item: &Item, document: &mut Document) {
        self.begin(kind, document);
        let json = document.json();
        json.extend_from_slice(b",\"item_id\":");
        put_string(json, &item.id);
        json.extend_from_slice(b",\"output_index\":");
        put_number(json, item.index as u64);
        if !matches!(item.kind, ItemKind::Call { .. }) {
            json.extend_from_slice(b",\"content_index\":0");
        }
    }

    fn put_item(&mut self, kind: &str, item: &Item, document: &mut Document) {
        self.begin(kind, document);
        document.put(",\"output_index\":");
        put_number(document.json(), item.index as u64);
        document.put(",\"item\":");
        item.put(document);
        document.put("}\n\n");
    }

    fn put_part(&mut self, kind: &str, item: &Item, document: &mut Document) {
        if !matches!(item.kind, ItemKind::Call { .. }) {
            self.begin_of(kind, item, document);
            document.put(",\"part\":");
            item.put_part(document);
            document.put("}\n\n");
        }
    }

    pub fn begin_item(&mut self, item: &Item, document: &mut Document) {
        if self.are_wanted {
            self.put_item("response.output_item.added", item, document);
            self.put_part("response.content_part.added", item, document);
        }
    }

    /// More text of an item.
    pub fn add(&mut self, item: &Item, text: &str, document: &mut Document) {
        if !self.are_wanted || text.is_empty() {
            return;
        }
        let kind = match item.kind {
            ItemKind::Message => "response.output_text.delta",
            ItemKind::Reasoning => "response.reasoning_text.delta",
            ItemKind::Call { .. } => "response.function_call_arguments.delta",
        };
        self.begin_of(kind, item, document);
        let json = document.json();
        json.extend_from_slice(b",\"delta\":");
        put_string(json, text);
        json.extend_from_slice(logprobs_of(item).as_bytes());
        json.extend_from_slice(b"}\n\n");
    }

    pub fn end_item(&mut self, item: &Item, document: &mut Document) {
        if !self.are_wanted {
            return;
        }
        let (kind, member) = match item.kind {
            ItemKind::Message => ("response.output_text.done", ",\"text\":"),
            ItemKind::Reasoning => ("response.reasoning_text.done", ",\"text\":"),
            ItemKind::Call { .. } => ("response.function_call_arguments.done", ",\"arguments\":"),
        };
        self.begin_of(kind, item, document);
        if let ItemKind::Call { name, .. } = &item.kind {
            document.put(",\"name\":");
            put_string(document.json(), name);
        }
        document.put(member);
        document.put_text(item.text());
        document.put(logprobs_of(item));
        document.put("}\n\n");
        self.put_part("response.content_part.done", item, document);
        self.put_item("response.output_item.done", item, document);
    }

    /// The whole answer: as an event, or as all there is.
    pub fn end(&mut self, plan: &Plan, state: State, items: &[Item], counts: Counts, document: &mut Document) {
        if !self.are_wanted {
            return object::put(plan, state, None, items, counts, document);
        }
        let kind = match state {
            State::Incomplete(_) => "response.incomplete",
            _ => "response.completed",
        };
        self.begin(kind, document);
        document.put(",\"response\":");
        object::put(plan, state, None, items, counts, document);
        document.put("}\n\n");
    }

    pub fn fail(&mut self, plan: &Plan, message: &str, document: &mut Document) {
        self.begin("response.failed", document);
        document.put(",\"response\":");
        object::put(plan, State::Failed, Some(message), &[], Counts::default(), document);
        document.put("}\n\n");
    }
}

/// Events of texts have a list of logprobs, which no one can ask for here.
fn logprobs_of(item: &Item) -> &'static str {
    if item.kind == ItemKind::Message { ",\"logprobs\":[]" } else { "" }
}
