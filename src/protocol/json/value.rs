//! Values of a document, and the accessors with the error texts that Triton's clients know (contract/http.md section
//! 2).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::document::{Document, Node, Tag, ValueIndex};
use super::text;

/// A value was not what its reader needs. The texts reach the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("attempt to access JSON non-string as string")]
    NotString,
    #[error("attempt to access JSON non-boolean as boolean")]
    NotBoolean,
    #[error("attempt to access JSON non-number as double")]
    NotNumber,
    #[error("attempt to access JSON non-unsigned-integer as unsigned-integer")]
    NotUnsigned,
    #[error("attempt to access JSON non-signed-integer as signed-integer")]
    NotSigned,
    #[error("attempt to access JSON non-array as array")]
    NotArray,
    #[error("attempt to access JSON non-object as object")]
    NotObject,
    #[error("attempt to get members for non-object")]
    NoMembers,
    #[error("attempt to access non-existing object member '{0}'")]
    NoMember(String),
    #[error("attempt to access non-existing array index '{0}'")]
    NoIndex(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    /// An integer of 0 or more that fits 64 bits.
    Uint,
    /// An integer written with a minus that fits 64 bits.
    Int,
    Double,
    Bool,
    Null,
}

/// A member's name and value.
pub type Member<'d> = (Cow<'d, [u8]>, Value<'d>);

/// One value of a [`Document`].
#[derive(Debug, Clone, Copy)]
pub struct Value<'d> {
    document: &'d Document,
    index: u32,
}

impl<'d> Value<'d> {
    pub(super) fn new(document: &'d Document, index: u32) -> Value<'d> {
        Value { document, index }
    }

    /// Finds the value again: see [`Document::at`].
    pub fn value_index(self) -> ValueIndex {
        ValueIndex(self.index)
    }

    pub fn kind(self) -> Kind {
        self.node().tag.kind()
    }

    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// The value's bytes in the text; those of a string without its quotes. This is what the readers of tensor data
    /// take.
    pub fn span(self) -> Range<usize> {
        let node = self.node();
        node.start as usize..node.end as usize
    }

    /// True for an array that was kept as a byte range: it has a length but no elements here.
    pub fn is_raw(self) -> bool {
        self.node().tag == Tag::RawArray
    }

    pub fn as_str(self) -> Result<Cow<'d, [u8]>, AccessError> {
        match self.node().tag {
            Tag::String { escaped } => Ok(decoded(self.document, &self.node(), escaped)),
            _ => Err(AccessError::NotString),
        }
    }

    pub fn as_bool(self) -> Result<bool, AccessError> {
        match self.node().tag {
            Tag::Bool(value) => Ok(value),
            _ => Err(AccessError::NotBoolean),
        }
    }

    pub fn as_f64(self) -> Result<f64, AccessError> {
        match self.node().tag {
            Tag::Uint | Tag::Int | Tag::Double => Ok(self.document.number(&self.node()).as_f64()),
            _ => Err(AccessError::NotNumber),
        }
    }

    pub fn as_u64(self) -> Result<u64, AccessError> {
        match self.node().tag {
            Tag::Uint | Tag::Int => self.document.number(&self.node()).as_u64().ok_or(AccessError::NotUnsigned),
            _ => Err(AccessError::NotUnsigned),
        }
    }

    pub fn as_i64(self) -> Result<i64, AccessError> {
        match self.node().tag {
            Tag::Uint | Tag::Int => self.document.number(&self.node()).as_i64().ok_or(AccessError::NotSigned),
            _ => Err(AccessError::NotSigned),
        }
    }

    /// The elements in order; none for a raw array, whose [`len`](Value::len) is known all the same.
    pub fn elements(self) -> Result<Elements<'d>, AccessError> {
        let node = self.node();
        match node.tag {
            Tag::Array => Ok(Elements { document: self.document, next: self.index + 1, end: node.next }),
            Tag::RawArray => Ok(Elements { document: self.document, next: node.next, end: node.next }),
            _ => Err(AccessError::NotArray),
        }
    }

    /// The element at `index`; walks there, so loops use [`elements`](Value::elements).
    pub fn index(self, index: usize) -> Result<Value<'d>, AccessError> {
        let element = self.elements().ok().and_then(|mut elements| elements.nth(index));
        element.ok_or(AccessError::NoIndex(index))
    }

    /// Elements of an array, members of an object, 0 for anything else.
    pub fn len(self) -> usize {
        self.node().len as usize
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Every member in order, duplicates included, each with its own value.
    pub fn members(self) -> Result<Members<'d>, AccessError> {
        let node = self.node();
        match node.tag {
            Tag::Object => Ok(Members { document: self.document, next: self.index + 1, end: node.next }),
            _ => Err(AccessError::NoMembers),
        }
    }

    /// Every member in order, where each duplicate of a name carries the first one's value, as Triton's walks over
    /// parameters see them (contract/http.md section 2).
    pub fn members_with_first_values(self) -> Result<Vec<Member<'d>>, AccessError> {
        let mut members: Vec<_> = self.members()?.collect();
        // Looking back through the list is quicker for few members and quadratic for many.
        if members.len() <= 16 {
            for at in 1..members.len() {
                if let Some((before, [member, ..])) = members.split_at_mut_checked(at)
                    && let Some(first) = before.iter().find(|first| first.0 == member.0)
                {
                    member.1 = first.1;
                }
            }
            return Ok(members);
        }
        let mut first_values: HashMap<Cow<'d, [u8]>, Value<'d>> = HashMap::with_capacity(members.len());
        for (name, value) in &mut members {
            *value = *first_values.entry(name.clone()).or_insert(*value);
        }
        Ok(members)
    }

    /// The first member of that name, if this is an object and has one.
    pub fn find(self, name: &str) -> Option<Value<'d>> {
        self.members().ok()?.find_named(name.as_bytes())
    }

    /// The first member of each of the names, by one walk instead of one for each.
    pub fn find_each<const N: usize>(self, names: [&str; N]) -> [Option<Value<'d>>; N] {
        let mut found = [None; N];
        let Ok(mut members) = self.members() else { return found };
        while let Some((key, value)) = members.next_node() {
            let of_name = |(name, found): &(&str, &mut Option<Value<'d>>)| {
                found.is_none() && members.is_named(&key, name.as_bytes())
            };
            if let Some((_, found)) = names.into_iter().zip(&mut found).find(of_name) {
                *found = Some(value);
            }
        }
        found
    }

    /// The same of an object that is still being read, of which the nodes up to `end` are there.
    pub(super) fn find_before(self, name: &str, end: u32) -> Option<Value<'d>> {
        Members { document: self.document, next: self.index + 1, end }.find_named(name.as_bytes())
    }

    /// The first member of that name; anything but an object has none.
    pub fn member(self, name: &str) -> Result<Value<'d>, AccessError> {
        self.find(name).ok_or_else(|| AccessError::NoMember(name.to_owned()))
    }

    /// The value itself, if it is an object.
    pub fn as_object(self) -> Result<Value<'d>, AccessError> {
        if self.kind() == Kind::Object { Ok(self) } else { Err(AccessError::NotObject) }
    }

    /// The value itself, if it is an array.
    pub fn as_array(self) -> Result<Value<'d>, AccessError> {
        if self.kind() == Kind::Array { Ok(self) } else { Err(AccessError::NotArray) }
    }

    fn node(self) -> Node {
        let null = Node { start: 0, end: 0, next: u32::MAX, len: 0, tag: Tag::Null };
        self.document.node(self.index).copied().unwrap_or(null)
    }
}

fn decoded<'d>(document: &'d Document, node: &Node, escaped: bool) -> Cow<'d, [u8]> {
    let raw = document.bytes(node);
    if !escaped {
        return Cow::Borrowed(raw);
    }
    let mut bytes = Vec::with_capacity(raw.len());
    text::decode(raw, &mut bytes);
    Cow::Owned(bytes)
}

/// The elements of an array.
#[derive(Debug, Clone)]
pub struct Elements<'d> {
    document: &'d Document,
    next: u32,
    end: u32,
}

/// Where a walk over the elements of an array stands, to be kept apart from its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Paused {
    pub(super) next: u32,
    pub(super) end: u32,
}

impl<'d> Elements<'d> {
    pub(super) fn resumed(document: &'d Document, Paused { next, end }: Paused) -> Elements<'d> {
        Elements { document, next, end }
    }

    /// To be gone on with by [`Document::resume`].
    pub fn pause(&self) -> Paused {
        Paused { next: self.next, end: self.end }
    }
}

impl<'d> Iterator for Elements<'d> {
    type Item = Value<'d>;

    fn next(&mut self) -> Option<Value<'d>> {
        if self.next >= self.end {
            return None;
        }
        let index = self.next;
        self.next = self.document.node(index)?.next;
        Some(Value::new(self.document, index))
    }
}

/// Bytes of text that stand for one byte of a string: `\u0041`.
pub(super) const ESCAPE_BYTES_MAX: usize = 6;

/// The members of an object.
#[derive(Debug, Clone)]
pub struct Members<'d> {
    document: &'d Document,
    next: u32,
    end: u32,
}

impl<'d> Members<'d> {
    fn find_named(mut self, name: &[u8]) -> Option<Value<'d>> {
        while let Some((key, value)) = self.next_node() {
            if self.is_named(&key, name) {
                return Some(value);
            }
        }
        None
    }

    fn is_named(&self, key: &Node, name: &[u8]) -> bool {
        match key.tag {
            // Too long to be the name, whatever it is: it need not be read.
            Tag::Key { escaped: true } if self.document.bytes(key).len() / ESCAPE_BYTES_MAX > name.len() => false,
            Tag::Key { escaped: true } => *decoded(self.document, key, true) == *name,
            _ => self.document.bytes(key) == name,
        }
    }

    fn next_node(&mut self) -> Option<(Node, Value<'d>)> {
        if self.next >= self.end {
            return None;
        }
        let key = *self.document.node(self.next)?;
        let value = self.next + 1;
        self.next = self.document.node(value)?.next;
        Some((key, Value::new(self.document, value)))
    }
}

impl<'d> Iterator for Members<'d> {
    type Item = Member<'d>;

    fn next(&mut self) -> Option<Member<'d>> {
        let (key, value) = self.next_node()?;
        let escaped = matches!(key.tag, Tag::Key { escaped: true });
        Some((decoded(self.document, &key, escaped), value))
    }
}
