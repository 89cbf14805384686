//! JSON values of requests, as Python has them: integers and floats differ, members keep their order.

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
