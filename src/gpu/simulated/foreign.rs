//! Work of other libraries on simulated devices.
//!
//! A library that computes on GPUs gets the pointer of a stream. Here that pointer leads to a [`StreamLink`]: a library
//! that was made for simulated devices, as the tests' stand-in for TensorRT is, calls its first member to enqueue a
//! function of its own. That work is ordered, delayed, recorded and checked as every other operation is. Addresses of
//! the device are addresses of the host.

use std::ffi::c_void;
use std::sync::{Arc, Weak};

use super::super::driver::StreamHandle;
use super::SimulatedCore;
use super::calls::submit;
use super::order::Span;
use super::work::{Task, Work};

/// The ranges that a launch may name.
const SPANS_MAX: usize = 4096;

/// A range of memory that a launch accesses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ForeignSpan {
    pub at: u64,
    pub len: u64,
    /// 0: it is read.
    pub writes: u64,
}

type LaunchFunction =
    unsafe extern "C" fn(*const c_void, ForeignFunction, ForeignFunction, *mut c_void, *const ForeignSpan, u64) -> i32;

/// Gets the argument of the launch.
pub type ForeignFunction = unsafe extern "C" fn(*mut c_void);

/// The memory behind the pointer of a simulated stream.
#[repr(C)]
pub struct StreamLink {
    /// Enqueues: the stream, the function, a function that frees its argument, the argument, ranges and their number.
    /// Returns 0, or the `CUresult` of the error. The argument is freed in any case, once, when no launch needs it.
    launch: LaunchFunction,
    shared: Weak<SimulatedCore>,
    device: usize,
    stream: u64,
}

impl StreamLink {
    pub(super) fn new(shared: &Arc<SimulatedCore>, device: usize, stream: u64) -> Box<StreamLink> {
        Box::new(StreamLink { launch: launch_foreign, shared: Arc::downgrade(shared), device, stream })
    }

    pub(super) fn as_ptr(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

impl std::fmt::Debug for StreamLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamLink({} of GPU {})", self.stream, self.device)
    }
}

/// A function of another library with its argument, which is freed when no operation or graph holds it.
pub(super) struct ForeignCall {
    function: ForeignFunction,
    free: ForeignFunction,
    argument: *mut c_void,
}

// SAFETY: by the contract of the launch, its functions may be called on any thread.
unsafe impl Send for ForeignCall {}
// SAFETY: as above; the driver runs one launch of a call at a time, because a stream or graph orders them.
unsafe impl Sync for ForeignCall {}

impl ForeignCall {
    /// # Safety
    /// The memory that the launch named is valid, and no other operation uses it meanwhile.
    pub unsafe fn run(&self) {
        // SAFETY: the library gave both for each other, and the memory is valid by the contract of this function.
        unsafe { (self.function)(self.argument) }
    }
}

impl Drop for ForeignCall {
    fn drop(&mut self) {
        // SAFETY: the library gave the function for this argument, which nothing uses any more.
        unsafe { (self.free)(self.argument) }
    }
}

impl std::fmt::Debug for ForeignCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForeignCall")
    }
}

/// # Safety
/// `link` is the pointer of a stream that is not destroyed, the functions take the argument on any thread, and `spans`
/// holds `count` ranges.
unsafe extern "C" fn launch_foreign(
    link: *const c_void,
    function: ForeignFunction,
    free: ForeignFunction,
    argument: *mut c_void,
    spans: *const ForeignSpan,
    count: u64,
) -> i32 {
    const CALL: &str = "cuLaunchKernel";
    let link = link.cast::<StreamLink>();
    let call = Arc::new(ForeignCall { function, free, argument });
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the pointer of a stream leads to its link until the stream is destroyed.
    let (shared, device, stream) = unsafe { ((*link).shared.upgrade(), (*link).device, (*link).stream) };
    let Some(shared) = shared.filter(|_| count <= SPANS_MAX) else { return super::fault::INVALID_HANDLE };
    let given = match count {
        0 => &[],
        // SAFETY: the caller has as many ranges there.
        _ => unsafe { std::slice::from_raw_parts(spans, count) },
    };
    let span =
        |span: &ForeignSpan| Span::new(span.at, usize::try_from(span.len).unwrap_or(usize::MAX), span.writes != 0);
    let task = Task {
        work: Work::Foreign(call),
        spans: given.iter().map(span).collect(),
        what: "a launch of another library",
    };
    let submitted = submit(&shared, CALL, device, StreamHandle(stream), task, |world, task| {
        world.counts.kernels += 1;
        task.spans.iter().try_for_each(|span| world.check_device_span(device, span, task.what))
    });
    submitted.map_or_else(|error| error.code, |()| 0)
}

#[cfg(test)]
mod tests {
    use super::super::super::driver::{DeviceAddress, Driver, EventOptions};
    use super::super::{Simulated, Spec};
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static FREED: AtomicUsize = AtomicUsize::new(0);

    struct Doubling {
        from: u64,
        to: u64,
    }

    unsafe extern "C" fn double(argument: *mut c_void) {
        // SAFETY: the argument of the test's launches.
        let doubling = unsafe { &*argument.cast::<Doubling>() };
        let (from, to) = (doubling.from as usize, doubling.to as usize);
        // SAFETY: the launch named both bytes.
        unsafe {
            let byte = std::ptr::with_exposed_provenance::<u8>(from).read();
            std::ptr::with_exposed_provenance_mut::<u8>(to).write(byte * 2);
        }
    }

    unsafe extern "C" fn free(argument: *mut c_void) {
        FREED.fetch_add(1, Ordering::SeqCst);
        // SAFETY: made by `Box::into_raw`, and freed once.
        drop(unsafe { Box::from_raw(argument.cast::<Doubling>()) });
    }

    fn launch(link: *const StreamLink, from: DeviceAddress, to: DeviceAddress) -> i32 {
        let argument = Box::into_raw(Box::new(Doubling { from: from.0, to: to.0 })).cast();
        let spans = [ForeignSpan { at: from.0, len: 1, writes: 0 }, ForeignSpan { at: to.0, len: 1, writes: 1 }];
        // SAFETY: the stream lives, and the functions take the argument.
        unsafe { ((*link).launch)(link.cast(), double, free, argument, spans.as_ptr(), 2) }
    }

    #[test]
    fn a_library_enqueues_work_that_is_ordered_recorded_and_checked() {
        let driver = Simulated::new(Spec::parse("1;seed=5;delay-us=20").unwrap());
        let stream = driver.create_stream(0).unwrap();
        let link = driver.stream_pointer(stream).cast::<StreamLink>().cast_const();
        let event = driver.create_event(0, EventOptions::default()).unwrap();
        let at: Vec<DeviceAddress> = (0..3).map(|_| driver.allocate(0, 1).unwrap()).collect();
        // SAFETY: all memory lives until the end of the test.
        unsafe { driver.copy_in(0, stream, at[0], [21u8].as_ptr(), 1).unwrap() };
        let recorded = || driver.record(0, event, stream).and_then(|()| driver.synchronize(0, event));
        recorded().unwrap();
        assert_eq!((launch(link, at[0], at[1]), launch(link, at[1], at[2])), (0, 0));
        driver.begin_capture(0, stream).unwrap();
        assert_eq!(launch(link, at[2], at[2]), 0);
        let graph = driver.end_capture(0, stream).unwrap();
        let mut result = 0u8;
        // SAFETY: the buffers and the result live until the end of the test.
        unsafe { driver.copy_out(0, stream, &mut result, at[2], 1).unwrap() };
        recorded().unwrap();
        assert_eq!((result, FREED.load(Ordering::SeqCst)), (84, 2), "the graph holds the third");
        // SAFETY: the buffers and the result live until the end of the test.
        unsafe {
            driver.launch_graph(0, stream, graph).unwrap();
            driver.copy_out(0, stream, &mut result, at[2], 1).unwrap();
        }
        recorded().unwrap();
        // SAFETY: nothing uses it any more.
        unsafe { driver.destroy_graph(0, graph) };
        assert_eq!((result, FREED.load(Ordering::SeqCst)), (168, 3));
        assert_eq!(driver.violations(), Vec::<String>::new());
        assert_ne!(launch(link, at[0], DeviceAddress(64)), 0, "memory that was never allocated");
        assert_eq!(driver.violations().len(), 1);
    }
}
