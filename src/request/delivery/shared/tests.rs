//! Where outputs end up, on which thread, and which error the request gets when its memory is gone.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::{Completion, DataType, InputTensor, OutputTensor, Shape, Sink};
use nereid_memory::Regions;
use nereid_memory::regions::testing::{Object, registry};

struct Home(Mutex<Sender<(std::thread::ThreadId, Delivery)>>);

impl Sink for Home {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        // The test may have dropped its receiver.
        let _ = self.0.lock().unwrap().send((std::thread::current().id(), delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

type Deliveries = Receiver<(std::thread::ThreadId, Delivery)>;

fn request(regions: &Regions, windows: &[(&str, u64, u64)]) -> (Request, Deliveries) {
    let (sender, deliveries) = channel();
    let mut request = Request::new(Completion::new(Arc::new(Home(Mutex::new(sender))), 0));
    request.ingress.is_on_shard = true;
    let one = regions.get(b"r").unwrap();
    let shared = draft(&mut request.shared, regions.job_thread());
    for (name, offset, byte_size) in windows {
        shared.add_window(Text::from(*name), one.window(*offset, *byte_size).unwrap());
    }
    shared.add_use(one);
    (request, deliveries)
}

fn answer(outputs: &[(&str, &[&[u8]])]) -> Response {
    let mut response = Response::new(Text::from("id"));
    for (name, pieces) in outputs {
        response.outputs.push(OutputTensor {
            name: Text::from(*name),
            datatype: DataType::Uint8,
            shape: Shape::new(),
            data: pieces.iter().map(|piece| Slice::copy_of(piece)).collect(),
            index: 0,
            on_device: None,
        });
    }
    response
}

fn error_of(deliveries: &Deliveries) -> Option<String> {
    deliveries.recv().unwrap().1.response.unwrap().into_parts().error.map(|status| status.message.into_owned())
}

#[test]
fn outputs_in_other_memory_are_copied_to_their_windows() {
    let object = Object::new(&[b'.'; 16]);
    let regions = registry(b"r", &object, 16);
    let (mut request, deliveries) = request(&regions, &[("A", 1, 4), ("B", 8, 8), ("C", 6, 1)]);
    request.share();
    request.finish(answer(&[("A", &[b"ab", b"", b"cd"]), ("B", &[b"xyz"]), ("C", &[]), ("D", &[b"net"])]));
    let (_, delivery) = deliveries.recv().unwrap();
    assert!(delivery.last);
    let response = delivery.response.unwrap();
    assert_eq!(response.error, None);
    assert_eq!(object.read(0, 16), b".abcd...xyz.....");
    assert_eq!(*response.outputs[3].data[0], *b"net");
}

#[test]
fn an_output_that_does_not_fit_is_an_error_and_nothing_is_written() {
    let object = Object::new(&[b'.'; 8]);
    let regions = registry(b"r", &object, 8);
    let text = "shared memory size specified with the request for output 'A' (4 bytes) should be at least 5 bytes to \
                hold the results";
    let (mut one, deliveries) = request(&regions, &[("A", 0, 4)]);
    one.share();
    assert_eq!(one.check_output(&Text::from("A"), 5), Err(Status::internal(text)));
    assert_eq!(one.check_output(&Text::from("A"), 4), Ok(()));
    assert_eq!(one.allocate_output(&Text::from("A"), 5).unwrap_err(), Status::internal(text));
    assert_eq!(one.responses().allocate_output(b"A", 5).unwrap_err(), Status::internal(text));
    one.finish(answer(&[("A", &[b"abcde"])]));
    assert_eq!(error_of(&deliveries).as_deref(), Some(text));
    assert_eq!(object.read(0, 8), b"........");
}

#[test]
fn a_backend_writes_to_the_window_itself_unless_somebody_stands_between() {
    let object = Object::new(&[b'.'; 16]);
    let regions = registry(b"r", &object, 16);
    let (mut one, deliveries) = request(&regions, &[("A", 8, 6), ("ODD", 4, 4)]);
    one.share();
    let mut target = one.allocate_output(&Text::from("A"), 3).unwrap();
    assert!(target.write(0, b"abc"));
    assert_eq!(object.read(0, 16), b"........abc.....");
    let mut response = answer(&[("A", &[])]);
    response.outputs[0].data.push(target.freeze());
    assert_eq!(one.admission().shared.get().unwrap().bytes_to_copy(&response), 0);
    one.finish(response);
    assert_eq!(error_of(&deliveries), None);
    // Without bytes, without a window, or with one where not every number may begin, blocks serve.
    for (name, len) in [("A", 0), ("B", 3), ("ODD", 4)] {
        assert!(matches!(one.allocate_output(&Text::from(name), len), Ok(Target::Block(_))), "{name}");
    }
    one.keep_outputs_apart();
    let mut target = one.allocate_output(&Text::from("A"), 3).unwrap();
    assert!(target.write(0, b"xyz"));
    assert_eq!(object.read(0, 16), b"........abc.....");
}

#[test]
fn who_has_left_finds_its_memory_untouched() {
    let object = Object::new(&[b'.'; 8]);
    let regions = registry(b"r", &object, 8);
    let (mut one, deliveries) = request(&regions, &[("A", 0, 8)]);
    one.share();
    assert!(one.admission().take() && !one.admission().cancel());
    one.finish(answer(&[("A", &[b"late"])]));
    assert_eq!(error_of(&deliveries), None);
    assert_eq!(object.read(0, 8), b"........");
}

#[test]
fn inputs_that_become_outputs_leave_the_region() {
    let object = Object::new(b"abcdefgh");
    let regions = registry(b"r", &object, 8);
    let (mut one, deliveries) = request(&regions, &[("A", 2, 4)]);
    let whole = regions.get(b"r").unwrap().window(0, 4).unwrap().slice();
    one.share();
    let mut response = answer(&[("A", &[]), ("B", &[])]);
    response.outputs[0].data = SmallVec::from_iter([whole.window(1..4), whole.window(0..1)]);
    response.outputs[1].data.push(regions.get(b"r").unwrap().window(6, 2).unwrap().slice());
    one.finish(response);
    let response = deliveries.recv().unwrap().1.response.unwrap();
    assert_eq!(object.read(0, 8), b"abbcdagh", "pieces that lie in each other's way");
    assert!(!response.outputs[1].data[0].is_in_region());
    assert_eq!(*response.outputs[1].data[0], *b"gh");
    let mut input = InputTensor::new(Text::from("I"), DataType::Uint8, Shape::new());
    input.data = SmallVec::from_iter([whole.window(0..1), Slice::copy_of(b"-")]);
    one.inputs.push(input);
    one.own_inputs().unwrap();
    assert!(!one.inputs[0].data[0].is_in_region());
    assert_eq!(*one.inputs[0].data[0], *b"a-");
}

#[test]
fn a_region_is_free_before_the_last_answer_is_out() {
    let object = Object::new(&[0; 8]);
    let regions = registry(b"r", &object, 8);
    let (mut one, deliveries) = request(&regions, &[("A", 0, 8)]);
    one.share();
    let responses = one.responses();
    responses.send(answer(&[("A", &[b"1"])]), false);
    deliveries.recv().unwrap();
    regions.unregister(b"r").unwrap();
    assert_eq!(regions.len(), 1, "more may follow");
    responses.send(answer(&[("A", &[b"2"])]), true);
    deliveries.recv().unwrap();
    assert!(regions.is_empty(), "though its request is still there");
    drop((one, responses));
}

#[test]
fn a_request_that_goes_nowhere_gives_its_regions_back() {
    let object = Object::new(&[0; 8]);
    let regions = registry(b"r", &object, 8);
    let (mut shared, _deliveries) = request(&regions, &[]);
    shared.share();
    let (draft, _deliveries) = request(&regions, &[]);
    regions.unregister(b"r").unwrap();
    Box::new(shared).withdraw();
    assert_eq!(regions.len(), 1);
    Box::new(draft).withdraw();
    assert!(regions.is_empty());
}

#[test]
fn lost_memory_is_the_answer_whatever_the_model_says() {
    let text = "shared memory region 'r' has lost its memory: the object was truncated, or its file system is full";
    for response in [answer(&[("A", &[b"abcd"])]), Response::failed(Text::default(), Status::internal("zeros?"))] {
        let object = Object::new(&[0; 8192]);
        let regions = registry(b"r", &object, 8192);
        let (mut one, deliveries) = request(&regions, &[("A", 4096, 4)]);
        one.share();
        object.truncate(0);
        if response.error.is_some() {
            // The model reads an input.
            assert_eq!(regions.get(b"r").unwrap().window(0, 1).unwrap().bytes().to_vec(), [0]);
        }
        one.finish(response);
        assert_eq!(error_of(&deliveries).as_deref(), Some(text));
    }
}

#[test]
fn long_copies_are_not_made_where_nobody_may_wait_and_order_is_kept() {
    let long = vec![7; COPIED_AT_ONCE + 1];
    let object = Object::new(&vec![0; 2 * long.len()]);
    let regions = registry(b"r", &object, 2 * long.len() as u64);
    for never_waits in [false, true] {
        let (mut one, deliveries) = request(&regions, &[("A", 0, long.len() as u64)]);
        one.share();
        assert!(!one.ingress.is_on_shard, "a worker copies as well");
        let responses = one.responses();
        let here = std::thread::current().id();
        let guard = never_waits.then(credit::NeverWaits::here);
        responses.send(answer(&[("A", &[b"short"])]), false);
        assert_eq!(deliveries.recv().unwrap().0, here);
        responses.send(answer(&[("A", &[&long])]), false);
        responses.send(answer(&[("A", &[b"end"])]), true);
        drop(guard);
        let (second, third) = (deliveries.recv().unwrap(), deliveries.recv().unwrap());
        assert_eq!(second.0 == here, !never_waits);
        assert!(!second.1.last && third.1.last, "in the order in which they were sent");
        assert_eq!(object.read(0, 4), b"end\x07");
        assert_eq!(object.read(long.len() as u64 - 1, 2), [7, 0]);
    }
    let (mut small, _deliveries) = request(&regions, &[("A", 0, COPIED_AT_ONCE as u64)]);
    small.share();
    assert!(small.ingress.is_on_shard);
}
