//! The inputs that are compared, and the requests that fit together.

use std::sync::Arc;

use super::*;
use nereid_memory::{BlockMut, Exhausted, Slice};
use nereid_model_config::{from_dynamic, parse};
use nereid_request::{Completion, DataType, Delivery, Shape, Sink, Text};

struct Nowhere;

impl Sink for Nowhere {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

fn bytes(pieces: &[&[u8]]) -> Vec<Slice> {
    let piece = |bytes: &&[u8]| {
        let mut block = BlockMut::unpooled(bytes.len());
        block.copy_from_slice(bytes);
        block.freeze()
    };
    pieces.iter().map(piece).collect()
}

/// Position, shape as the model sees it, contents.
type Given<'a> = (usize, &'a [i64], &'a [&'a [u8]]);

fn request(inputs: &[Given<'_>]) -> Request {
    let mut request = Request::new(Completion::new(Arc::new(Nowhere), 0));
    for &(index, shape, pieces) in inputs {
        let mut input = InputTensor::new(Text::from("x"), DataType::Int32, Shape::from_slice(shape));
        (input.model_shape, input.index) = (Shape::from_slice(shape), index);
        input.data.extend(bytes(pieces));
        request.inputs.push(input);
    }
    request
}

fn equality(max_batch_size: u32, inputs: &str) -> Equality {
    let text = format!("name: 'm' max_batch_size: {max_batch_size} {inputs}").replace('\'', "\"");
    let config = from_dynamic(&parse("c", text.as_bytes()).unwrap().message).unwrap();
    Equality::of(&ModelSpec::new(config).unwrap())
}

const FIXED: &str = "input { name: 'A' data_type: TYPE_INT32 dims: [ 2, 3 ] }";
const VARIABLE: &str = "input { name: 'A' data_type: TYPE_INT32 dims: [ -1, 3 ] }";
const RAGGED: &str = "input { name: 'A' data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }";
const OPTIONAL: &str = "input { name: 'A' data_type: TYPE_INT32 dims: [ 1 ] optional: true } \
                        input { name: 'B' data_type: TYPE_INT32 dims: [ 1 ] optional: true }";
const SHAPE_TENSOR: &str = "input { name: 'A' data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }";

#[test]
fn only_variable_optional_and_shape_inputs_are_looked_at() {
    let rows = [(FIXED, true), (VARIABLE, false), (RAGGED, true), (OPTIONAL, false), (SHAPE_TENSOR, false)];
    for (inputs, is_given) in rows {
        assert_eq!(equality(8, inputs).is_given(), is_given, "{inputs}");
    }
}

#[test]
fn what_may_share_a_batch() {
    let one = |shape: &'static [i64]| request(&[(0, shape, &[])]);
    let variable = equality(8, VARIABLE);
    assert!(variable.holds(&one(&[1, 4, 3]), &one(&[5, 4, 3])), "the batch dimension does not count");
    assert!(!variable.holds(&one(&[1, 4, 3]), &one(&[1, 5, 3])));
    assert!(!equality(0, VARIABLE).holds(&one(&[1, 3]), &one(&[2, 3])), "without a batch dimension all count");

    let optional = equality(8, OPTIONAL);
    let of = |positions: &[usize]| {
        let inputs: Vec<_> = positions.iter().map(|&at| (at, &[1i64, 1][..], &[][..])).collect();
        request(&inputs)
    };
    assert!(optional.holds(&of(&[0, 1]), &of(&[1, 0])), "in any order");
    assert!(optional.holds(&of(&[]), &of(&[])));
    assert!(!optional.holds(&of(&[0]), &of(&[1])));
    assert!(!optional.holds(&of(&[0]), &of(&[0, 1])));

    let values = equality(8, SHAPE_TENSOR);
    let of = |pieces: &[&[u8]]| request(&[(0, &[1, 2], pieces)]);
    assert!(values.holds(&of(&[&[1, 2]]), &of(&[&[1, 2]])));
    assert!(values.holds(&of(&[&[1, 2]]), &of(&[&[1], &[2]])), "in any number of pieces");
    assert!(!values.holds(&of(&[&[1, 2]]), &of(&[&[1, 3]])));
    assert!(!values.holds(&of(&[&[1], &[2]]), &of(&[&[1], &[3]])));
}

#[test]
fn an_optional_input_of_variable_size_counts_where_it_is_there() {
    let equality = equality(4, "input { name: 'A' data_type: TYPE_INT32 dims: [ -1 ] optional: true }");
    let with = |size: i64| request(&[(0, &[1, size], &[])]);
    assert!(equality.holds(&with(3), &with(3)));
    assert!(!equality.holds(&with(3), &with(4)));
    assert!(!equality.holds(&with(3), &request(&[])));
}

#[test]
fn many_inputs_are_compared_in_any_order_and_number() {
    for count in [SEARCHED_MAX, SEARCHED_MAX + 1, 40] {
        let input = |at: usize, more: &str| format!("input {{ name: 'I{at:02}' data_type: TYPE_INT32 dims: {more} }} ");
        let one = |at: usize| input(at, "[ -1 ] optional: true");
        let every = equality(8, &(0..count).map(one).collect::<String>());
        // One of many is compared.
        let fixed = |at: usize| input(at, "[ 2 ]");
        let last = equality(8, &((0..count - 1).map(fixed).collect::<String>() + &one(count - 1)));
        let of = |order: &[usize], other: Option<usize>| {
            let shape = |at: usize| if other == Some(at) { &[1i64, 5][..] } else { &[1, 2][..] };
            request(&order.iter().map(|&at| (at, shape(at), &[][..])).collect::<Vec<_>>())
        };
        let in_order: Vec<usize> = (0..count).collect();
        let reversed: Vec<usize> = (0..count).rev().collect();
        for (name, equality) in [("every", &every), ("last", &last)] {
            assert!(equality.holds(&of(&in_order, None), &of(&reversed, None)), "{name} of {count}");
            let differs = Some(count - 1);
            assert!(!equality.holds(&of(&in_order, None), &of(&reversed, differs)), "{name} of {count}");
            assert!(equality.holds(&of(&reversed, differs), &of(&in_order, differs)), "{name} of {count}");
            assert!(!equality.holds(&of(&in_order[1..], None), &of(&reversed[1..], None)), "{name} of {count}");
        }
    }
}
