//! Objects of the server as values: who owns one gives it back when it goes.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

use crate::error::{Code, Error};
use crate::ffi::{self, Handle, check, tell};
use crate::{DataType, now_ns};

/// When an execution began, had its inputs, had its outputs, and ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    pub exec_start_ns: u64,
    pub compute_start_ns: u64,
    pub compute_end_ns: u64,
    pub exec_end_ns: u64,
}

/// When a response was begun, when its outputs were (if it had any), and when it was sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResponseTimes {
    pub start_ns: u64,
    pub output_start_ns: Option<u64>,
    pub end_ns: u64,
}

/// The server's side of an instance, which statistics are told to.
#[derive(Debug, Clone, Copy)]
pub struct Instance(Handle);

// SAFETY: statistics may be told from any thread, and the server keeps the instance until it was finalised, which ends
// the life of the `Backend` that holds this.
unsafe impl Send for Instance {}

impl Instance {
    pub(crate) fn new(handle: Handle) -> Instance {
        Instance(handle)
    }

    /// Tells that an execution of `rows` items of a batch was done.
    pub fn report_batch(&self, rows: u64, times: &Times) {
        let Times { exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns } = *times;
        // SAFETY: the instance lives.
        tell(check(unsafe {
            ffi::TRITONBACKEND_ModelInstanceReportBatchStatistics(
                self.0,
                rows,
                exec_start_ns,
                compute_start_ns,
                compute_end_ns,
                exec_end_ns,
            )
        }));
    }
}

/// A request that this backend has to answer and to give back.
///
/// It is answered by its [`Responder`], which may live longer. Dropping it gives it back to the server. One that is
/// dropped before a responder was made is answered with an error, so that no client waits in vain.
#[derive(Debug)]
pub struct Request {
    handle: Handle,
    has_responder: bool,
}

// SAFETY: the owner may use and release a request on any thread.
unsafe impl Send for Request {}

impl Request {
    /// # Safety
    /// The server gave the request with an execution, and nobody else owns it.
    pub(crate) unsafe fn new(handle: Handle) -> Request {
        Request { handle, has_responder: false }
    }

    pub fn is_cancelled(&self) -> Result<bool, Error> {
        let mut is_cancelled = false;
        // SAFETY: the request lives, and the result can be written.
        check(unsafe { ffi::TRITONBACKEND_RequestIsCancelled(self.handle, &mut is_cancelled) })?;
        Ok(is_cancelled)
    }

    /// An input by its name; an error that names it where there is none.
    pub fn input(&self, name: &str) -> Result<Input<'_>, Error> {
        let (name, mut handle) = (ffi::c_string(name), null_mut());
        // SAFETY: the request lives, the name through the call, and the result can be written.
        check(unsafe { ffi::TRITONBACKEND_RequestInput(self.handle, name.as_ptr(), &mut handle) })?;
        Input::new(handle)
    }

    /// What answers this request, now or later and from any thread.
    pub fn responder(&mut self) -> Result<Responder, Error> {
        let mut handle = null_mut();
        // SAFETY: the request lives, and the result can be written.
        check(unsafe { ffi::TRITONBACKEND_ResponseFactoryNew(&mut handle, self.handle) })?;
        self.has_responder = true;
        Ok(Responder { handle, is_ended: false })
    }

    /// Counts the request. To be done once, before it is dropped.
    pub fn report(&self, instance: &Instance, success: bool, times: &Times) {
        let Times { exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns } = *times;
        // SAFETY: instance and request live.
        tell(check(unsafe {
            ffi::TRITONBACKEND_ModelInstanceReportStatistics(
                instance.0,
                self.handle,
                success,
                exec_start_ns,
                compute_start_ns,
                compute_end_ns,
                exec_end_ns,
            )
        }));
    }

    /// Counts the request as failed, answers it with the error and gives it back.
    pub fn fail(mut self, instance: &Instance, exec_start_ns: u64, error: Error) {
        let end_ns = now_ns();
        let times = Times { exec_start_ns, compute_start_ns: end_ns, compute_end_ns: end_ns, exec_end_ns: end_ns };
        self.report(instance, false, &times);
        match self.responder() {
            Ok(responder) => responder.fail(error),
            Err(error) => tell(Err(error)),
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.has_responder {
            match self.responder() {
                Ok(responder) => responder.fail(Error::internal("the backend gave the request back unanswered")),
                Err(error) => tell(Err(error)),
            }
        }
        // SAFETY: owned until now, and given up here.
        tell(check(unsafe { ffi::TRITONBACKEND_RequestRelease(self.handle, ffi::RELEASE_ALL) }));
    }
}

/// An input, which lives with its request.
#[derive(Debug)]
pub struct Input<'a> {
    handle: Handle,
    datatype: u32,
    shape: &'a [i64],
    bytes: usize,
    buffers: u32,
    /// The name is the server's text.
    name: String,
}

impl<'a> Input<'a> {
    fn new(handle: Handle) -> Result<Input<'a>, Error> {
        let (mut name, mut datatype, mut shape, mut rank) = (null(), 0, null(), 0);
        let (mut bytes, mut buffers) = (0, 0);
        // SAFETY: the input lives with its request, and the results can be written.
        check(unsafe {
            ffi::TRITONBACKEND_InputProperties(
                handle,
                &mut name,
                &mut datatype,
                &mut shape,
                &mut rank,
                &mut bytes,
                &mut buffers,
            )
        })?;
        // SAFETY: a text of the server that lives with the request.
        let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: numbers of the server that live with the request; NULL may stand for none.
        let shape = if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(shape, rank as usize) } };
        let bytes = usize::try_from(bytes).map_err(|_| Error::internal("an input beyond the size of memory"))?;
        Ok(Input { handle, datatype, shape, bytes, buffers, name })
    }

    pub fn shape(&self) -> &'a [i64] {
        self.shape
    }

    /// The elements' bytes: borrowed where they lie in one piece, else copied together.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>, Error> {
        if self.buffers == 1 {
            return Ok(Cow::Borrowed(self.piece(0)?));
        }
        let mut gathered = Vec::with_capacity(self.bytes);
        for index in 0..self.buffers {
            gathered.extend_from_slice(self.piece(index)?);
        }
        Ok(Cow::Owned(gathered))
    }

    /// The elements of a type of four bytes.
    pub fn words(&self, datatype: DataType) -> Result<Vec<[u8; 4]>, Error> {
        if self.datatype != datatype as u32 {
            let (name, expected) = (&self.name, datatype.config_name());
            return Err(Error::invalid(format!("expected {name} datatype to be {expected}")));
        }
        Ok(self.bytes()?.as_chunks::<4>().0.to_vec())
    }

    fn piece(&self, index: u32) -> Result<&'a [u8], Error> {
        let (mut buffer, mut bytes) = (null(), 0);
        // In: what is preferred. Out: what it is.
        let (mut memory_type, mut memory_type_id) = (ffi::MEMORY_CPU, 0);
        // SAFETY: the input lives, and the results can be written.
        check(unsafe {
            ffi::TRITONBACKEND_InputBuffer(
                self.handle,
                index,
                &mut buffer,
                &mut bytes,
                &mut memory_type,
                &mut memory_type_id,
            )
        })?;
        if memory_type != ffi::MEMORY_CPU && memory_type != ffi::MEMORY_CPU_PINNED {
            let text = format!("input '{}' lies in memory of a device, which this backend cannot read", self.name);
            return Err(Error::new(Code::Unsupported, text));
        }
        if bytes == 0 {
            return Ok(&[]);
        }
        let bytes = usize::try_from(bytes).map_err(|_| Error::internal("an input beyond the size of memory"))?;
        // SAFETY: so many bytes of host memory, which live and do not change until the request is released.
        Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), bytes) })
    }
}

/// Answers a request: with responses, and then with an end. It may outlive the request and go to other threads.
///
/// One that is dropped without an end ends its request.
#[derive(Debug)]
pub struct Responder {
    handle: Handle,
    is_ended: bool,
}

// SAFETY: the owner may use a factory on any thread.
unsafe impl Send for Responder {}

impl Responder {
    pub fn is_cancelled(&self) -> Result<bool, Error> {
        let mut is_cancelled = false;
        // SAFETY: the factory lives, and the result can be written.
        check(unsafe { ffi::TRITONBACKEND_ResponseFactoryIsCancelled(self.handle, &mut is_cancelled) })?;
        Ok(is_cancelled)
    }

    /// A new response, to be filled and sent.
    pub fn response(&self) -> Result<Response<'_>, Error> {
        let mut handle = null_mut();
        // SAFETY: the factory lives, and the result can be written.
        check(unsafe { ffi::TRITONBACKEND_ResponseNewFromFactory(&mut handle, self.handle) })?;
        Ok(Response { handle, of: PhantomData })
    }

    /// Counts one response, in their order: sent, failed or cancelled as the error says; empty without times of
    /// outputs.
    pub fn report(&self, instance: &Instance, times: &ResponseTimes, error: Option<&Error>) {
        let mut statistics = null_mut();
        // SAFETY: instance and factory live, the statistics are ours from here to their deletion, and the error stays
        // ours.
        tell(ffi::with_raised(error, |error| unsafe {
            check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsNew(&mut statistics))?;
            let told =
                check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance.0))
                    .and_then(|()| {
                        check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
                            statistics,
                            self.handle,
                        ))
                    })
                    .and_then(|()| {
                        check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
                            statistics,
                            times.start_ns,
                        ))
                    })
                    .and_then(|()| match times.output_start_ns {
                        Some(start_ns) => {
                            check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
                                statistics, start_ns,
                            ))
                        }
                        None => Ok(()),
                    })
                    .and_then(|()| {
                        check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
                            statistics,
                            times.end_ns,
                        ))
                    })
                    .and_then(|()| check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, error)))
                    .and_then(|()| check(ffi::TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics)));
            let deleted = check(ffi::TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
            told.and(deleted)
        }));
    }

    /// Nothing comes any more.
    pub fn end(mut self) {
        self.send_end();
    }

    /// Ends with an error.
    pub fn fail(mut self, error: Error) {
        let sent = self.response().map(|response| response.send_with(ffi::FINAL, Some(&error)));
        // Without a response to carry the error, the end comes when this is dropped.
        self.is_ended = sent.is_ok();
        tell(sent);
    }

    fn send_end(&mut self) {
        self.is_ended = true;
        // SAFETY: the factory lives.
        tell(check(unsafe { ffi::TRITONBACKEND_ResponseFactorySendFlags(self.handle, ffi::FINAL) }));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.is_ended {
            self.send_end();
        }
        // SAFETY: owned until now, and given up here.
        tell(check(unsafe { ffi::TRITONBACKEND_ResponseFactoryDelete(self.handle) }));
    }
}

/// A response that is being filled. Dropped unsent, it is deleted.
#[derive(Debug)]
pub struct Response<'a> {
    handle: Handle,
    of: PhantomData<&'a Responder>,
}

impl Response<'_> {
    /// Adds an output: its bytes are copied to where the server wants them.
    pub fn output(&mut self, name: &str, datatype: DataType, shape: &[i64], bytes: &[u8]) -> Result<(), Error> {
        let (name_text, name) = (name, ffi::c_string(name));
        let (mut output, mut buffer): (Handle, *mut c_void) = (null_mut(), null_mut());
        let rank = u32::try_from(shape.len()).map_err(|_| Error::internal("too many dimensions"))?;
        // SAFETY: the response lives, name and shape through the call, and the result can be written.
        check(unsafe {
            ffi::TRITONBACKEND_ResponseOutput(
                self.handle,
                &mut output,
                name.as_ptr(),
                datatype as u32,
                shape.as_ptr(),
                rank,
            )
        })?;
        let (mut memory_type, mut memory_type_id) = (ffi::MEMORY_CPU, 0);
        // SAFETY: the output lives with the response, and the results can be written.
        check(unsafe {
            ffi::TRITONBACKEND_OutputBuffer(
                output,
                &mut buffer,
                bytes.len() as u64,
                &mut memory_type,
                &mut memory_type_id,
            )
        })?;
        if bytes.is_empty() {
            return Ok(());
        }
        if memory_type != ffi::MEMORY_CPU && memory_type != ffi::MEMORY_CPU_PINNED {
            let text = format!("output '{name_text}' must be written to memory of a device, which this backend cannot");
            return Err(Error::new(Code::Unsupported, text));
        }
        // SAFETY: host memory of that size which nobody else uses before the response is sent.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
        Ok(())
    }

    /// Sends it; more may come.
    pub fn send(self) {
        self.send_with(0, None);
    }

    /// Sends an error in its place; more may come.
    pub fn send_error(self, error: &Error) {
        self.send_with(0, Some(error));
    }

    fn send_with(self, flags: u32, error: Option<&Error>) {
        let handle = self.handle;
        // The server takes it, whatever comes of it.
        std::mem::forget(self);
        // SAFETY: owned until now, and given up here; the error stays ours.
        tell(ffi::with_raised(error, |error| check(unsafe { ffi::TRITONBACKEND_ResponseSend(handle, flags, error) })));
    }
}

impl Drop for Response<'_> {
    fn drop(&mut self) {
        // SAFETY: owned until now, and given up here.
        tell(check(unsafe { ffi::TRITONBACKEND_ResponseDelete(self.handle) }));
    }
}
