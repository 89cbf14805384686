//! What is done with a request in steps before its model gets it: copies out of shared memory, checks of many strings.
//!
//! Requests of a stream keep their order: those behind one that is being prepared wait in the stream's inbox.

use super::calls::Peer;
use super::delays::PutOff;
use super::dialect::Dialect;
use super::{Api, error};
use nereid_protocol::service::{GrpcReply, Replies, Token};
use nereid_request::{Status, Text};

/// What is to be known of a request once it is handed in, or refused.
pub(super) struct Prepared {
    peer: Peer,
    dialect: Dialect,
    id: Text,
    decoupled: bool,
}

impl Prepared {
    pub fn of(to: &PutOff) -> Prepared {
        let (id, decoupled) = (to.request.id.clone(), to.model.spec.decoupled);
        Prepared { peer: to.peer, dialect: to.form.dialect, id, decoupled }
    }
}

impl Api {
    /// The request is ready to be handed in, or refused: what is behind it on its stream may come.
    pub(super) fn end_preparing(&mut self, prepared: &Prepared) {
        self.calls.hold_stream(prepared.peer, false);
    }

    /// Goes on with the stream of a request that was handed in; answers one that was refused.
    pub(super) fn prepared(
        &mut self,
        key: u64,
        prepared: &Prepared,
        outcome: Result<(), Status>,
        replies: &mut Replies,
    ) {
        let Prepared { peer, dialect, id, decoupled } = prepared;
        match (*peer, outcome) {
            (Peer::Stream(stream), Ok(())) => self.drive_stream(stream, replies),
            (_, Ok(())) => {}
            (Peer::Http(call), Err(status)) => self.refuse_http(key, call, *dialect, &status, replies),
            (Peer::Grpc(call), Err(status)) => {
                self.calls.end_work(key);
                replies.push(call, GrpcReply::End(error::grpc_status(status)));
            }
            (Peer::Stream(stream), Err(status)) => {
                self.calls.end_work(key);
                self.refuse_streamed(stream, Token(key), id, &status, *decoupled, replies);
            }
        }
    }
}
