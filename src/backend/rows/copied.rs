//! Inputs in memory of their own, for runtimes that may write to them.
//!
//! The memory of a request is not always its own: a client may share it, other steps of an ensemble may read it, and
//! the response cache may compare it.

use super::{Batch, Failure, Input, byte_size, pieces, without_size};
use nereid_memory::{BlockMut, Pool, Slice};
use nereid_request::{Shape, Status};

/// A tensor that has no other reader.
#[derive(Debug)]
pub struct Copied {
    pub shape: Shape,
    /// As many bytes as the shape needs.
    pub bytes: BlockMut,
}

impl Copied {
    pub fn of(shape: Shape, bytes: &Slice, pool: &Pool) -> Result<Copied, Status> {
        let mut copy = pool.get(bytes.len())?;
        bytes.copy_to(0, &mut copy);
        Ok(Copied { shape, bytes: copy })
    }
}

impl Batch<'_> {
    /// The input of all requests, copied, `times` times in the first dimension. For elements of a fixed size.
    pub fn copy(&self, input: &Input, times: usize) -> Result<Copied, Failure> {
        let (tensors, mut shape) = self.checked(input, self.rows)?;
        if times != 1
            && let Some(first) = shape.first_mut()
        {
            *first = i64::try_from(times).ok().and_then(|times| first.checked_mul(times)).unwrap_or(i64::MAX);
        }
        let len = byte_size(&shape, input.datatype).ok_or_else(|| without_size(&input.name, &shape))?;
        let mut bytes = self.pool.get(len)?;
        bytes.set_len(0);
        for _ in 0..times {
            for piece in pieces(&tensors) {
                bytes.append_slice(piece, 0, piece.len());
            }
        }
        match bytes.len() == len {
            true => Ok(Copied { shape, bytes }),
            false => Err(Failure::from(Status::internal(format!("input '{}' cannot be repeated", input.name)))),
        }
    }
}
