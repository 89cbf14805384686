//! `StreamCoreMetrics`: load reports out of band, the first at once and each further one after an interval.
//!
//! A client that does not read gets no further report until it has read the last one. A stream ends with its client,
//! and with the server, and where no request comes within [`REQUEST_NS`]: while it lives it is looked at every
//! [`LOOK_EACH_NS`].

use std::rc::Rc;

use super::message;
use crate::api::calls::Calls;
use crate::api::calls::work::Work;
use crate::api::error;
use crate::api::facts::ServerState;
use crate::api::infer_context::InferContext;
use nereid_clock::now_ns;
use nereid_memory::Gather;
use nereid_protocol::grpc::{self, Code, Encoder, Message, Mode};
use nereid_protocol::service::{CallKey, GrpcPlan, GrpcReply, GrpcStatus, Replies, Token};
use nereid_request::Status;
use nereid_wire::xds::service::orca::v3::OrcaLoadReportRequest;

/// The number of the method, beside those of the inference service.
pub const METHOD: u8 = u8::MAX - 1;
/// For reflection.
pub const SERVICE: &str = "xds.service.orca.v3.OpenRcaService";
const PATH: &[u8] = b"/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// Streams of one shard.
const STREAMS_MAX: usize = 1024;
const LOOK_EACH_NS: u64 = 500_000_000;
/// How long a stream may hold its place without a request.
const REQUEST_NS: u64 = 10_000_000_000;
/// How early a look may come.
const EARLY_NS: u64 = 50_000_000;
/// The shortest interval, that of a client that names none, and the longest.
const INTERVAL_NS_MIN: u64 = 100_000_000;
const INTERVAL_NS_USUAL: u64 = 10_000_000_000;
const INTERVAL_S_MAX: i64 = 86_400;

/// How the call takes its request, if it is one.
pub fn plan(path: &[u8]) -> Option<GrpcPlan> {
    (path == PATH).then(|| {
        let mut plan = GrpcPlan::new(METHOD, Mode::Collect);
        plan.streaming = true;
        plan
    })
}

/// One open stream.
pub struct LoadStream {
    call: CallKey,
    /// As soon as the client has sent it.
    interval_ns: Option<u64>,
    /// When the next report is due; before there is a request, when that is.
    due_ns: u64,
    /// When the stream is looked at again. A look before that is one that this replaced.
    look_ns: u64,
    /// Bytes of reports that the client has not taken.
    unsent: usize,
    /// Counts the streams of the shard.
    _place: Rc<()>,
}

/// The part of one shard's service that serves such streams.
#[derive(Default)]
pub struct LoadStreams {
    encoder: Encoder,
    places: Rc<()>,
}

/// What the client asks for, within the bounds.
fn interval_ns(request: &OrcaLoadReportRequest) -> u64 {
    let Some(interval) = &request.report_interval else { return INTERVAL_NS_USUAL };
    let seconds = interval.seconds.clamp(0, INTERVAL_S_MAX).unsigned_abs() * 1_000_000_000;
    let nanos = if interval.seconds < 0 { 0 } else { interval.nanos.clamp(0, 999_999_999).unsigned_abs() };
    (seconds + u64::from(nanos)).max(INTERVAL_NS_MIN)
}

impl LoadStreams {
    /// A call begins. `None`: there are too many.
    pub fn begin(&self, calls: &mut Calls, call: CallKey) -> Option<Token> {
        if Rc::strong_count(&self.places) > STREAMS_MAX {
            return None;
        }
        let now = now_ns();
        let (due_ns, look_ns) = (now.saturating_add(REQUEST_NS), now.saturating_add(LOOK_EACH_NS));
        let place = Rc::clone(&self.places);
        let stream = LoadStream { call, interval_ns: None, due_ns, look_ns, unsent: 0, _place: place };
        let token = calls.new_work(Work::LoadStream(Box::new(stream))).ok()?;
        calls.revisit_at(look_ns, token.0);
        Some(token)
    }

    /// The request is there: the first report goes out.
    pub fn message(&mut self, context: &mut InferContext, token: Token, message: Message, replies: &mut Replies) {
        let request = match message {
            Message::Collected(message) => grpc::decode::<OrcaLoadReportRequest>(message)
                .map_err(|_| GrpcStatus::new(Code::Internal, "Unable to parse request")),
            Message::Compressed(..) | Message::Infer(_) => {
                Err(error::grpc_status(Status::unsupported("streams of load reports take no compressed messages")))
            }
        };
        let Some(stream) = context.calls.load_stream(token) else { return };
        let request = match request {
            Ok(_) if stream.interval_ns.is_some() => {
                Err(GrpcStatus::new(Code::InvalidArgument, "a stream of load reports takes one request"))
            }
            request => request,
        };
        match request {
            Ok(request) => {
                (stream.interval_ns, stream.due_ns, stream.look_ns) = (Some(interval_ns(&request)), now_ns(), 0);
                self.go_on(context, token.0, replies);
            }
            Err(status) => end(&mut context.calls, token, status, replies),
        }
    }

    /// Sends the report that is due, if the last one was taken.
    pub fn go_on(&mut self, context: &mut InferContext, key: u64, replies: &mut Replies) {
        let token = Token(key);
        if context.facts.state() == ServerState::Exiting {
            return end(&mut context.calls, token, GrpcStatus::ok(), replies);
        }
        let now = now_ns();
        let Some(stream) = context.calls.load_stream(token) else { return };
        if now.saturating_add(EARLY_NS) < stream.look_ns {
            return;
        }
        let look_ns = now.saturating_add(LOOK_EACH_NS);
        let Some(interval_ns) = stream.interval_ns else {
            if stream.due_ns <= now {
                let status = GrpcStatus::new(Code::InvalidArgument, "a stream of load reports needs a request");
                return end(&mut context.calls, token, status, replies);
            }
            stream.look_ns = look_ns;
            return context.calls.revisit_at(look_ns, key);
        };
        if stream.due_ns > look_ns {
            stream.look_ns = look_ns;
            return context.calls.revisit_at(look_ns, key);
        }
        // The next report shall be of the time when it is sent.
        let report = context.load_reports.newest();
        let Some(stream) = context.calls.load_stream(token) else { return };
        if stream.due_ns <= now {
            stream.due_ns = now.saturating_add(interval_ns);
            if let Some(report) = report.filter(|_| stream.unsent == 0) {
                let (mut framed, call) = (Gather::new(), stream.call);
                if self.encoder.message(&message(&report), &context.pool, &mut framed).is_ok() {
                    stream.unsent = framed.len();
                    replies.push(call, GrpcReply::Message(framed));
                }
            }
        }
        stream.look_ns = stream.due_ns.min(look_ns);
        let look_ns = stream.look_ns;
        context.calls.revisit_at(look_ns, key);
    }
}

/// All but so many bytes of reports are out.
pub fn unsent(calls: &mut Calls, token: Token, unsent: usize) {
    if let Some(stream) = calls.load_stream(token) {
        stream.unsent = unsent;
    }
}

/// The client sends nothing more: without a request there is nothing to report.
pub fn half_closed(calls: &mut Calls, token: Token, replies: &mut Replies) {
    if calls.load_stream(token).is_some_and(|stream| stream.interval_ns.is_none()) {
        let status = GrpcStatus::new(Code::InvalidArgument, "a stream of load reports needs a request");
        end(calls, token, status, replies);
    }
}

fn end(calls: &mut Calls, token: Token, status: GrpcStatus, replies: &mut Replies) {
    if let Some(Work::LoadStream(stream)) = calls.end_work(token.0) {
        replies.push(stream.call, GrpcReply::End(status));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_wire::Duration;

    #[test]
    fn an_interval_has_bounds() {
        let of = |seconds: i64, nanos: i32| {
            let report_interval = Some(Duration { seconds, nanos });
            interval_ns(&OrcaLoadReportRequest { report_interval, ..OrcaLoadReportRequest::default() })
        };
        assert_eq!(interval_ns(&OrcaLoadReportRequest::default()), INTERVAL_NS_USUAL);
        let day = 86_400_000_000_000;
        for (seconds, nanos, expected) in [
            (0, 0, INTERVAL_NS_MIN),
            (-1, 0, INTERVAL_NS_MIN),
            (i64::MIN, i32::MIN, INTERVAL_NS_MIN),
            (0, -5, INTERVAL_NS_MIN),
            (-1, 999_999_999, INTERVAL_NS_MIN),
            (0, 99_999_999, INTERVAL_NS_MIN),
            (0, 250_000_000, 250_000_000),
            (1, 500_000_000, 1_500_000_000),
            (i64::MAX, i32::MAX, day + 999_999_999),
        ] {
            assert_eq!(of(seconds, nanos), expected, "{seconds} {nanos}");
        }
    }
}
