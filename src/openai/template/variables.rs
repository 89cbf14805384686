//! The variables of a template, and JSON as its values.

use std::sync::Arc;

use minijinja::value::{Enumerator, Object, Value};
use minijinja::{Error, ErrorKind};

use super::Conversation;
use super::bounds::Clock;
use crate::json::Json;

/// An object and no mapping, so that what is the same for each request is not copied, and the clock is checked where a
/// template reads a variable of its outermost scope or calls a function.
#[derive(Debug)]
struct Variables {
    messages: Value,
    tools: Value,
    add_generation_prompt: bool,
    /// A mapping.
    arguments: Value,
    /// A mapping.
    special_tokens: Value,
    clock: Arc<Clock>,
}

/// `special_tokens`: a mapping.
pub(super) fn of(conversation: &Conversation<'_>, special_tokens: Value, clock: Arc<Clock>) -> Value {
    let arguments = conversation.arguments.iter().map(|(name, value)| (Value::from(name.as_str()), value_of(value)));
    Value::from_object(Variables {
        messages: list_of(conversation.messages),
        tools: conversation.tools.map_or(Value::from(()), list_of),
        add_generation_prompt: conversation.add_generation_prompt,
        arguments: Value::from_pairs(arguments),
        special_tokens,
        clock,
    })
}

impl Object for Variables {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if !self.clock.check() {
            return Some(Value::from(Error::new(ErrorKind::InvalidOperation, "the time is over")));
        }
        match key {
            "messages" => return Some(self.messages.clone()),
            "tools" => return Some(self.tools.clone()),
            "add_generation_prompt" => return Some(self.add_generation_prompt.into()),
            _ => {}
        }
        for mapping in [&self.arguments, &self.special_tokens] {
            if let Some(value) = mapping.as_object().and_then(|object| object.get_value_by_str(key)) {
                return Some(value);
            }
        }
        (key == "documents").then(|| Value::from(()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::NonEnumerable
    }
}

/// A value of Python. The nesting of `Json` is bounded.
pub(super) fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        // The small type is the one that minijinja computes with fast.
        Json::Int(value) => i64::try_from(*value).map_or_else(|_| Value::from(*value), Value::from),
        Json::Float(value) => Value::from(*value),
        Json::Text(text) => Value::from(text.as_str()),
        Json::List(items) => list_of(items),
        Json::Object(members) => {
            Value::from_pairs(members.iter().map(|(name, value)| (Value::from(name.as_str()), value_of(value))))
        }
    }
}

fn list_of(items: &[Json]) -> Value {
    Value::from(items.iter().map(value_of).collect::<Vec<_>>())
}
