//! Inputs in shared memory on their way to the model, and what of them is copied first.
//!
//! A tensor of numbers is read where its client put it. Strings are copied before they are checked: their lengths are
//! among their bytes, which the client may still change, and models of other makers trust lengths that were checked
//! once. Numbers that begin where no number of their size may begin are copied too; alignment beyond that is not owed
//! (Triton passes such pointers on as they are), and would cost the copy that shared memory is there to save. Long
//! copies are made in portions, so that a turn stays short.

use smallvec::SmallVec;

use super::pending_submit::{PendingSubmit, Prepared};
use super::reply_to::ReplyTo;
use nereid_memory::{BlockMut, Pool, Slice};
use nereid_request::{DataType, InputTensor, Status};

/// A request some of whose inputs are still to be copied.
pub struct Copying {
    pending: PendingSubmit,
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
    pub fn new(pending: PendingSubmit) -> Copying {
        Copying { pending, index: 0, block: None }
    }

    /// Bytes of the inputs that have to be copied.
    pub fn bytes_to_copy(&self) -> usize {
        let inputs = self.pending.request.inputs.iter().filter(|input| must_be_copied(input));
        inputs.map(InputTensor::byte_size).fold(0, usize::saturating_add)
    }

    pub fn reply_to(&self) -> ReplyTo {
        self.pending.reply_to
    }

    pub fn prepared(&self) -> Prepared {
        Prepared::of(&self.pending)
    }

    /// Copies at most `budget` bytes; true when there are no more.
    pub fn step(&mut self, pool: &Pool, mut budget: usize) -> Result<bool, Status> {
        let request = &mut self.pending.request;
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
            block.append_slice(piece, from, len);
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

    pub fn finish(self) -> PendingSubmit {
        self.pending
    }

    /// No client waits for it any more.
    pub fn withdraw(self) {
        self.pending.request.withdraw();
    }
}
