//! What any thread may do with one handle at any time, beside a thread that sends and edits it. ThreadSanitizer and
//! miri see more of it than these checks do.

use std::ffi::CStr;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::abi::server::allocators::{
    TRITONSERVER_ResponseAllocatorDelete, TRITONSERVER_ResponseAllocatorNew,
    TRITONSERVER_ResponseAllocatorSetQueryFunction,
};
use crate::abi::server::{TRITONSERVER_ErrorDelete, TRITONSERVER_ErrorMessage};
use nereid_gpu::Gpus;
use nereid_model_config::{ModelSpec, from_dynamic, parse};
use nereid_request::Sink;

const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };

/// A model that has a request until it is let go.
struct Model(ModelSpec);

/// The call of one send.
#[derive(Default)]
struct Sent(AtomicBool);

impl Call for Sent {
    fn submit(&self, _request: Box<Request>) -> Result<(), (Status, Box<Request>)> {
        unreachable!("the test keeps it")
    }

    fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn run_foreign(&self, job: Box<dyn FnOnce() + Send>, _is_fine_here: bool) {
        job();
    }
}

impl Callee for Model {
    fn name(&self) -> &CStr {
        c"m"
    }

    fn version(&self) -> i64 {
        1
    }

    fn spec(&self) -> &ModelSpec {
        &self.0
    }

    fn label(&self, _output: &[u8], _class: usize) -> Option<&[u8]> {
        None
    }

    fn gpus(&self) -> Option<&Gpus> {
        None
    }

    fn request(&self, _answers: Arc<dyn Sink>) -> (Box<Request>, Arc<dyn Call>) {
        unreachable!("the test makes its calls")
    }

    fn check(&self, _request: &mut Request) -> Result<(), Status> {
        Ok(())
    }
}

fn new_request() -> *mut InferenceRequest {
    let config = from_dynamic(&parse("c", b"name: \"m\"").unwrap().message).unwrap();
    let description = Description {
        callee: Arc::new(Model(ModelSpec::new(config).unwrap())),
        id: Text::from("first"),
        flags: 0,
        correlation_id: CorrelationId::None,
        queueing: Queueing::default(),
        inputs: Vec::new(),
        is_raw: false,
        outputs: Vec::new(),
        parameters: Parameters::default(),
        release: None,
        answer: None,
    };
    handle_of_application(give(InferenceRequest::new(description)))
}

/// The text of an error, which is deleted; empty: there was none.
fn text_of(error: *mut Error) -> String {
    if error.is_null() {
        return String::new();
    }
    // SAFETY: an error of this interface, which is used no more.
    unsafe {
        let text = CStr::from_ptr(TRITONSERVER_ErrorMessage(error)).to_string_lossy().into_owned();
        TRITONSERVER_ErrorDelete(error);
        text
    }
}

/// A handle that threads share, as C does.
struct Shared<T>(*mut T);

// SAFETY: what the tests do with the handle may be done on any thread.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: what the tests do with the handle may be done on any thread.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

#[test]
fn a_request_is_cancelled_by_threads_while_another_edits_and_sends_it() {
    let shared = Shared(new_request());
    let (is_over, cancelled) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let mut found = false;
                    // SAFETY: the request is live until the scope ends, and any thread may call these at any time.
                    let errors = unsafe {
                        [
                            text_of(TRITONSERVER_InferenceRequestCancel(shared.get())),
                            text_of(TRITONSERVER_InferenceRequestIsCancelled(shared.get(), &mut found)),
                        ]
                    };
                    for error in errors.iter().filter(|error| !error.is_empty()) {
                        assert!(error.ends_with("before calling TRITONSERVER_InferAsync."), "{error}");
                    }
                    cancelled.fetch_add(usize::from(found), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        let Either::Application(at) = casts::request(shared.get()) else { panic!("it is an application's") };
        let name = |round: usize| std::ffi::CString::new(format!("round {round}")).unwrap();
        let mut round = 0;
        // Until some of the cancellations took effect.
        while round < ROUNDS || cancelled.load(Ordering::Relaxed) == 0 {
            // SAFETY: this thread alone edits the request, which is live; the server has it between the stores.
            unsafe {
                let own = name(round);
                assert_eq!(text_of(TRITONSERVER_InferenceRequestSetId(shared.get(), own.as_ptr())), "");
                assert_eq!(text_of(TRITONSERVER_InferenceRequestSetFlags(shared.get(), 1)), "");
                let mut id = std::ptr::null();
                assert_eq!(text_of(TRITONSERVER_InferenceRequestId(shared.get(), &mut id)), "");
                assert_eq!(CStr::from_ptr(id), &*own);
                *(*at).call() = Some(Arc::new(Sent::default()));
                (*at).is_with_server.store(true, Ordering::Release);
                let error = text_of(TRITONSERVER_InferenceRequestSetFlags(shared.get(), 2));
                assert!(error.ends_with("it cannot be changed or deleted before it is released"), "{error}");
                (*at).is_with_server.store(false, Ordering::Release);
            }
            round += 1;
        }
        is_over.store(true, Ordering::Release);
    });
    // SAFETY: no thread uses it any more.
    assert_eq!(text_of(unsafe { TRITONSERVER_InferenceRequestDelete(shared.get()) }), "");
}

unsafe extern "C-unwind" fn allocate(
    _allocator: *mut ResponseAllocator,
    _name: *const c_char,
    _byte_size: usize,
    _memory_type: u32,
    _memory_type_id: i64,
    _userp: *mut c_void,
    _buffer: *mut *mut c_void,
    _buffer_userp: *mut *mut c_void,
    _actual_memory_type: *mut u32,
    _actual_memory_type_id: *mut i64,
) -> *mut Error {
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn release(
    _allocator: *mut ResponseAllocator,
    _buffer: *mut c_void,
    _buffer_userp: *mut c_void,
    _byte_size: usize,
    _memory_type: u32,
    _memory_type_id: i64,
) -> *mut Error {
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn query(
    _allocator: *mut ResponseAllocator,
    _userp: *mut c_void,
    _name: *const c_char,
    _byte_size: *mut usize,
    _memory_type: *mut u32,
    _memory_type_id: *mut i64,
) -> *mut Error {
    std::ptr::null_mut()
}

unsafe extern "C-unwind" fn complete(_response: *mut InferenceResponse, _flags: u32, _userp: *mut c_void) {}

#[test]
fn requests_of_several_threads_share_an_allocator_that_changes() {
    let mut made = std::ptr::null_mut();
    // SAFETY: the result is writable, and the functions are there for ever.
    let error = unsafe { TRITONSERVER_ResponseAllocatorNew(&mut made, Some(allocate), Some(release), None) };
    assert_eq!(text_of(error), "");
    let shared = Shared(made);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let request = new_request();
                for _ in 0..ROUNDS {
                    // SAFETY: the request is this thread's alone, the allocator is live until the scope ends.
                    unsafe {
                        let answered = TRITONSERVER_InferenceRequestSetResponseCallback(
                            request,
                            shared.get(),
                            std::ptr::null_mut(),
                            Some(complete),
                            std::ptr::null_mut(),
                        );
                        assert_eq!(text_of(answered), "");
                        // As each send does.
                        assert!(edited(request).unwrap().answer.unwrap().request_allocator.renewed().is_ok());
                    }
                }
                // SAFETY: as above; it is used no more.
                assert_eq!(text_of(unsafe { TRITONSERVER_InferenceRequestDelete(request) }), "");
            });
        }
        for round in 0..ROUNDS {
            let function: Option<crate::abi::server::allocators::QueryFn> = (round % 2 == 0).then_some(query);
            // SAFETY: the allocator is live.
            let error = unsafe { TRITONSERVER_ResponseAllocatorSetQueryFunction(shared.get(), function) };
            assert_eq!(text_of(error), "");
        }
    });
    // SAFETY: no request uses it any more.
    assert_eq!(text_of(unsafe { TRITONSERVER_ResponseAllocatorDelete(shared.get()) }), "");
}
