//! Free parameters of requests and responses, in the order given.

use std::sync::Arc;

use super::Text;
use nereid_memory::Slice;

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
    /// True if both read the same; bytes never do, because no caller compares them.
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

/// In order: what a backend gives with every response, then what belongs to this one.
#[derive(Debug, Clone, Default)]
pub struct Parameters {
    common: Option<Arc<[Parameter]>>,
    own: Vec<Parameter>,
}

impl Parameters {
    /// Those of many responses, made once.
    pub fn common(parameters: &Arc<[Parameter]>) -> Parameters {
        Parameters { common: Some(Arc::clone(parameters)), own: Vec::new() }
    }

    pub fn push(&mut self, name: Text, value: Value) {
        self.own.push(Parameter { name, value });
    }

    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.first().iter().chain(&self.own)
    }

    /// True if both hold the same in the same order (see [`Value::is_same`]), or share what they hold.
    #[inline]
    pub fn is_same(&self, other: &Parameters) -> bool {
        // As on nearly every response: no parameters, or none but those that its backend gives with all of them.
        let is_shared = self.own.is_empty()
            && other.own.is_empty()
            && match (&self.common, &other.common) {
                (None, None) => true,
                (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
                _ => false,
            };
        is_shared || self.is_same_one_by_one(other)
    }

    fn is_same_one_by_one(&self, other: &Parameters) -> bool {
        let same = |(a, b): (&Parameter, &Parameter)| a.name == b.name && a.value.is_same(&b.value);
        self.len() == other.len() && self.iter().zip(other.iter()).all(same)
    }

    pub fn get(&self, index: usize) -> Option<&Parameter> {
        let first = self.first();
        first.get(index).or_else(|| self.own.get(index.checked_sub(first.len())?))
    }

    pub fn len(&self) -> usize {
        self.first().len() + self.own.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first().is_empty() && self.own.is_empty()
    }

    /// Bytes that its own ones take, roughly: their list, and texts that do not lie in it.
    pub fn byte_size(&self) -> usize {
        let text = |parameter: &Parameter| match &parameter.value {
            Value::String(text) => text.as_bytes().len(),
            Value::Int(_) | Value::Bool(_) | Value::Double(_) | Value::Bytes(_) => 0,
        };
        self.own.iter().map(|own| size_of::<Parameter>() + own.name.as_bytes().len() + text(own)).sum()
    }

    #[inline]
    fn first(&self) -> &[Parameter] {
        self.common.as_deref().unwrap_or_default()
    }
}
