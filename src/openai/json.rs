//! JSON values of requests, as Python has them: integers and floats differ, members keep their order.

mod parse;
mod write;

pub use parse::{Bounds, ParseError};
pub use write::escape_into;

/// A value. Nesting is bounded where values are parsed, so that functions over it may recurse.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    /// Names are unique: of members with the same name the last one stays, at the place of the first, as in Python.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The member of that name. Looks at all members: for many names see [`Json::as_object`].
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.as_object()?.iter().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    pub fn as_object(&self) -> Option<&[(String, Json)]> {
        match self {
            Json::Object(members) => Some(members),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Json]> {
        match self {
            Json::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Json::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// An integer that fits. A float is none, also without a fraction.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Json::Int(value) => i64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A number of either kind.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Json::Int(value) => Some(*value as f64),
            Json::Float(value) => Some(*value),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }

    /// There is no NaN and no infinity in it, which JSON cannot say.
    pub fn is_finite(&self) -> bool {
        match self {
            Json::Float(value) => value.is_finite(),
            Json::List(items) => items.iter().all(Json::is_finite),
            Json::Object(members) => members.iter().all(|(_, value)| value.is_finite()),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Text(_) => true,
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Text(text)
    }
}

impl From<i64> for Json {
    fn from(value: i64) -> Json {
        Json::Int(value.into())
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::Bool(value)
    }
}

#[cfg(test)]
mod tests;
