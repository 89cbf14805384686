//! Containment of panics in the service of a shard: a panic over one call ends that call with an internal error, and
//! what it leaves in the tables is removed (docs/design.md, "Panics").

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::awaiting::ParkedCall;
use super::calls::Calls;
use super::calls::reply_to::ReplyTo;
use super::calls::work::Work;
use nereid_protocol::service::{Panicked, Token};

/// Runs what concerns one call. `None`: it panicked.
#[inline]
pub fn contained<R>(run: impl FnOnce() -> R) -> Option<R> {
    // The tables change in whole steps; what a closure has taken out of them is dropped, and a request that is dropped
    // without an answer gets an error.
    catch_unwind(AssertUnwindSafe(run)).ok()
}

impl From<ReplyTo> for Panicked {
    fn from(reply_to: ReplyTo) -> Panicked {
        match reply_to {
            ReplyTo::Http(call) | ReplyTo::Grpc(call) => Panicked::Call(call),
            ReplyTo::Stream(token) | ReplyTo::OpenAi(token, _) => Panicked::Work(token),
        }
    }
}

impl Calls {
    /// What the client behind this work waits for; read before code runs that may panic and lose the work.
    #[inline]
    pub fn waits_for(&mut self, key: u64) -> Option<Panicked> {
        Some(match self.work_mut(key)? {
            Work::Reserved | Work::Left(_) => return None,
            Work::UnpackingBody(packed) => Panicked::Call(packed.call),
            Work::UnpackingCall(packed) => Panicked::Call(packed.call),
            Work::Decoding { call, .. } | Work::Encoding { call, .. } => Panicked::Call(*call),
            Work::Copying(copying) => copying.reply_to().into(),
            Work::Checking(checking) => checking.reply_to().into(),
            Work::Delayed(pending) => pending.reply_to.into(),
            Work::Waiting(waiting) => waiting.reply_to.into(),
            Work::ChunkedReply(_) | Work::Stream(_) | Work::Reflection(_) | Work::LoadStream(_) | Work::OpenAi(_) => {
                Panicked::Work(Token(key))
            }
            Work::Packing(answer) => Panicked::Call(answer.call()),
            Work::AwaitingModel(awaiting) => match &awaiting.call {
                ParkedCall::HttpInfer(http, _) | ParkedCall::Generate { http, .. } => Panicked::Call(http.call),
                ParkedCall::Grpc(grpc) => Panicked::Call(grpc.call),
                ParkedCall::HttpQuery { call, .. } | ParkedCall::GrpcQuery { call, .. } => Panicked::Call(*call),
                ParkedCall::Streamed { stream, .. } => Panicked::Work(*stream),
            },
        })
    }

    /// After a panic over a response: what the client of its request waits for.
    #[cold]
    pub fn waited_for(&mut self, key: u64) -> Option<Panicked> {
        let taken = self.taken.take();
        self.waits_for(key).or(taken.map(Panicked::from))
    }

    /// After a panic over this work: ends it, and what it was about to become. `is_over`: its model sends no more.
    #[cold]
    pub fn abandon(&mut self, key: u64, is_over: bool) {
        self.end_issued();
        match self.work_mut(key) {
            Some(Work::Waiting(_)) if is_over => drop(self.end_waiting(key)),
            Some(Work::Left(_)) if is_over => drop(self.end_work(key)),
            Some(Work::Left(_)) | None => {}
            Some(_) => self.cancel(key),
        }
    }

    /// After a panic over a call: no work followed the token that was issued last.
    #[cold]
    pub fn end_issued(&mut self) {
        if let Some(key) = self.take_issued()
            && matches!(self.work_mut(key), Some(Work::Reserved))
        {
            self.end_work(key);
        }
    }
}
