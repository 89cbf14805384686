//! The calls of one connection while its requests come in, over HTTP/2 or a shared-memory ring: what the shard keeps of
//! each, entered in its table and its ledger. On the shard.

use std::rc::Rc;
use std::time::Duration;

use super::{Call, CallAddress};
use nereid_clock::now_ns;
use nereid_memory::{CallLedger, Key, RefusalReason, Slab};
use nereid_protocol::grpc::Exchanges;
use nereid_protocol::http2::StreamId;
use nereid_protocol::service::{CallKey, Token};
use nereid_shard::TimerKey;

/// The calls of a connection while its requests come in.
pub(super) struct OpenCalls<'a> {
    pub key: Key,
    pub table: &'a mut Slab<Call>,
    pub ledger: &'a Rc<CallLedger>,
    pub deadlines: &'a mut Vec<(CallKey, Duration)>,
    pub stopped_timers: &'a mut Vec<TimerKey>,
}

impl Exchanges for OpenCalls<'_> {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    #[inline]
    fn open(&mut self, stream: StreamId, deadline: Option<Duration>) -> Result<CallKey, RefusalReason> {
        let place = self.ledger.enter()?;
        let call = Call { connection: self.key, at: CallAddress::Grpc(stream), token: None, timer: None, place };
        let call = CallKey(self.table.insert(call).map_err(|_| RefusalReason::Calls)?.to_u64());
        if let Some(deadline) = deadline {
            self.deadlines.push((call, deadline));
        }
        Ok(call)
    }

    fn ledger(&self) -> &Rc<CallLedger> {
        self.ledger
    }

    #[inline]
    fn work(&mut self, call: CallKey) -> Option<&mut Option<Token>> {
        Some(&mut self.table.get_mut(Key::from_u64(call.0)?)?.token)
    }

    #[inline]
    fn close(&mut self, call: CallKey) -> Option<Token> {
        let call = self.table.remove(Key::from_u64(call.0)?)?;
        self.stopped_timers.extend(call.timer);
        call.token
    }
}
