//! Memory of devices that an application brings, and provides for responses.

use std::ffi::{CStr, c_char};

use super::*;
use crate::abi::server::allocators::TRITONSERVER_ResponseAllocatorNew;
use crate::abi::server::allocators::{RequestAllocator, ResponseAllocator, TRITONSERVER_ResponseAllocatorDelete};
use nereid_gpu::DeviceBuffer;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpus, Settings};
use nereid_model_config::{ModelSpec, from_dynamic, parse};
use nereid_request::{CorrelationId, DataType, Parameters, Queueing, Shape};

struct Named {
    spec: ModelSpec,
    gpus: Arc<Gpus>,
}

impl Callee for Named {
    fn name(&self) -> &CStr {
        c"m"
    }

    fn version(&self) -> i64 {
        1
    }

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn label(&self, _output: &[u8], _class: usize) -> Option<&[u8]> {
        None
    }

    fn gpus(&self) -> Option<&Gpus> {
        Some(&*self.gpus).filter(|gpus| gpus.is_supported())
    }

    fn request(&self, _answers: Arc<dyn Sink>) -> (Box<Request>, Arc<dyn Call>) {
        unreachable!("nothing is sent")
    }

    fn check(&self, _request: &mut Request) -> Result<(), Status> {
        Ok(())
    }
}

fn devices() -> (Arc<Simulated>, Arc<Named>) {
    let driver = Arc::new(Simulated::new(Spec::prompt(2, 2)));
    let gpus = Gpus::with(Arc::clone(&driver) as Arc<_>, &Settings::default());
    let config = from_dynamic(&parse("c", b"name: \"m\"").unwrap().message).unwrap();
    (driver, Arc::new(Named { spec: ModelSpec::new(config).unwrap(), gpus }))
}

fn on_gpu(id: i64) -> Place {
    Place { memory_type_id: id, ..ON_DEVICE }
}

fn filled(callee: &Arc<Named>, data: Vec<Chunk>, for_policies: Vec<(Text, Vec<Chunk>)>) -> Request {
    let shape = Shape::from_slice(&[4]);
    let input = Input { name: Text::from("I"), datatype: Some(DataType::Uint8), shape, data, for_policies };
    let given = Description {
        callee: Arc::clone(callee) as Arc<dyn Callee>,
        id: Text::from("id"),
        flags: 0,
        correlation_id: CorrelationId::None,
        queueing: Queueing::default(),
        inputs: vec![input],
        is_raw: false,
        outputs: Vec::new(),
        parameters: Parameters::default(),
        release: None,
        answer: None,
    };
    let sink: Arc<dyn Sink> = Arc::new(NullSink);
    let mut request = Request::new(nereid_request::Completion::new(sink, 0));
    fill(&mut request, &given, &Arc::new(ReleaseGuard::new(|| {}))).unwrap();
    request
}

struct NullSink;

impl Sink for NullSink {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

fn fetched(slice: &DeviceSlice) -> Vec<u8> {
    let mut bytes = vec![0; slice.len()];
    slice.gpu().fetch(slice, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_input_on_a_device_is_used_in_place_and_joined_where_it_is_in_pieces() {
    let (driver, callee) = devices();
    let one = callee.gpus.get(1).unwrap().put(b"abcd").unwrap();
    let zero = callee.gpus.get(0).unwrap().put(b"yz").unwrap();
    let of = |slice: &DeviceSlice| {
        let at = std::ptr::without_provenance(slice.address().0 as usize);
        Chunk { at, len: slice.len(), place: on_gpu(i64::from(slice.gpu().id())) }
    };
    static HOST: [u8; 2] = *b"wx";
    let host = Chunk { at: HOST.as_ptr(), len: 2, place: Place::default() };
    let request = filled(&callee, vec![of(&one)], Vec::new());
    let input = &request.inputs[0];
    assert!(input.on_device().unwrap().same_memory(&one) && input.data.is_empty());
    let request = filled(&callee, vec![host, of(&zero)], vec![(Text::from("gpu_1"), vec![of(&one)])]);
    let input = &request.inputs[0];
    let joined = input.on_device().unwrap();
    assert_eq!((joined.gpu().id(), fetched(joined)), (0, b"wxyz".to_vec()));
    assert_eq!(input.data_for(b"gpu_1")[0][..], *b"abcd", "for one policy, on the host");
    let request = filled(&callee, vec![host], Vec::new());
    assert!(request.inputs[0].placement.is_none(), "nothing is said of plain memory");
    assert_eq!(driver.violations(), [] as [&str; 0]);
}

/// An application that gives memory of the kind that it likes.
struct Application {
    gpus: Arc<Gpus>,
    /// `None`: of the host.
    device: Option<i32>,
    /// The memory begins this far behind where it is aligned.
    crooked: usize,
    given: Mutex<Vec<DeviceBuffer>>,
    host: Mutex<Vec<Vec<u64>>>,
    wanted: Mutex<Vec<(u32, i64)>>,
    release_call: AtomicU64,
}

unsafe extern "C-unwind" fn allocate(
    _allocator: *mut ResponseAllocator,
    _name: *const c_char,
    byte_size: usize,
    memory_type: u32,
    memory_type_id: i64,
    userp: *mut c_void,
    buffer: *mut *mut c_void,
    buffer_userp: *mut *mut c_void,
    actual_type: *mut u32,
    actual_id: *mut i64,
) -> *mut Error {
    // SAFETY: what the test registered, and pointers that the interface promises.
    unsafe {
        let application = &*userp.cast::<Application>();
        application.wanted.lock().unwrap().push((memory_type, memory_type_id));
        *buffer_userp = userp;
        match application.device {
            Some(id) => {
                let own = application.gpus.get(id).unwrap().allocate(byte_size + 8).unwrap();
                *buffer = std::ptr::without_provenance_mut(own.address().0 as usize + application.crooked);
                (*actual_type, *actual_id) = (2, i64::from(id));
                application.given.lock().unwrap().push(own);
            }
            None => {
                let mut own = vec![0u64; byte_size / 8 + 1];
                *buffer = own.as_mut_ptr().cast();
                (*actual_type, *actual_id) = (0, 0);
                application.host.lock().unwrap().push(own);
            }
        }
    }
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn release(
    _allocator: *mut ResponseAllocator,
    _buffer: *mut c_void,
    buffer_userp: *mut c_void,
    _byte_size: usize,
    _memory_type: u32,
    _memory_type_id: i64,
) -> *mut Error {
    // SAFETY: what the test registered.
    unsafe { &*buffer_userp.cast::<Application>() }.release_call.fetch_add(1, Ordering::Relaxed);
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn complete(_response: *mut InferenceResponse, _flags: u32, _userp: *mut c_void) {}

/// Lets an application of that taste have the answer to one request.
fn with_receiver(device: Option<i32>, crooked: usize, test: impl FnOnce(&ResponseReceiver, &Application)) {
    let (driver, callee) = devices();
    let application = Box::new(Application {
        gpus: Arc::clone(&callee.gpus),
        device,
        crooked,
        given: Mutex::default(),
        host: Mutex::default(),
        wanted: Mutex::default(),
        release_call: AtomicU64::new(0),
    });
    let userp = std::ptr::from_ref(&*application).cast_mut().cast::<c_void>();
    let mut allocator = std::ptr::null_mut();
    // SAFETY: the result is writable, the functions are there for ever.
    unsafe {
        assert!(TRITONSERVER_ResponseAllocatorNew(&mut allocator, Some(allocate), Some(release), None).is_null());
        let receiver = ResponseReceiver {
            number: 7,
            response_callback: ResponseCallback {
                request_allocator: RequestAllocator::new(allocator, userp).unwrap(),
                complete,
                userp,
            },
            callee,
            id: Text::from("id"),
            is_begun: AtomicBool::new(false),
            unused: Mutex::default(),
            output_trace: Mutex::default(),
        };
        test(&receiver, &application);
        drop(receiver);
        assert!(TRITONSERVER_ResponseAllocatorDelete(allocator).is_null());
    }
    let given = application.given.lock().unwrap().len() + application.host.lock().unwrap().len();
    assert_eq!(application.release_call.load(Ordering::Relaxed), given as u64, "everything goes back");
    assert_eq!(driver.violations(), [] as [&str; 0]);
}

fn query(byte_size: usize) -> OutputQuery<'static> {
    OutputQuery { name: b"O", byte_size, place: Place::default(), is_begun: false, is_aligned: true }
}

fn output(data: &[u8], on_device: Option<DeviceSlice>) -> OutputTensor {
    OutputTensor {
        name: Text::from("O"),
        datatype: DataType::Uint8,
        shape: Shape::from_slice(&[4]),
        data: if on_device.is_some() { smallvec::SmallVec::new() } else { smallvec::smallvec![Slice::copy_of(data)] },
        index: 0,
        on_device: on_device.map(Box::new),
    }
}

/// What the application finds in the answer: its bytes, and where they lie.
fn found(output: &Output, gpus: &Gpus) -> (Vec<u8>, u32) {
    let (at, len, place, _) = output.data.parts();
    let bytes = match gpu_of(gpus, place) {
        None => {
            // SAFETY: so many bytes are there until the response goes.
            unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec()
        }
        Some(gpu) => {
            let at = DeviceAddress(at.addr() as u64);
            // SAFETY: so many bytes are there until the response goes.
            fetched(&unsafe { DeviceSlice::foreign(gpu.clone(), at, len, Arc::new(())) })
        }
    };
    (bytes, place.memory_type as u32)
}

#[test]
fn a_model_writes_where_the_application_gave_memory_of_a_device() {
    with_receiver(Some(1), 0, |receiver, application| {
        let Ok(OutputDestination::At(target)) = receiver.destination(0, &query(4)) else { panic!("no place") };
        assert_eq!(*application.wanted.lock().unwrap(), [(2, 0)], "it was asked for the first device's");
        target.gpu().put_at(&target, b"made").unwrap();
        let placed = receiver.place(output(b"", Some(target.freeze()))).unwrap();
        assert!(matches!(placed.data, Data::OnDevice(_)));
        assert_eq!(found(&placed, &application.gpus), (b"made".to_vec(), 2));
        assert_eq!(application.wanted.lock().unwrap().len(), 1);
    });
}

#[test]
fn what_was_made_elsewhere_is_brought_to_the_memory_that_was_given() {
    for (device, crooked, is_on_device, kind) in
        [(Some(1), 0, false, 2), (Some(1), 0, true, 2), (Some(0), 3, true, 2), (None, 0, true, 0)]
    {
        with_receiver(device, crooked, |receiver, application| {
            let made = application.gpus.get(0).unwrap().put(b"made").unwrap();
            let placed = receiver.place(output(b"made", is_on_device.then_some(made))).unwrap();
            assert_eq!(found(&placed, &application.gpus), (b"made".to_vec(), kind), "{device:?} {is_on_device}");
        });
    }
}

#[test]
fn memory_that_a_model_cannot_use_is_used_when_the_answer_is_there() {
    // Of the host, though a device's was asked for: the model writes there.
    with_receiver(None, 0, |receiver, application| {
        assert!(matches!(receiver.destination(0, &query(4)), Ok(OutputDestination::OnHost)));
        let Ok(Some(mut target)) = receiver.allocate_output(0, &query(4)) else { panic!("no memory") };
        assert!(target.write(0, b"host"));
        let mut made = output(b"", None);
        made.data = smallvec::smallvec![target.freeze()];
        let placed = receiver.place(made).unwrap();
        assert_eq!(found(&placed, &application.gpus), (b"host".to_vec(), 0));
        assert_eq!(application.wanted.lock().unwrap().len(), 1, "asked once");
    });
    // Where no number may begin, or of a device for who computes on the host.
    with_receiver(Some(0), 3, |receiver, application| {
        assert!(matches!(receiver.destination(0, &query(4)), Ok(OutputDestination::OnDevice)));
        let made = application.gpus.get(1).unwrap().put(b"made").unwrap();
        let placed = receiver.place(output(b"", Some(made))).unwrap();
        assert_eq!(found(&placed, &application.gpus), (b"made".to_vec(), 2));
        assert!(matches!(receiver.allocate_output(0, &query(4)), Ok(None)));
        let placed = receiver.place(output(b"host", None)).unwrap();
        assert_eq!(found(&placed, &application.gpus), (b"host".to_vec(), 2));
        assert_eq!(application.wanted.lock().unwrap().len(), 2, "asked once for each");
    });
}
