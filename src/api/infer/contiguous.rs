//! Joins the pieces of an output.

use nereid_memory::{Exhausted, Pool, Slice};
use nereid_request::OutputTensor;

/// The bytes of an output in one piece: most are, scattered ones are joined.
pub fn contiguous(output: &OutputTensor, pool: &Pool) -> Result<Slice, Exhausted> {
    Ok(match &output.data[..] {
        [] => Slice::empty(),
        [piece] => piece.clone(),
        pieces => {
            let len = output.byte_size();
            let mut block = pool.get(len)?;
            let mut at = 0;
            for piece in pieces {
                at += piece.copy_to(0, &mut block[at..]);
            }
            block.freeze()
        }
    })
}
