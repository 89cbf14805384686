//! Whether the inputs' shapes bound the time of a model's graph, as far as its file shows that.
//!
//! A graph with a loop, or with an operator that takes a size or a count from a tensor, may take any time for inputs of
//! a few bytes. Such a model does not run on threads that serve other requests as well. The file is read only as far as
//! this needs: names of operators, and whether a node contains a graph.

use std::path::Path;

/// A larger file is not read: a model that runs in microseconds is small.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Operators that make tensors of a size, or do work of an amount, that the values of a tensor say.
const SIZED_BY_VALUES: [&str; 25] = [
    "AffineGrid",
    "BlackmanWindow",
    "CenterCropPad",
    "Col2Im",
    "ConstantOfShape",
    "DFT",
    "Expand",
    "HammingWindow",
    "HannWindow",
    "If",
    "Loop",
    "MaxUnpool",
    "MelWeightMatrix",
    "Multinomial",
    "NonMaxSuppression",
    "OneHot",
    "Pad",
    "Range",
    "Resize",
    "STFT",
    "Scan",
    "SequenceMap",
    "Tile",
    "TopK",
    "Upsample",
];
/// The standard's sets of operators. Others may contain anything.
const DOMAINS: [&str; 3] = ["", "ai.onnx", "ai.onnx.ml"];

/// False also if the file does not show it.
pub fn is_bounded(file: &Path) -> bool {
    let is_small = std::fs::metadata(file).is_ok_and(|metadata| metadata.len() <= FILE_BYTES_MAX);
    is_small && std::fs::read(file).is_ok_and(|bytes| is_model_bounded(&bytes).unwrap_or(false))
}

/// `None`: it is no model.
fn is_model_bounded(model: &[u8]) -> Option<bool> {
    let (mut is_bounded, mut has_graph) = (true, false);
    for field in (Fields { rest: model }) {
        match field? {
            (7, Some(graph)) => {
                has_graph = true;
                is_bounded &= are_nodes_bounded(graph)?;
            }
            // A function, whose nodes stand for one of a graph, in a domain of its own.
            (25, _) => is_bounded = false,
            _ => {}
        }
    }
    has_graph.then_some(is_bounded)
}

fn are_nodes_bounded(graph: &[u8]) -> Option<bool> {
    let mut is_bounded = true;
    for field in (Fields { rest: graph }) {
        if let (1, Some(node)) = field? {
            is_bounded &= is_node_bounded(node)?;
        }
    }
    Some(is_bounded)
}

fn is_node_bounded(node: &[u8]) -> Option<bool> {
    let mut is_bounded = true;
    for field in (Fields { rest: node }) {
        is_bounded &= match field? {
            (4, Some(operator)) => SIZED_BY_VALUES.iter().all(|name| name.as_bytes() != operator),
            (7, Some(domain)) => DOMAINS.iter().any(|name| name.as_bytes() == domain),
            (5, Some(attribute)) => !has_graph(attribute)?,
            _ => true,
        };
    }
    Some(is_bounded)
}

fn has_graph(attribute: &[u8]) -> Option<bool> {
    let mut found = false;
    for field in (Fields { rest: attribute }) {
        found |= matches!(field?, (6 | 11, Some(_)));
    }
    Some(found)
}

/// The fields of a serialised message: their numbers, and the bytes of those that have a length.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    /// `None` inside: the bytes are no message. Nothing follows.
    type Item = Option<(u64, Option<&'a [u8]>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u64, Option<&'a [u8]>)> {
        let tag = self.varint()?;
        let bytes = match tag & 7 {
            0 => {
                self.varint()?;
                None
            }
            1 => {
                self.take(8)?;
                None
            }
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Some(self.take(len)?)
            }
            5 => {
                self.take(4)?;
                None
            }
            _ => return None,
        };
        Some((tag >> 3, bytes))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with a length, of less than 128 bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let key = (u16::from(number) << 3) | 2;
        let mut all = match u8::try_from(key) {
            Ok(key) if key < 0x80 => vec![key],
            _ => vec![(key & 0x7f) as u8 | 0x80, (key >> 7) as u8],
        };
        all.push(u8::try_from(bytes.len()).unwrap());
        all.extend_from_slice(bytes);
        all
    }

    fn node(operator: &str, more: &[u8]) -> Vec<u8> {
        field(1, &[&field(1, b"in")[..], &field(2, b"out"), &field(4, operator.as_bytes()), more].concat())
    }

    fn model(nodes: &[Vec<u8>]) -> Vec<u8> {
        // A version and the name of a producer, and a graph with a name behind its nodes.
        [&[0x08, 9][..], &field(2, b"test"), &field(7, &[&nodes.concat()[..], &field(2, b"g")].concat())].concat()
    }

    #[test]
    fn graphs_of_plain_operators_are_bounded() {
        let plain = model(&[node("MatMul", &[]), node("Relu", &field(5, &field(1, b"axis"))), node("Softmax", &[])]);
        assert_eq!(is_model_bounded(&plain), Some(true));
        assert_eq!(is_model_bounded(&model(&[node("Scaler", &field(7, b"ai.onnx.ml"))])), Some(true));
    }

    #[test]
    fn loops_and_sizes_of_values_are_not() {
        for operator in SIZED_BY_VALUES {
            assert_eq!(is_model_bounded(&model(&[node("Add", &[]), node(operator, &[])])), Some(false), "{operator}");
        }
        // A graph in an attribute, a foreign operator, a function of the model's own.
        assert_eq!(is_model_bounded(&model(&[node("New", &field(5, &field(6, b"")))])), Some(false));
        assert_eq!(is_model_bounded(&model(&[node("Add", &field(7, b"mine"))])), Some(false));
        assert_eq!(is_model_bounded(&[model(&[]), field(25, b"")].concat()), Some(false));
        assert!(SIZED_BY_VALUES.is_sorted());
    }

    #[test]
    fn what_is_no_model_is_not_bounded() {
        let whole = model(&[node("Add", &[])]);
        for bytes in [&b""[..], b"ORTM", &[0xff; 40], &whole[..whole.len() - 1], &[0x3a, 0x7f]] {
            assert_eq!(is_model_bounded(bytes), None, "{bytes:?}");
        }
        assert!(!is_bounded(Path::new("/nowhere")));
    }
}
