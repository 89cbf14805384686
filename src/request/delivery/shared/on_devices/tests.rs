//! Where outputs end up whose places are on devices, on which thread, and where a model is to write them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use super::super::draft;
use super::*;
use crate::delivery::credit::NeverWaits;
use crate::{Completion, DataType, Delivery, Request, Response, Shape, SharedMemory, Sink};
use nereid_gpu::driver::Driver as _;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpu, Gpus, IpcAllocation, Settings};
use nereid_memory::{Slice, Target};

struct Home(Mutex<Sender<(ThreadId, Delivery)>>);

impl Sink for Home {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        // Nobody may listen any more.
        let _ = self.0.lock().unwrap().send((std::thread::current().id(), delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

/// A server with two devices, on each of which a client lends 64 bytes, `zero` and `one`.
struct Rig {
    driver: Arc<Simulated>,
    memory: SharedMemory,
}

impl Rig {
    fn new() -> Rig {
        let driver = Arc::new(Simulated::new(Spec { delay_us_max: 20, ..Spec::prompt(2, 4) }));
        let memory = SharedMemory::new(Gpus::with(Arc::clone(&driver) as Arc<_>, &Settings::default()));
        for (device, name) in [b"zero".as_slice(), b"one"].into_iter().enumerate() {
            let at = driver.allocate(device, 64).unwrap();
            let handle = driver.ipc_export(device, at).unwrap();
            let lent = IpcAllocation { handle: &handle, device_id: device as i64, byte_size: 64 };
            memory.register_cuda(name, lent).unwrap();
        }
        let rig = Rig { driver, memory };
        for name in ["zero", "one"] {
            let target = rig.memory.gpus.regions().get(name.as_bytes()).unwrap().target(0, 64).unwrap();
            target.gpu().put_at(&target, &[b'.'; 64]).unwrap();
        }
        rig
    }

    fn gpu(&self, id: i32) -> &Gpu {
        self.memory.gpus.get(id).unwrap()
    }

    fn read(&self, region: &str, at: u64, len: u64) -> String {
        let slice = self.memory.gpus.regions().get(region.as_bytes()).unwrap().slice(at, len).unwrap();
        let mut bytes = vec![0; slice.len()];
        slice.gpu().fetch(&slice, &mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A request whose outputs go to these places.
    fn request(&self, places: &[(&str, &str, u64, u64)]) -> (Request, Receiver<(ThreadId, Delivery)>) {
        let (sender, deliveries) = channel();
        let mut request = Request::new(Completion::new(Arc::new(Home(Mutex::new(sender))), 0));
        request.ingress.is_on_shard = true;
        let shared = draft(&mut request.shared, self.memory.job_thread());
        for (output, region, at, len) in places {
            let one = self.memory.gpus.regions().get(region.as_bytes()).unwrap();
            shared.add_target(Text::from(*output), one.target(*at, *len).unwrap());
            shared.add_device_use(one);
        }
        request.share();
        (request, deliveries)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.driver.violations(), [] as [&str; 0]);
        }
    }
}

fn output(name: &str, pieces: &[&[u8]]) -> OutputTensor {
    OutputTensor {
        name: Text::from(name),
        datatype: DataType::Uint8,
        shape: Shape::new(),
        data: pieces.iter().map(|piece| Slice::copy_of(piece)).collect(),
        index: 0,
        on_device: None,
    }
}

fn on_device(name: &str, slice: &DeviceSlice) -> OutputTensor {
    OutputTensor { on_device: Some(Box::new(slice.clone())), ..output(name, &[]) }
}

fn answer(outputs: impl IntoIterator<Item = OutputTensor>) -> Response {
    let mut response = Response::new(Text::from("id"));
    response.outputs.extend(outputs);
    response
}

#[test]
fn outputs_are_brought_to_their_places_from_wherever_they_are() {
    let rig = Rig::new();
    let places = [("A", "zero", 0, 8), ("B", "one", 3, 8), ("C", "one", 16, 4), ("D", "zero", 32, 8)];
    let (request, deliveries) = rig.request(&places);
    assert!(!request.ingress.is_on_shard, "a worker waits for devices");
    let (near, far) = (rig.gpu(1).put(b"near").unwrap(), rig.gpu(0).put(b"far").unwrap());
    let outputs = [
        output("A", &[b"ab", b"", b"cd"]),
        on_device("B", &near),
        on_device("C", &far),
        output("D", &[]),
        // Nobody set a place aside: it goes over the network.
        on_device("E", &near),
    ];
    request.finish(answer(outputs));
    let response = deliveries.recv().unwrap().1.response.unwrap();
    assert_eq!(response.error, None);
    assert_eq!((rig.read("zero", 0, 5), rig.read("zero", 32, 4)), ("abcd.".to_owned(), "....".to_owned()));
    assert_eq!((rig.read("one", 2, 6), rig.read("one", 15, 5)), (".near.".to_owned(), ".far.".to_owned()));
    assert!(response.outputs[4].on_device.is_none());
    assert_eq!(*response.outputs[4].data[0], *b"near");
}

#[test]
fn what_a_model_wrote_to_its_place_is_not_copied() {
    let rig = Rig::new();
    let (request, deliveries) = rig.request(&[("A", "one", 8, 8)]);
    let Ok(OutputDestination::At(target)) = request.destination_of(&Text::from("A"), 5) else { panic!("no place") };
    assert_eq!((target.len(), target.gpu().id()), (5, 1));
    target.gpu().put_at(&target, b"there").unwrap();
    let before = rig.driver.counts();
    request.finish(answer([on_device("A", &target.freeze())]));
    assert_eq!(deliveries.recv().unwrap().1.response.unwrap().error, None);
    assert_eq!(rig.driver.counts(), before);
    assert_eq!(rig.read("one", 7, 7), ".there.");
}

#[test]
fn a_model_is_told_where_its_outputs_are_wanted() {
    let rig = Rig::new();
    let (request, _deliveries) = rig.request(&[("A", "zero", 8, 8), ("ODD", "one", 4, 8)]);
    let destination = |name: &str, len| request.destination_of(&Text::from(name), len);
    assert!(matches!(destination("A", 8), Ok(OutputDestination::At(_))));
    assert!(matches!(destination("ODD", 8), Ok(OutputDestination::OnDevice)), "kernels would stumble");
    for (name, len) in [("A", 0), ("OTHER", 8)] {
        assert!(matches!(destination(name, len), Ok(OutputDestination::OnHost)), "{name}");
    }
    let text = "shared memory size specified with the request for output 'A' (8 bytes) should be at least 9 bytes to \
                hold the results";
    assert_eq!(destination("A", 9).unwrap_err(), Status::internal(text));
    assert_eq!(request.check_output(&Text::from("A"), 9), Err(Status::internal(text)));
    assert_eq!(request.allocate_output(&Text::from("A"), 9).unwrap_err(), Status::internal(text));
    assert!(matches!(request.allocate_output(&Text::from("A"), 8), Ok(Target::Block(_))));
    assert!(matches!(request.responses().destination_of(b"A", 8), Ok(OutputDestination::At(_))));
    request.keep_outputs_apart();
    assert!(matches!(request.destination_of(&Text::from("A"), 8), Ok(OutputDestination::OnHost)));
}

#[test]
fn too_small_a_place_is_the_answer_and_nothing_is_written() {
    let rig = Rig::new();
    for is_on_device in [false, true] {
        let (request, deliveries) = rig.request(&[("A", "zero", 0, 4)]);
        let long = rig.gpu(0).put(b"abcde").unwrap();
        request.finish(answer([if is_on_device { on_device("A", &long) } else { output("A", &[b"abcde"]) }]));
        let error = deliveries.recv().unwrap().1.response.unwrap().into_parts().error.unwrap();
        assert!(error.message.contains("(4 bytes) should be at least 5 bytes"), "{error}");
    }
    assert_eq!(rig.read("zero", 0, 8), "........");
}

#[test]
fn a_thread_that_must_not_wait_leaves_it_to_another_and_order_is_kept() {
    let rig = Rig::new();
    let here = std::thread::current().id();
    let (request, deliveries) = rig.request(&[("A", "one", 0, 8)]);
    let responses = request.responses();
    let guard = NeverWaits::here();
    let made = rig.gpu(0).put(b"first").unwrap();
    for (outputs, last) in
        [([on_device("A", &made)], false), ([output("A", &[])], false), ([output("A", &[b"end"])], true)]
    {
        responses.send(answer(outputs), last);
    }
    drop(guard);
    let all: Vec<(ThreadId, Delivery)> = (0..3).map(|_| deliveries.recv().unwrap()).collect();
    assert!(all[0].0 != here && all[2].0 != here);
    assert_eq!(all.iter().map(|(_, delivery)| delivery.last).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(rig.read("one", 0, 6), "endst.");
}

#[test]
fn a_region_is_free_before_the_last_answer_is_out() {
    let rig = Rig::new();
    let (request, deliveries) = rig.request(&[("A", "one", 0, 8)]);
    rig.memory.gpus.regions().unregister(b"one");
    assert!(rig.memory.gpus.regions().find(b"one").is_some());
    request.finish(answer([output("A", &[b"late"])]));
    deliveries.recv().unwrap();
    assert!(rig.memory.gpus.regions().find(b"one").is_none(), "though its request is still there");
}
