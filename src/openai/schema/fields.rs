//! Members of objects, and the shapes that values are made of: what pydantic calls models, lists and unions.

use std::collections::HashMap;

use super::errors::{Errors, Step};
use crate::json::Json;

/// Objects with at most this many members find a name by looking at all of them.
const FEW_MEMBERS: usize = 32;

/// The members of an object, by name.
pub struct Fields<'a> {
    object: &'a Json,
    members: &'a [(String, Json)],
    places: HashMap<&'a str, usize>,
    /// Members that were asked for; empty if nobody wants to know.
    taken: Vec<bool>,
}

impl<'a> Fields<'a> {
    /// None: it is no object, which is told.
    pub fn of(object: &'a Json, errors: &mut Errors) -> Option<Fields<'a>> {
        let Json::Object(members) = object else {
            let msg = "Input should be a valid dictionary or object to extract fields from";
            errors.add("model_attributes_type", msg, object);
            return None;
        };
        let places = if members.len() > FEW_MEMBERS {
            members.iter().enumerate().map(|(place, (name, _))| (name.as_str(), place)).collect()
        } else {
            HashMap::new()
        };
        Some(Fields { object, members, places, taken: Vec::new() })
    }

    /// The same, and members that nobody asks for can be told afterwards.
    pub fn tracked(object: &'a Json, errors: &mut Errors) -> Option<Fields<'a>> {
        let fields = Fields::of(object, errors)?;
        Some(Fields { taken: vec![false; fields.members.len()], ..fields })
    }

    /// Members that were not asked for, in the order of the body.
    pub fn others(&self) -> impl Iterator<Item = (&'a str, &'a Json)> {
        let members = self.members.iter().zip(&self.taken);
        members.filter(|(_, is_taken)| !**is_taken).map(|((name, value), _)| (name.as_str(), value))
    }

    pub fn get(&mut self, name: &str) -> Option<&'a Json> {
        let place = if self.places.is_empty() {
            self.members.iter().position(|(member, _)| member == name)
        } else {
            self.places.get(name).copied()
        }?;
        if let Some(is_taken) = self.taken.get_mut(place) {
            *is_taken = true;
        }
        self.members.get(place).map(|(_, value)| value)
    }

    pub fn required<T>(
        &mut self,
        name: &'static str,
        errors: &mut Errors,
        read: impl FnOnce(&'a Json, &mut Errors) -> Option<T>,
    ) -> Option<T> {
        match self.get(name) {
            Some(value) => errors.within(Step::Name(name), |errors| read(value, errors)),
            None => {
                errors.missing(name, self.object);
                None
            }
        }
    }

    /// None: it is not there, or null, or wrong.
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        errors: &mut Errors,
        read: impl FnOnce(&'a Json, &mut Errors) -> Option<T>,
    ) -> Option<T> {
        match self.get(name) {
            None | Some(Json::Null) => None,
            Some(value) => errors.within(Step::Name(name), |errors| read(value, errors)),
        }
    }

    /// As [`Fields::optional`], but `default` if it is not there: null is None.
    pub fn defaulted<T>(
        &mut self,
        name: &'static str,
        default: T,
        errors: &mut Errors,
        read: impl FnOnce(&'a Json, &mut Errors) -> Option<T>,
    ) -> Option<T> {
        match self.get(name) {
            None => Some(default),
            Some(Json::Null) => None,
            Some(value) => errors.within(Step::Name(name), |errors| read(value, errors)),
        }
    }
}

/// All items, or None if one is wrong: then every wrong one is told.
pub fn list<'a, T>(
    value: &'a Json,
    errors: &mut Errors,
    mut read: impl FnMut(&'a Json, &mut Errors) -> Option<T>,
) -> Option<Vec<T>> {
    let Json::List(items) = value else {
        errors.add("list_type", "Input should be a valid list", value);
        return None;
    };
    let mut result = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if let Some(item) = errors.within(Step::Index(index), |errors| read(item, errors)) {
            result.push(item);
        }
    }
    (result.len() == items.len()).then_some(result)
}

/// A list has not as many items as it should. `field`: `List`, or `Value` where it may be something else.
pub fn too_short(field: &str, value: &Json, errors: &mut Errors) {
    let ctx = lengths(field, "min_length", 1, 0);
    let msg = format!("{field} should have at least 1 item after validation, not 0");
    errors.add_with("too_short", msg, value, Some(ctx));
}

pub fn too_long(max: usize, len: usize, value: &Json, errors: &mut Errors) {
    let ctx = lengths("List", "max_length", max, len);
    let msg = format!("List should have at most {max} items after validation, not {len}");
    errors.add_with("too_long", msg, value, Some(ctx));
}

fn lengths(field: &str, bound: &str, limit: usize, len: usize) -> Json {
    Json::Object(vec![
        ("field_type".to_owned(), Json::from(field)),
        (bound.to_owned(), Json::Int(limit as i128)),
        ("actual_length".to_owned(), Json::Int(len as i128)),
    ])
}

/// A string that is one of few: its place among them.
pub fn one_of(value: &Json, choices: &[&str], errors: &mut Errors) -> Option<usize> {
    let place = value.as_str().and_then(|text| choices.iter().position(|choice| *choice == text));
    if place.is_none() {
        errors.add_choice("enum", choices, value);
    }
    place
}

/// A string, or strings. A single one is a list of one.
pub fn texts(value: &Json, errors: &mut Errors) -> Option<Vec<String>> {
    match value {
        Json::Text(text) => return Some(vec![text.clone()]),
        Json::List(items) if items.iter().all(|item| item.as_str().is_some()) => {}
        _ => {
            errors.within(Step::Name("str"), |errors| super::scalars::text(value, errors));
        }
    }
    errors.within(Step::Name("list[str]"), |errors| list(value, errors, super::scalars::text))
}

/// A dictionary of any members.
pub fn any_object(value: &Json, errors: &mut Errors) -> Option<Json> {
    Fields::of(value, errors).map(|fields| fields.object.clone())
}
