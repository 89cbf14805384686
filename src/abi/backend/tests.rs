//! The interface called as a plug-in calls it: what it completes, what it hands on, what it gives back.

mod devices;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

use super::*;
use crate::abi::server::{TRITONSERVER_ErrorDelete, TRITONSERVER_ErrorMessage};
use nereid_backend::fixtures::Answers;
use nereid_backend::onnxruntime::fixtures::context;
use nereid_memory::{Pool, Slice};
use nereid_request::{Completion, DataType, ReleaseReport, RequestEvents, Shape, StateHandle, StateTensor, States};
use nereid_wire::inference::ModelConfig;

/// The text of an error; `None`: success.
fn text(error: *mut Error) -> Option<String> {
    if error.is_null() {
        return None;
    }
    // SAFETY: the error just came from the interface and is deleted once.
    unsafe {
        let text = CStr::from_ptr(TRITONSERVER_ErrorMessage(error)).to_string_lossy().into_owned();
        TRITONSERVER_ErrorDelete(error);
        Some(text)
    }
}

fn model(config: ModelConfig) -> ModelHandle {
    let backend = BackendHandle::new("b", "{}", "/", (Pool::new(1 << 20), Arc::default()));
    ModelHandle::new(Arc::new(context("m", config)), Arc::new(backend))
}

fn set(model: &ModelHandle, json: &str) -> Option<String> {
    let message = Message::into_raw(json);
    // SAFETY: both handles are alive; the message is deleted once.
    unsafe {
        let error = TRITONBACKEND_ModelSetConfig(model, 1, message);
        crate::abi::server::TRITONSERVER_MessageDelete(message);
        text(error)
    }
}

#[test]
fn a_backend_completes_what_it_may_and_nothing_else() {
    let handle = model(ModelConfig { name: "m".into(), platform: "p".into(), ..ModelConfig::default() });
    let json = r#"{"name":"other","platform":"q","max_batch_size":8,
        "dynamic_batching":{"max_queue_delay_microseconds":5},
        "input":[{"name":"I","data_type":"TYPE_INT32","dims":[1]}],"model_transaction_policy":{"decoupled":true}}"#;
    assert_eq!(set(&handle, json), None);
    let completed = handle.completed.lock().unwrap().clone().unwrap();
    assert_eq!((&*completed.name, &*completed.platform, completed.max_batch_size), ("m", "p", 8));
    assert!(completed.model_transaction_policy.unwrap().decoupled);
    let Some(SchedulingChoice::DynamicBatching(batching)) = &completed.scheduling_choice else {
        panic!("{completed:?}")
    };
    assert_eq!(batching.max_queue_delay_microseconds, 5);
    // Of the same kind: the present one stays. Of another kind: refused, and nothing changes.
    assert_eq!(set(&handle, r#"{"max_batch_size":4,"dynamic_batching":{}}"#), None);
    let refused = "Cannot update scheduling choice from 11 to 11 when auto-completing.";
    assert_eq!(set(&handle, r#"{"max_batch_size":2,"sequence_batching":{}}"#).as_deref(), Some(refused));
    let config = handle.config.lock().unwrap().clone();
    assert_eq!(config.max_batch_size, 4);
    assert_eq!(config.scheduling_choice, completed.scheduling_choice);
}

fn request(states: Option<Arc<States>>) -> (Arc<Answers>, Box<Request>) {
    let answers = Arc::new(Answers::default());
    let mut request = Box::new(Request::new(Completion::new(answers.clone(), 1)));
    request.states = states;
    (answers, request)
}

#[test]
fn states_are_handed_on_when_they_are_updated() {
    let states = Arc::new(States::new(vec![StateTensor {
        input_name: "IN".into(),
        output_name: "OUT".into(),
        datatype: DataType::Int32,
        shape: Shape::from_slice(&[1]),
        data: Slice::copy_of(&7i32.to_le_bytes()),
    }]));
    let (answers, request) = request(Some(Arc::clone(&states)));
    let mut state = null();
    let shape = [2i64];
    let new = |state: &mut *const StateHandle, name: &CStr| {
        // SAFETY: the request is alive, the texts and numbers are.
        text(unsafe { states::TRITONBACKEND_StateNew(state, &*request, name.as_ptr(), 2, shape.as_ptr(), 1) })
    };
    assert_eq!(new(&mut state, c"IN").as_deref(), Some("state 'IN' is not a valid state name."));
    assert_eq!(new(&mut state, c"OUT"), None);
    let (mut buffer, mut kind, mut id): (*mut c_void, u32, i64) = (null_mut(), 2, 5);
    let mut again: *mut c_void = null_mut();
    // SAFETY: the state lives with the request, and two bytes are written to a buffer of two.
    unsafe {
        assert_eq!(text(states::TRITONBACKEND_StateBuffer(state, &mut buffer, 2, &mut kind, &mut id)), None);
        assert_eq!((kind, id), (0, 0));
        buffer.cast::<[u8; 2]>().write([3, 4]);
        assert_eq!(text(states::TRITONBACKEND_StateBuffer(state, &mut again, 2, &mut kind, &mut id)), None);
        assert_eq!(again, buffer, "the present buffer is used again");
        assert_eq!(states.tensors()[0].data.len(), 4, "not before it is said");
        assert_eq!(text(states::TRITONBACKEND_StateUpdate(state)), None);
    }
    let present = &states.tensors()[0];
    assert_eq!((present.datatype, &present.shape[..], &*present.data), (DataType::Uint8, &[2][..], &[3, 4][..]));
    drop(request);
    drop(answers);
}

/// Takes a request back, or not.
struct Scheduler {
    takes: bool,
    taken: Mutex<Vec<Request>>,
}

impl RequestEvents for Scheduler {
    fn released(&self, _key: u64) {}

    fn reschedule(&self, _key: u64, request: Box<Request>) -> Result<(), (Status, Box<Request>)> {
        match self.takes {
            true => self.taken.lock().unwrap().push(*request),
            false => return Err((Status::invalid("not this one"), request)),
        }
        Ok(())
    }
}

#[test]
fn a_request_is_given_back_to_be_scheduled_once_more() {
    let release = |request: *mut Request, flags: u32| {
        // SAFETY: the request came from a box and is the interface's if it takes it.
        text(unsafe { requests::TRITONBACKEND_RequestRelease(request, flags) })
    };
    for takes in [true, false] {
        let owner = Arc::new(Scheduler { takes, taken: Mutex::default() });
        let (answers, mut request) = request(None);
        request.release.report = Some(ReleaseReport::new(owner.clone(), 1));
        let raw = Box::into_raw(request);
        let refusal = release(raw, 2);
        assert_eq!(refusal.as_deref(), if takes { None } else { Some("not this one") });
        assert_eq!(owner.taken.lock().unwrap().len(), usize::from(takes));
        if !takes {
            // It is still the plug-in's, and has no owner any more.
            assert!(release(raw, 2).unwrap().starts_with("Request is released with TRITONSERVER_REQUEST_RELEASE"));
            assert_eq!(release(raw, 1), None);
            assert_eq!(answers.take().len(), 1, "an answer, because nobody gave one");
        }
    }
    let nothing: *const c_char = null();
    // SAFETY: NULL is refused.
    let refused = text(unsafe { states::TRITONBACKEND_StateNew(null_mut(), null(), nothing, 2, null(), 0) });
    assert_eq!(refused.as_deref(), Some("request must not be NULL"));
}

#[test]
fn memory_is_reported_by_model_and_instance_and_copied() {
    use crate::abi::backend::memory_usage::{
        TRITONBACKEND_ModelInstanceReportMemoryUsage, TRITONBACKEND_ModelReportMemoryUsage,
    };
    use crate::abi::server::buffer_attributes::BufferAttributes;
    use nereid_observe::statistics::{MemoryKind, MemoryUse};
    let handle = Arc::new(model(ModelConfig { name: "m".into(), ..ModelConfig::default() }));
    let spec = nereid_model_config::ModelSpec::new(ModelConfig::default()).unwrap();
    let context = nereid_backend::InstanceContext::new("m_0", Arc::new(spec), Arc::clone(&handle.context));
    let instance = InstanceHandle::new(context, Arc::clone(&handle));
    let of = |memory_type: u32, memory_type_id: i64, byte_size: usize| BufferAttributes {
        memory_type,
        memory_type_id,
        byte_size,
        ..BufferAttributes::default()
    };
    let report = |of_model: bool, entries: &[BufferAttributes]| {
        let pointers: Vec<*const BufferAttributes> = entries.iter().map(std::ptr::from_ref).collect();
        let (list, count) = (pointers.as_ptr(), pointers.len() as u32);
        // SAFETY: handles, list and entries live longer than the call.
        text(unsafe {
            match of_model {
                true => TRITONBACKEND_ModelReportMemoryUsage(&*handle, list, count),
                false => TRITONBACKEND_ModelInstanceReportMemoryUsage(&instance, list, count),
            }
        })
    };
    let seen = || handle.context.statistics.snapshot().memory_usage;
    let expected = |kind, id, byte_size| MemoryUse { kind, id, byte_size };
    assert_eq!(report(true, &[of(2, 1, 64), of(0, 0, 5)]), None);
    assert_eq!(report(false, &[of(0, 0, 7), of(1, 0, 9)]), None);
    let all = [(MemoryKind::Cpu, 0, 12), (MemoryKind::CpuPinned, 0, 9), (MemoryKind::Gpu, 1, 64)];
    assert_eq!(seen(), all.map(|(kind, id, bytes)| expected(kind, id, bytes)));
    assert_eq!(report(true, &[of(3, 0, 1)]).as_deref(), Some("unknown memory type 3"));
    assert_eq!(seen().len(), 3, "a refused report changes nothing");
    let many: Vec<_> = (0..1025).map(|id| of(0, id, 1)).collect();
    let refused = report(true, &many);
    assert_eq!(refused.as_deref(), Some("a report of memory usage may have 1024 entries at most"));
    // SAFETY: NULL is refused, and with no entries nothing is read.
    unsafe {
        let none = TRITONBACKEND_ModelReportMemoryUsage(&*handle, null(), 1);
        assert_eq!(text(none).as_deref(), Some("usage must not be NULL"));
        let nothing: *const BufferAttributes = null();
        let none = TRITONBACKEND_ModelReportMemoryUsage(&*handle, &nothing, 1);
        assert_eq!(text(none).as_deref(), Some("an entry of usage must not be NULL"));
        let none = TRITONBACKEND_ModelInstanceReportMemoryUsage(null(), null(), 0);
        assert_eq!(text(none).as_deref(), Some("instance must not be NULL"));
        assert_eq!(text(TRITONBACKEND_ModelReportMemoryUsage(&*handle, null(), 0)), None);
    }
    assert_eq!(seen(), [expected(MemoryKind::Cpu, 0, 7), expected(MemoryKind::CpuPinned, 0, 9)]);
}

#[test]
fn an_input_shows_each_host_policy_its_own_data() {
    use crate::abi::backend::inputs::{
        TRITONBACKEND_InputBuffer, TRITONBACKEND_InputBufferAttributes, TRITONBACKEND_InputBufferForHostPolicy,
        TRITONBACKEND_InputPropertiesForHostPolicy,
    };
    use crate::abi::server::BufferAttributes;
    use nereid_request::{InputPlacement, InputTensor, MemoryType, Place, PolicyData, Text};
    let mut input = InputTensor::new(Text::from("I"), DataType::Uint8, Shape::from_slice(&[3]));
    input.data = [Slice::from_static(b"ab"), Slice::from_static(b"c")].into_iter().collect();
    let pinned = Place { memory_type: MemoryType::CpuPinned, memory_type_id: 4, cuda_ipc_handle: 0x50 };
    let policy_data = PolicyData {
        policy: Text::from("near"),
        data: [Slice::from_static(b"xyz")].into_iter().collect(),
        places: vec![pinned],
    };
    input.placement = Some(Box::new(InputPlacement {
        places: vec![Place::default(), pinned],
        for_policies: vec![policy_data],
        on_device: None,
    }));
    let counts = |policy: *const c_char| {
        let (mut bytes, mut pieces) = (0, 0);
        let (none, no_type, no_shape, no_rank) = (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: the input and the results live through the call.
        let error = unsafe {
            TRITONBACKEND_InputPropertiesForHostPolicy(
                &input,
                policy,
                none,
                no_type,
                no_shape,
                no_rank,
                &mut bytes,
                &mut pieces,
            )
        };
        assert_eq!(text(error), None);
        (bytes, pieces)
    };
    assert_eq!(counts(c"near".as_ptr()), (3, 1));
    assert_eq!(counts(c"far".as_ptr()), (3, 2));
    assert_eq!(counts(null()), (3, 2));
    let piece = |policy: Option<&CStr>, index: u32| {
        let (mut at, mut size, mut kind, mut id) = (null(), 0, 9, 9);
        // SAFETY: the input and the results live through the call.
        let error = unsafe {
            match policy {
                Some(policy) => TRITONBACKEND_InputBufferForHostPolicy(
                    &input,
                    policy.as_ptr(),
                    index,
                    &mut at,
                    &mut size,
                    &mut kind,
                    &mut id,
                ),
                None => TRITONBACKEND_InputBuffer(&input, index, &mut at, &mut size, &mut kind, &mut id),
            }
        };
        // SAFETY: what was told is readable.
        text(error).map_or_else(|| Ok((unsafe { *at.cast::<u8>() }, size, kind, id)), Err)
    };
    assert_eq!(piece(Some(c"near"), 0), Ok((b'x', 3, 1, 4)));
    assert_eq!(piece(Some(c"far"), 0), Ok((b'a', 2, 0, 0)));
    assert_eq!(piece(None, 1), Ok((b'c', 1, 1, 4)));
    let beyond = "out of bounds index 1: request has 1 buffers of the input";
    assert_eq!(piece(Some(c"near"), 1), Err(beyond.to_owned()));
    let attributes = |index: u32| {
        let (mut at, mut found): (*const c_void, *const BufferAttributes) = (null(), null());
        // SAFETY: the input and the places live through the call.
        assert_eq!(text(unsafe { TRITONBACKEND_InputBufferAttributes(&input, index, &mut at, &mut found) }), None);
        found
    };
    let (first, second) = (attributes(0), attributes(1));
    assert_eq!(first, attributes(0), "they stay where they are");
    // SAFETY: they live as long as the input.
    let (first, second) = unsafe { (&*first, &*second) };
    assert_eq!((first.memory_type, first.memory_type_id, first.byte_size), (0, 0, 2));
    assert_eq!((second.memory_type, second.memory_type_id, second.byte_size), (1, 4, 1));
    assert_eq!(second.cuda_ipc_handle.addr(), 0x50);
}

#[test]
fn a_completed_configuration_is_made_normal_again() {
    let handle = model(ModelConfig { name: "m".into(), ..ModelConfig::default() });
    assert_eq!(set(&handle, r#"{"max_batch_size":8,"dynamic_batching":{}}"#), None);
    let config = handle.config.lock().unwrap().clone();
    let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice else { panic!("{config:?}") };
    assert_eq!(batching.preferred_batch_size, [8]);
    assert!(config.version_policy.is_some() && config.optimization.is_some());
    handle.is_sealed.store(true, Ordering::Release);
    let late = "the model configuration can only be set while the model is initialised";
    assert_eq!(set(&handle, r#"{"max_batch_size":4}"#).as_deref(), Some(late));
    assert_eq!(handle.config.lock().unwrap().max_batch_size, 8);
}
