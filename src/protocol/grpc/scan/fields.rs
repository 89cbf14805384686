//! Which field of a ModelInferRequest means what: the rows of contract/grpc.md section 2 that a request is made of.

use crate::grpc::{List, Malformed};

/// How a value is written, by the low three bits of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Length = 2,
    GroupStart = 3,
    GroupEnd = 4,
    Fixed32 = 5,
}

impl WireType {
    pub(super) fn of(key: u32) -> Result<WireType, Malformed> {
        match key & 7 {
            0 => Ok(WireType::Varint),
            1 => Ok(WireType::Fixed64),
            2 => Ok(WireType::Length),
            3 => Ok(WireType::GroupStart),
            4 => Ok(WireType::GroupEnd),
            5 => Ok(WireType::Fixed32),
            wire => Err(Malformed::WireType(wire as u8)),
        }
    }
}

/// What can lie around a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Input,
    Output,
    Contents,
    /// An entry of one of the maps of parameters.
    Entry,
    /// InferParameter.
    Parameter,
    /// A packed list of varints.
    Packed(Numbers),
}

/// Repeated numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    Shape,
    Bool,
    Int,
    Int64,
    Uint,
    Uint64,
    Fp32,
    Fp64,
}

impl Numbers {
    /// The list and the width in bytes of numbers that are not varints.
    pub(super) fn list_of_fixed(self) -> Option<(List, usize)> {
        match self {
            Numbers::Fp32 => Some((List::Fp32, 4)),
            Numbers::Fp64 => Some((List::Fp64, 8)),
            _ => None,
        }
    }
}

/// Where a string goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Text {
    ModelName,
    ModelVersion,
    Id,
    InputName,
    Datatype,
    OutputName,
    Key,
    Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Text(Text),
    Message(Kind),
    Raw,
    BytesContents,
    Numbers(Numbers),
    /// The choices of InferParameter that are no string.
    Bool,
    Int64,
    Double,
    Uint64,
    Unknown,
}

pub(super) fn field(inside: Kind, number: u32) -> Field {
    match (inside, number) {
        (Kind::Request, 1) => Field::Text(Text::ModelName),
        (Kind::Request, 2) => Field::Text(Text::ModelVersion),
        (Kind::Request, 3) => Field::Text(Text::Id),
        (Kind::Request, 4) => Field::Message(Kind::Entry),
        (Kind::Request, 5) => Field::Message(Kind::Input),
        (Kind::Request, 6) => Field::Message(Kind::Output),
        (Kind::Request, 7) => Field::Raw,
        (Kind::Input, 1) => Field::Text(Text::InputName),
        (Kind::Input, 2) => Field::Text(Text::Datatype),
        (Kind::Input, 3) => Field::Numbers(Numbers::Shape),
        (Kind::Input, 4) => Field::Message(Kind::Entry),
        (Kind::Input, 5) => Field::Message(Kind::Contents),
        (Kind::Output, 1) => Field::Text(Text::OutputName),
        (Kind::Output, 2) => Field::Message(Kind::Entry),
        (Kind::Contents, 1) => Field::Numbers(Numbers::Bool),
        (Kind::Contents, 2) => Field::Numbers(Numbers::Int),
        (Kind::Contents, 3) => Field::Numbers(Numbers::Int64),
        (Kind::Contents, 4) => Field::Numbers(Numbers::Uint),
        (Kind::Contents, 5) => Field::Numbers(Numbers::Uint64),
        (Kind::Contents, 6) => Field::Numbers(Numbers::Fp32),
        (Kind::Contents, 7) => Field::Numbers(Numbers::Fp64),
        (Kind::Contents, 8) => Field::BytesContents,
        (Kind::Entry, 1) => Field::Text(Text::Key),
        (Kind::Entry, 2) => Field::Message(Kind::Parameter),
        (Kind::Parameter, 1) => Field::Bool,
        (Kind::Parameter, 2) => Field::Int64,
        (Kind::Parameter, 3) => Field::Text(Text::Value),
        (Kind::Parameter, 4) => Field::Double,
        (Kind::Parameter, 5) => Field::Uint64,
        _ => Field::Unknown,
    }
}

/// Refuses a field that is written in a way that its type does not have.
pub(super) fn check(field: Field, wire: WireType) -> Result<(), Malformed> {
    let fits = match field {
        Field::Text(_) | Field::Message(_) | Field::Raw | Field::BytesContents => wire == WireType::Length,
        Field::Numbers(Numbers::Fp32) => matches!(wire, WireType::Length | WireType::Fixed32),
        Field::Numbers(Numbers::Fp64) => matches!(wire, WireType::Length | WireType::Fixed64),
        Field::Numbers(_) => matches!(wire, WireType::Length | WireType::Varint),
        Field::Bool | Field::Int64 | Field::Uint64 => wire == WireType::Varint,
        Field::Double => wire == WireType::Fixed64,
        Field::Unknown => true,
    };
    if fits { Ok(()) } else { Err(Malformed::WireType(wire as u8)) }
}
