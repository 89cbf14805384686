//! Entries of a 422 as they are found: with the way to each, and in bounds, since a body may be wrong in a million
//! places and each entry repeats a part of it.

use crate::error::SchemaError;
use crate::json::Json;

/// Entries that are kept. More are only counted.
const ENTRIES_MAX: usize = 1000;
/// Values and bytes of texts that all entries together repeat of the body. Beyond, an `input` is null.
const INPUT_COST_MAX: usize = 8 << 20;

/// Collects entries.
pub struct Errors {
    list: Vec<SchemaError>,
    path: Vec<Step>,
    /// All that were found, also those that are not kept.
    count: usize,
    cost: usize,
}

/// A step into the body.
#[derive(Clone)]
pub enum Step {
    Name(&'static str),
    /// A member that the body names.
    Member(String),
    Index(usize),
}

/// What was found until some moment.
#[derive(Clone, Copy)]
pub struct Mark {
    len: usize,
    count: usize,
    cost: usize,
}

impl Errors {
    pub fn new() -> Errors {
        Errors { list: Vec::new(), path: vec![Step::Name("body")], count: 0, cost: 0 }
    }

    pub fn into_list(self) -> Vec<SchemaError> {
        self.list
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn mark(&self) -> Mark {
        Mark { len: self.list.len(), count: self.count, cost: self.cost }
    }

    /// Nothing was found since.
    pub fn is_as(&self, mark: Mark) -> bool {
        self.count == mark.count
    }

    /// Drops what was found since.
    pub fn forget(&mut self, mark: Mark) {
        self.list.truncate(mark.len);
        self.count = mark.count;
        self.cost = mark.cost;
    }

    pub fn within<T>(&mut self, step: Step, read: impl FnOnce(&mut Errors) -> T) -> T {
        self.path.push(step);
        let result = read(self);
        self.path.pop();
        result
    }

    pub fn add(&mut self, kind: &'static str, msg: impl Into<String>, input: &Json) {
        self.add_with(kind, msg, input, None);
    }

    pub fn add_with(&mut self, kind: &'static str, msg: impl Into<String>, input: &Json, ctx: Option<Json>) {
        self.count += 1;
        if self.list.len() >= ENTRIES_MAX {
            return;
        }
        let loc = self.path.iter().map(|step| match step {
            Step::Name(name) => Json::from(*name),
            Step::Member(name) => Json::from(name.as_str()),
            Step::Index(index) => Json::Int(*index as i128),
        });
        let cost = cost(input, INPUT_COST_MAX.saturating_sub(self.cost));
        let input = cost.map_or(Json::Null, |_| input.clone());
        self.cost += cost.unwrap_or(0);
        self.list.push(SchemaError { kind, loc: loc.collect(), msg: msg.into(), input, ctx });
    }

    /// A union failed because the value is none of these texts.
    pub fn add_choice(&mut self, kind: &'static str, choices: &[&str], input: &Json) {
        let expected = list_of(choices);
        let ctx = Json::Object(vec![("expected".to_owned(), Json::from(expected.as_str()))]);
        self.add_with(kind, format!("Input should be {expected}"), input, Some(ctx));
    }

    pub fn missing(&mut self, name: &'static str, input: &Json) {
        self.within(Step::Name(name), |errors| errors.add("missing", "Field required", input));
    }
}

/// `'a', 'b' or 'c'`.
fn list_of(choices: &[&str]) -> String {
    let mut text = String::new();
    for (index, choice) in choices.iter().enumerate() {
        if index > 0 {
            text.push_str(if index + 1 == choices.len() { " or " } else { ", " });
        }
        text.push('\'');
        text.push_str(choice);
        text.push('\'');
    }
    text
}

/// What a copy takes: one for each value, and the bytes of texts. None: more than `max`; no more of it is looked at.
fn cost(value: &Json, max: usize) -> Option<usize> {
    let mut left = max;
    take(value, &mut left)?;
    Some(max - left)
}

fn take(value: &Json, left: &mut usize) -> Option<()> {
    let own = match value {
        Json::Text(text) => text.len().saturating_add(1),
        _ => 1,
    };
    *left = left.checked_sub(own)?;
    match value {
        Json::List(items) => items.iter().try_for_each(|item| take(item, left)),
        Json::Object(members) => members.iter().try_for_each(|(name, value)| {
            *left = left.checked_sub(name.len())?;
            take(value, left)
        }),
        _ => Some(()),
    }
}
