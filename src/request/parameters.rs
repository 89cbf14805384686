//! Free parameters of requests and responses, in the order given.

use super::Text;
use crate::memory::Slice;

/// `TRITONSERVER_ParameterType` and its value.
#[derive(Debug, Clone)]
pub enum Value {
    String(Text),
    Int(i64),
    Bool(bool),
    Double(f64),
    Bytes(Slice),
}

impl Value {
    /// True if both are the same to whoever reads them; bytes never are, because nobody compares them.
    pub fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Double(a), Value::Double(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Parameter {
    pub name: Text,
    pub value: Value,
}

#[derive(Debug, Clone, Default)]
pub struct Parameters(Vec<Parameter>);

impl Parameters {
    pub fn push(&mut self, name: Text, value: Value) {
        self.0.push(Parameter { name, value });
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Parameter> {
        self.0.iter()
    }

    /// True if both hold the same in the same order (see [`Value::is_same`]).
    pub fn is_same(&self, other: &Parameters) -> bool {
        let same = |(a, b): (&Parameter, &Parameter)| a.name == b.name && a.value.is_same(&b.value);
        self.len() == other.len() && self.iter().zip(other.iter()).all(same)
    }

    pub fn get(&self, index: usize) -> Option<&Parameter> {
        self.0.get(index)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
