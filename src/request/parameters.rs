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
