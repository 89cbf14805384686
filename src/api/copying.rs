//! Inputs in shared memory on their way to the model, and what of them is copied first.
//!
//! A tensor of numbers is read where its client put it. Strings are copied before they are checked: their lengths are
//! among their bytes, which the client may still change, and models of other makers trust lengths that were checked
//! once. Numbers that begin where no number of their size may begin are copied too; alignment beyond that is not owed
//! (Triton passes such pointers on as they are), and would cost the copy that shared memory is there to save. Long
//! copies are made in portions, so that a turn stays short.

use smallvec::SmallVec;

use super::Api;
use super::calls::{Peer, Work};
use super::delays::PutOff;
use super::preparing::Prepared;
use nereid_memory::{BlockMut, Pool, Slice};
use nereid_protocol::service::{Replies, Token};
use nereid_request::shared::COPIED_AT_ONCE;
use nereid_request::{DataType, InputTensor, Status};

/// A request some of whose inputs are still to be copied.
pub struct Copying {
    to: PutOff,
    /// The input that is being copied.
    index: usize,
    block: Option<BlockMut>,
}

/// Whether the input has to be copied: see the [module](self).
fn must_be_copied(input: &InputTensor) -> bool {
    let is_odd = |piece: &Slice| match input.datatype {
        DataType::Bytes => true,
        datatype => !piece.is_aligned_to(datatype.byte_size().next_power_of_two()),
    };
    input.data.iter().any(|piece| piece.is_in_region() && !piece.is_empty() && is_odd(piece))
}

impl Copying {
    /// Copies at most `budget` bytes; true when there are no more.
    fn step(&mut self, pool: &Pool, mut budget: usize) -> Result<bool, Status> {
        let request = &mut self.to.request;
        while let Some(input) = request.inputs.get_mut(self.index) {
            if self.block.is_none() && !must_be_copied(input) {
                self.index += 1;
                continue;
            }
            let [piece] = &input.data[..] else { return Err(Status::internal("a tensor in shared memory in pieces")) };
            let mut block = match self.block.take() {
                Some(block) => block,
                None => {
                    let mut block = pool.get(piece.len())?;
                    block.set_len(0);
                    block
                }
            };
            let from = block.len();
            let len = budget.min(piece.len().saturating_sub(from));
            block.append(piece.get(from..from + len).unwrap_or_default());
            budget -= len;
            if block.len() < piece.len() {
                self.block = Some(block);
                return Ok(false);
            }
            input.data = SmallVec::from_elem(block.freeze(), 1);
            self.index += 1;
        }
        Ok(true)
    }
}

impl Api {
    /// Hands in a request that has something in shared memory. On refusal the token is still there.
    pub(super) fn submit_shared(&mut self, token: Token, to: PutOff) -> Result<(), Status> {
        let due = to.request.inputs.iter().filter(|input| must_be_copied(input)).map(InputTensor::byte_size);
        let due = due.fold(0, usize::saturating_add);
        let mut copying = Copying { to, index: 0, block: None };
        let at_once = due <= COPIED_AT_ONCE;
        if due > 0
            && at_once
            && let Err(status) = copying.step(&self.pool, usize::MAX)
        {
            copying.to.request.withdraw();
            return Err(status);
        }
        if at_once {
            return self.submit_copied(token, copying.to);
        }
        let peer = copying.to.peer;
        self.calls.prepare(token, peer, Work::Copying(Box::new(copying)));
        Ok(())
    }

    fn submit_copied(&mut self, token: Token, to: PutOff) -> Result<(), Status> {
        let PutOff { peer, model, mut request, form } = to;
        // What was copied from a region that had lost something is not what its client sent.
        if let Some(Err(status)) = request.shared.as_ref().map(|shared| shared.check()) {
            request.withdraw();
            return Err(status);
        }
        request.share();
        self.submit(token, peer, model, request, form)
    }

    /// Copies on, and hands the request in when that is done.
    pub(super) fn copy_on(&mut self, key: u64, mut copying: Box<Copying>, replies: &mut Replies) {
        let prepared = Prepared::of(&copying.to);
        let outcome = match copying.step(&self.pool, COPIED_AT_ONCE) {
            Ok(false) => {
                self.calls.put_off_work(key, Work::Copying(copying));
                return;
            }
            Ok(true) => {
                self.end_preparing(&prepared);
                self.submit_copied(Token(key), copying.to)
            }
            Err(status) => {
                self.end_preparing(&prepared);
                copying.to.request.withdraw();
                Err(status)
            }
        };
        self.prepared(key, &prepared, outcome, replies);
    }
}

impl Copying {
    pub fn peer(&self) -> Peer {
        self.to.peer
    }

    /// Nobody waits for it any more.
    pub fn withdraw(self) {
        self.to.request.withdraw();
    }
}
