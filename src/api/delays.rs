//! Delays of gRPC inference that tests ask for by environment variables (grpc.md section 7, "Debug env").
//!
//! Triton sleeps in its handlers. A shard never sleeps: what is to be late is put off by a timer, and comes back by
//! mail.

use std::rc::Rc;
use std::sync::Arc;

use super::infer::AnswerForm;
use super::waiting::{Peer, Timed, Work};
use super::{Api, Mail, error};
use crate::protocol::service::{Replies, Reply, Token};
use crate::repository::ServedModel;
use crate::request::{Delivery, Home, Request, now_ns};

/// How late things are, in nanoseconds; 0 is not at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delays {
    /// Requests on their way to their scheduler.
    pub request_ns: u64,
    /// Responses on their way to their client.
    pub response_ns: u64,
    /// The news that nobody waits any more.
    pub cancellation_ns: u64,
}

/// One day: more is a mistake.
const MS_MAX: u64 = 24 * 60 * 60 * 1000;

impl Delays {
    pub fn of_process() -> Delays {
        Delays::read(|name| std::env::var(name).ok())
    }

    fn read(get: impl Fn(&str) -> Option<String>) -> Delays {
        let number = |name: &str| get(name).and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        let ms = |names: &[&str]| {
            let sum: u64 =
                names.iter().map(|name| number(&format!("TRITONSERVER_DELAY_{name}"))).fold(0, u64::saturating_add);
            sum.min(MS_MAX)
        };
        let response_s = number("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC").min(MS_MAX / 1000);
        let response_ms = ms(&["GRPC_RESPONSE", "RESPONSE_COMPLETE_EXEC", "RESPONSE_COMPLETION", "GRPC_COMPLETE"]);
        Delays {
            request_ns: ms(&["GRPC_PROCESS_ENTRY", "GRPC_PROCESS", "GRPC_ENQUEUE"]) * 1_000_000,
            response_ns: (response_ms + response_s * 1000) * 1_000_000,
            cancellation_ns: ms(&["GRPC_NOTIFICATION"]) * 1_000_000,
        }
    }
}

/// Something whose time has come.
pub enum Late {
    Submit { key: u64 },
    Delivered { key: u64, delivery: Box<Delivery> },
    Cancelled { key: u64 },
}

/// A request that goes to its scheduler later.
pub struct PutOff {
    pub peer: Peer,
    pub model: Arc<ServedModel>,
    pub request: Box<Request>,
    pub form: Rc<AnswerForm>,
}

impl Api {
    pub(super) fn put_off(&mut self, by_ns: u64, late: Late) {
        let post = Arc::clone(&self.post);
        let job = move |_: &mut dyn Home| post(Mail::Late(late));
        self.time(now_ns().saturating_add(by_ns), Timed::Job(Box::new(job)));
    }

    /// True of work for a gRPC client that is on its way.
    pub(super) fn is_grpc(&mut self, key: u64) -> bool {
        match self.work_mut(key) {
            Some(Work::Waiting(waiting)) => !matches!(waiting.peer, Peer::Http(_)),
            Some(Work::Stream(_)) => true,
            _ => false,
        }
    }

    pub(super) fn late(&mut self, late: Late, replies: &mut Replies) {
        match late {
            Late::Delivered { key, delivery } => self.delivered_now(key, *delivery, replies),
            Late::Cancelled { key } => self.cancel(key),
            Late::Submit { key } => self.submit_late(key, replies),
        }
    }

    fn submit_late(&mut self, key: u64, replies: &mut Replies) {
        let Some(place @ Work::PutOff(_)) = self.work_mut(key) else { return };
        let Work::PutOff(put_off) = std::mem::replace(place, Work::Reserved) else { return };
        let PutOff { peer, model, request, form } = *put_off;
        let (id, decoupled) = (request.id.clone(), model.spec.decoupled);
        let Err(status) = self.submit_now(Token(key), peer, model, request, form) else { return };
        self.end_work(key);
        match peer {
            Peer::Stream(stream) => {
                self.refuse_streamed(stream, Token(key), &id, &status, decoupled, replies);
            }
            Peer::Grpc(call) => replies.push(call, Reply::GrpcEnd(error::grpc_status(status))),
            Peer::Http(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_add_up() {
        let read = |given: &[(&str, &str)]| {
            Delays::read(|name| given.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(read(&[]), Delays::default());
        let delays = read(&[
            ("TRITONSERVER_DELAY_GRPC_RESPONSE", "5"),
            ("TRITONSERVER_DELAY_RESPONSE_COMPLETION", "7"),
            ("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC", "1"),
            ("TRITONSERVER_DELAY_GRPC_ENQUEUE", "2"),
            ("TRITONSERVER_DELAY_GRPC_PROCESS", "3"),
            ("TRITONSERVER_DELAY_GRPC_NOTIFICATION", "4"),
        ]);
        let expected = Delays { request_ns: 5_000_000, response_ns: 1_012_000_000, cancellation_ns: 4_000_000 };
        assert_eq!(delays, expected);
        assert_eq!(read(&[("TRITONSERVER_DELAY_GRPC_RESPONSE", "soon")]), Delays::default());
        let largest = read(&[("TRITONSERVER_DELAY_GRPC_RESPONSE", "18446744073709551615")]);
        assert_eq!(largest.response_ns, MS_MAX * 1_000_000);
    }
}
