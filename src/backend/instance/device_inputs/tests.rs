//! Which inputs are left on a device, which are moved, which are brought to the host, and which requests fail.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::*;
use crate::instance::tests::model_context_on;
use nereid_gpu::driver::Driver as _;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpus, Settings};
use nereid_memory::{BlockMut, Exhausted};
use nereid_model_config::{ModelSpec, from_dynamic, parse};
use nereid_request::{Completion, Delivery, InputPlacement, Shape, Sink, Text};

struct Home(Mutex<Sender<u64>>);

impl Sink for Home {
    /// Only failures are delivered here.
    fn deliver(&self, key: u64, delivery: Delivery) {
        let failed = delivery.response.is_some_and(|response| response.error.is_some());
        if failed {
            let _ = self.0.lock().unwrap().send(key);
        }
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

struct Rig {
    driver: Arc<Simulated>,
    gpus: Arc<Gpus>,
    context: InstanceContext,
    home: Arc<Home>,
    failed: Receiver<u64>,
}

fn rig(pinned_pool_bytes: u64, more: &str) -> Rig {
    let driver = Arc::new(Simulated::new(Spec::prompt(2, 6)));
    let settings = Settings { pinned_pool_bytes, ..Settings::default() };
    let gpus = Gpus::with(Arc::clone(&driver) as Arc<_>, &settings);
    let text = format!("name: \"m\" {more}");
    let config = from_dynamic(&parse("c", text.as_bytes()).unwrap().message).unwrap();
    let model = model_context_on(Arc::clone(&gpus), &config);
    let context = InstanceContext::new("m_0", Arc::new(ModelSpec::new(config).unwrap()), model);
    let (tell, failed) = channel();
    Rig { driver, gpus, context, home: Arc::new(Home(Mutex::new(tell))), failed }
}

impl Rig {
    /// A request with an input of these bytes on device 1, from `at` on.
    fn request(&self, key: u64, datatype: DataType, count: i64, (bytes, at): (&[u8], usize)) -> Box<Request> {
        let mut request = Box::new(Request::new(Completion::new(Arc::clone(&self.home) as Arc<dyn Sink>, key)));
        request.stamps.started_ns = 1;
        let whole = [&vec![0; at], bytes].concat();
        let slice = self.gpus.get(1).unwrap().put(&whole).unwrap().window(at..whole.len());
        let mut input = InputTensor::new(Text::from("I"), datatype, Shape::from_slice(&[count]));
        input.placement = Some(Box::new(InputPlacement { on_device: Some(slice), ..InputPlacement::default() }));
        request.inputs.push(input);
        request
    }

    fn landed(&self, requests: impl IntoIterator<Item = Box<Request>>, takes_device_tensors: bool) -> Payload {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        land(&mut payload, &self.context, takes_device_tensors);
        assert_eq!(self.driver.violations(), [] as [&str; 0]);
        payload
    }
}

fn host_bytes(payload: &Payload, at: usize) -> Vec<u8> {
    let input = &payload.requests()[at].inputs[0];
    assert!(input.on_device().is_none());
    input.data.iter().flat_map(|piece| piece.to_vec()).collect()
}

#[test]
fn who_reads_on_the_host_finds_inputs_there() {
    // In pinned memory, and in plain memory where there is none.
    for pinned_pool_bytes in [1 << 20, 0] {
        let rig = rig(pinned_pool_bytes, "");
        let requests =
            vec![rig.request(1, DataType::Uint8, 3, (b"abc", 1)), rig.request(2, DataType::Fp32, 1, (b"wxyz", 0))];
        let payload = rig.landed(requests, false);
        assert_eq!((host_bytes(&payload, 0), host_bytes(&payload, 1)), (b"abc".to_vec(), b"wxyz".to_vec()));
        let data = payload.requests()[1].inputs[0].data[0].clone();
        assert_eq!(rig.gpus.pinned().holds(&data), pinned_pool_bytes > 0);
    }
}

#[test]
fn who_reads_on_devices_gets_numbers_as_they_are_if_they_may_begin_there() {
    let rig = rig(1 << 20, "");
    let slices = |payload: &Payload| payload.requests()[0].inputs[0].on_device().unwrap().clone();
    let request = rig.request(1, DataType::Fp32, 1, (b"wxyz", 4));
    let before = request.inputs[0].on_device().unwrap().clone();
    assert!(slices(&rig.landed([request], true)).same_memory(&before), "in place");
    let request = rig.request(2, DataType::Fp32, 1, (b"wxyz", 6));
    let moved = slices(&rig.landed([request], true));
    let mut bytes = [0; 4];
    moved.gpu().fetch(&moved, &mut bytes).unwrap();
    assert_eq!((bytes, moved.address().0 % 4, moved.gpu().id()), (*b"wxyz", 0, 1));
    let words = b"\x02\0\0\0hi";
    let payload = rig.landed([rig.request(3, DataType::Bytes, 1, (words, 0))], true);
    assert_eq!(host_bytes(&payload, 0), words, "strings are the host's");
}

#[test]
fn strings_that_are_none_fail_their_request_only() {
    let rig = rig(1 << 20, "");
    let requests = [
        rig.request(1, DataType::Bytes, 1, (b"\x01\0\0\0a", 0)),
        rig.request(2, DataType::Bytes, 1, (b"\x09\0\0\0a", 0)),
        rig.request(3, DataType::Bytes, 1, (b"\x01\0\0\0b", 0)),
    ];
    let payload = rig.landed(requests, false);
    assert_eq!(payload.len(), 2);
    assert_eq!((host_bytes(&payload, 0)[4], host_bytes(&payload, 1)[4]), (b'a', b'b'));
    assert_eq!(rig.failed.try_iter().collect::<Vec<_>>(), [2]);
    assert!(rig.landed([rig.request(4, DataType::Bytes, 2, (b"\x01\0\0\0a", 0))], false).is_empty());
    assert_eq!(rig.failed.try_iter().collect::<Vec<_>>(), [4]);
}

#[test]
fn no_row_is_left_out_where_rows_are_sequences() {
    for (strategy, left) in [("direct {}", 0), ("oldest { max_candidate_sequences: 4 }", 1)] {
        let rig = rig(1 << 20, &format!("max_batch_size: 4 sequence_batching {{ {strategy} }}"));
        let requests = [
            rig.request(1, DataType::Bytes, 1, (b"\x01\0\0\0a", 0)),
            rig.request(2, DataType::Bytes, 1, (b"\x09\0\0\0a", 0)),
        ];
        assert_eq!(rig.landed(requests, false).len(), left, "{strategy}");
    }
}

#[test]
fn a_broken_device_fails_those_who_have_something_on_it() {
    let rig = rig(1 << 20, "");
    let mut requests =
        vec![rig.request(1, DataType::Uint8, 1, (b"a", 0)), rig.request(2, DataType::Uint8, 1, (b"b", 0))];
    if let Some(request) = requests.last_mut() {
        request.inputs[0].placement = None;
        request.inputs[0].data = smallvec![Slice::copy_of(b"host")];
    }
    // An event that was never created does not occur in a correct program.
    let none = nereid_gpu::driver::EventHandle(u64::MAX);
    assert!(rig.driver.query(1, none).is_err());
    let mut payload = Payload::default();
    requests.into_iter().for_each(|request| payload.push(request));
    land(&mut payload, &rig.context, false);
    assert_eq!((payload.len(), host_bytes(&payload, 0)), (1, b"host".to_vec()));
    assert_eq!(rig.failed.try_iter().collect::<Vec<_>>(), [1]);
}
