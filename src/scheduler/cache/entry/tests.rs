//! Entries inside and outside the process.

use super::*;
use nereid_model_config::normalize;
use nereid_request::{Completion, Delivery, RequestedOutput, Sink};

const KEY: Key = Key { hash: 1, seal: 2 };

fn output(name: &str, index: usize, datatype: DataType, shape: &[i64], pieces: &[&[u8]]) -> OutputTensor {
    let data = pieces.iter().map(|piece| Slice::copy_of(piece)).collect();
    OutputTensor { name: Text::from(name), datatype, shape: Shape::from_slice(shape), data, index, on_device: None }
}

fn response() -> Response {
    let mut response = Response::new(Text::from("first"));
    response.outputs.push(output("B", 1, DataType::Int32, &[1, 2], &[&[1, 0, 0, 0], &[2, 0, 0, 0]]));
    response.outputs.push(output("A", 0, DataType::Bytes, &[2], &[&[1, 0, 0, 0, b'x', 0, 0, 0, 0]]));
    response
}

fn spec() -> ModelSpec {
    let text = "name: \"m\" backend: \"identity\" input { name: \"I\" data_type: TYPE_INT32 dims: [ -1 ] }
        output { name: \"A\" data_type: TYPE_STRING dims: [ -1 ] }
        output { name: \"B\" data_type: TYPE_INT32 dims: [ -1 ] }";
    let document = nereid_model_config::parse("m/config.pbtxt", text.as_bytes()).unwrap();
    let mut config = nereid_model_config::from_dynamic(&document.message).unwrap();
    normalize::fill_defaults(&mut config);
    ModelSpec::new(config).unwrap()
}

struct Nowhere;

impl Sink for Nowhere {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, len: usize) -> Result<BlockMut, nereid_memory::Exhausted> {
        Ok(BlockMut::unpooled(len))
    }
}

#[test]
fn an_entry_is_a_copy_and_answers_with_all_it_has() {
    let bytes = Arc::new(vec![7u8; 16]);
    let mut response = response();
    response.outputs[0].data = SmallVec::from_elem(Slice::foreign_vec(&bytes), 1);
    let entry = Entry::of(&response, KEY);
    drop(response);
    assert_eq!(Arc::strong_count(&bytes), 1, "nothing of the runtime's is held");
    let answer = entry.response(Text::from("second"));
    assert_eq!((answer.id.as_bytes(), answer.outputs.len()), (b"second".as_slice(), 2));
    assert_eq!(*answer.outputs[0].data[0], [7; 16]);
    let mut request = Request::new(Completion::new(Arc::new(Nowhere), 0));
    assert!(entry.answers(&request));
    request.outputs.push(RequestedOutput { name: Text::from("A"), index: 0 });
    assert!(entry.answers(&request));
    request.outputs.push(RequestedOutput { name: Text::from("C"), index: 2 });
    assert!(!entry.answers(&request), "a part is no answer");
}

#[test]
fn an_entry_of_many_outputs_answers_for_each_in_any_order() {
    let orders: [Vec<usize>; 3] = [(0..40).collect(), (0..40).rev().collect(), (0..40).map(|at| at * 7 % 40).collect()];
    for order in orders {
        let mut response = Response::default();
        response.outputs.extend(order.iter().map(|&at| output(&format!("O{at}"), at, DataType::Int32, &[0], &[])));
        let entry = Entry::of(&response, KEY);
        let request = |numbers: &[usize]| {
            let mut request = Request::new(Completion::new(Arc::new(Nowhere), 0));
            let named = numbers.iter().map(|&index| RequestedOutput { name: Text::from("O"), index });
            request.outputs.extend(named);
            request
        };
        assert!(entry.answers(&request(&(0..40).collect::<Vec<_>>())), "{order:?}");
        assert!((0..40).all(|at| entry.answers(&request(&[at]))), "{order:?}");
        assert!(!entry.answers(&request(&[0, 40])), "{order:?}");
    }
}

#[test]
fn what_leaves_the_process_comes_back() {
    let entry = Entry::of(&response(), KEY);
    let bytes = entry.encode().unwrap();
    let back = Entry::decode(&bytes, &spec()).unwrap();
    assert_eq!(back.seal, KEY.seal);
    let (sent, got) = (entry.response(Text::default()), back.response(Text::default()));
    for (a, b) in sent.outputs.iter().zip(&got.outputs) {
        assert_eq!((&a.name, a.datatype, &a.shape, a.index), (&b.name, b.datatype, &b.shape, b.index));
        assert_eq!(*a.data[0], *b.data[0]);
    }
    assert_eq!(got.outputs.len(), 2);
}

#[test]
fn nothing_that_is_read_is_believed() {
    let bytes = Entry::of(&response(), KEY).encode().unwrap();
    for end in 0..bytes.len() {
        assert!(Entry::decode(&bytes[..end], &spec()).is_none(), "{end} bytes");
    }
    assert!(Entry::decode(&[&bytes[..], b"x"].concat(), &spec()).is_none(), "more than an entry");
    // Any byte may be wrong: then the result is another entry or none, and never a panic.
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut broken = bytes.clone();
            broken[at] = value;
            if let Some(entry) = Entry::decode(&broken, &spec()) {
                for output in &entry.response(Text::default()).outputs {
                    assert!(is_tensor(output.datatype, &output.shape, &output.data[0]), "byte {at} is {value}");
                }
            }
        }
    }
    let of = |outputs: Vec<OutputTensor>| {
        let mut response = Response::default();
        response.outputs = outputs.into();
        Entry::decode(&Entry::of(&response, KEY).encode().unwrap(), &spec()).is_some()
    };
    let eight: &[&[u8]] = &[&[0; 8]];
    assert!(of(vec![output("B", 1, DataType::Int32, &[2], eight)]));
    assert!(!of(vec![output("C", 1, DataType::Int32, &[2], eight)]), "the model has no such output");
    assert!(!of(vec![output("B", 1, DataType::Int32, &[3], eight)]), "too few bytes");
    assert!(!of(vec![output("B", 1, DataType::Int32, &[-2], eight)]));
    assert!(!of(vec![output("B", 1, DataType::Int32, &[1 << 62, 4], eight)]));
    assert!(!of(vec![output("A", 0, DataType::Bytes, &[1], eight)]), "two strings");
    assert!(!of(vec![output("A", 0, DataType::Bytes, &[1], &[&[9, 0, 0, 0, 1]])]), "a string beyond the end");
    let twice = || output("B", 1, DataType::Int32, &[2], eight);
    assert!(!of(vec![twice(), twice()]));
}
