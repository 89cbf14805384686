//! Items of an output, and their JSON.

use std::sync::Arc;

use super::super::document::Document;
use super::super::text::put_string;
use super::object::State;
use crate::plan::Plan;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ItemKind {
    Message,
    Reasoning,
    Call { call_id: String, name: String },
}

pub(super) struct Item {
    pub kind: ItemKind,
    pub id: String,
    /// Its place in the output.
    pub index: usize,
    /// The text, or the arguments of a call, while it grows.
    growing: String,
    /// The same at its end.
    whole: Arc<String>,
    pub state: State,
}

/// An id by that of the answer: the same ones in each event.
pub(super) fn id(prefix: &str, plan: &Plan, index: usize) -> String {
    let own = plan.id.strip_prefix("resp_").unwrap_or(&plan.id);
    if index == 0 { format!("{prefix}{own}") } else { format!("{prefix}{own}_{index}") }
}

impl Item {
    pub fn new(plan: &Plan, index: usize, kind: ItemKind) -> Item {
        let prefix = match kind {
            ItemKind::Message => "msg_",
            ItemKind::Reasoning => "rs_",
            ItemKind::Call { .. } => "fc_",
        };
        Item {
            id: id(prefix, plan, index),
            kind,
            index,
            growing: String::new(),
            whole: Arc::default(),
            state: State::InProgress,
        }
    }

    pub fn add(&mut self, text: &str) {
        self.growing.push_str(text);
    }

    /// True if it was open.
    pub fn close(&mut self, state: State) -> bool {
        if self.state != State::InProgress {
            return false;
        }
        self.whole = Arc::new(std::mem::take(&mut self.growing));
        self.state = state;
        true
    }

    /// The text at its end.
    pub fn text(&self) -> &Arc<String> {
        &self.whole
    }

    /// The item, whole where it is closed, otherwise empty.
    pub fn put(&self, document: &mut Document) {
        let json = document.json();
        let kind = match self.kind {
            ItemKind::Message => "message",
            ItemKind::Reasoning => "reasoning",
            ItemKind::Call { .. } => "function_call",
        };
        json.extend_from_slice(b"{\"type\":");
        put_string(json, kind);
        json.extend_from_slice(b",\"id\":");
        put_string(json, &self.id);
        if let ItemKind::Call { call_id, name } = &self.kind {
            json.extend_from_slice(b",\"call_id\":");
            put_string(json, call_id);
            json.extend_from_slice(b",\"name\":");
            put_string(json, name);
            json.extend_from_slice(b",\"arguments\":");
            document.put_text(&self.whole);
        }
        document.put(",\"status\":");
        put_string(document.json(), self.state.name());
        let opening = match self.kind {
            ItemKind::Message => ",\"role\":\"assistant\",\"content\":[",
            ItemKind::Reasoning => ",\"summary\":[],\"content\":[",
            ItemKind::Call { .. } => return document.put("}"),
        };
        document.put(opening);
        if self.state != State::InProgress {
            self.put_part(document);
        }
        document.put("]}");
    }

    /// The part of its content; of a call there is none.
    pub fn put_part(&self, document: &mut Document) {
        match self.kind {
            ItemKind::Message => {
                document.put("{\"type\":\"output_text\",\"text\":");
                document.put_text(&self.whole);
                document.put(",\"annotations\":[]}");
            }
            ItemKind::Reasoning => {
                document.put("{\"type\":\"reasoning_text\",\"text\":");
                document.put_text(&self.whole);
                document.put("}");
            }
            ItemKind::Call { .. } => {}
        }
    }
}
