//! Which memory a run reads and writes: the request's own bytes, blocks of the pool, or the library's.
//!
//! A batch of one request with its bytes in one aligned piece is read where it was received; all others are gathered
//! once, here, on the worker. Outputs of a size that is fixed before the run are written directly into the block that
//! the response will send (docs/design.md, decision 6). Memory that the library allocates is returned to it through
//! [`Returns`], because its allocator takes locks, which a shard, where the sent bytes are dropped, must not.

#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use smallvec::SmallVec;

use super::element::ElementType;
use super::runtime::{Runtime, RuntimeError};
use super::session::Session;
use super::value::Value;
use nereid_memory::{Exhausted, Pool, Slice, Target};
use nereid_request::{Shape, Status};

/// The bytes of one tensor as one aligned piece: unchanged if they are that already, else gathered into a block.
pub fn contiguous<'a>(
    pieces: impl Iterator<Item = &'a Slice> + Clone,
    alignment: usize,
    pool: &Pool,
) -> Result<Slice, Exhausted> {
    let mut filled = pieces.clone().filter(|piece| !piece.is_empty());
    match (filled.next(), filled.next()) {
        (None, _) => return Ok(Slice::empty()),
        (Some(piece), None) if piece.is_aligned_to(alignment.max(1)) => return Ok(piece.clone()),
        _ => {}
    }
    let mut block = pool.get(pieces.clone().map(|piece| piece.len()).fold(0, usize::saturating_add))?;
    block.set_len(0);
    for piece in pieces {
        block.append_slice(piece, 0, piece.len());
    }
    Ok(block.freeze())
}

/// An input of a run and the owner of its bytes.
pub struct BoundInput {
    // Declared first, dropped first: it points into the slice.
    value: Value,
    bytes: Slice,
}

impl BoundInput {
    pub fn over(
        runtime: &'static Runtime,
        bytes: Slice,
        shape: &[i64],
        element: ElementType,
    ) -> Result<BoundInput, RuntimeError> {
        let data = bytes.as_ptr().cast_mut();
        // SAFETY: the slice is immutable and lives as long as the value; the library does not write to inputs.
        let value = unsafe { Value::over(runtime, data, bytes.len(), shape, element) }?;
        Ok(BoundInput { value, bytes })
    }

    /// A value with memory of its own.
    pub fn owned(value: Value) -> BoundInput {
        BoundInput { value, bytes: Slice::empty() }
    }

    pub fn value(&self) -> &Value {
        &self.value
    }
}

/// The outputs of one run, in the order of the configuration.
#[derive(Default)]
pub struct BoundOutputs {
    // Declared first, dropped first: they point into the blocks.
    values: SmallVec<[Option<Value>; 4]>,
    blocks: SmallVec<[Option<(Target, Shape)>; 4]>,
    /// The address ranges of the blocks, also of those that were taken already.
    ranges: SmallVec<[Range<usize>; 4]>,
}

/// An output after its run.
pub enum Produced {
    Numbers { shape: Shape, bytes: Slice },
    Strings { shape: Shape, value: Value },
}

impl BoundOutputs {
    /// Binds the next output to `block`, which has the size of `shape`.
    pub fn bind(
        &mut self,
        runtime: &'static Runtime,
        mut block: Target,
        shape: &[i64],
        element: ElementType,
    ) -> Result<(), RuntimeError> {
        let (data, len) = (block.as_mut_ptr(), block.len());
        // SAFETY: this value alone owns the block, and keeps it unread until the value is dropped.
        let value = unsafe { Value::over(runtime, data, len, shape, element) }?;
        self.ranges.push(range(data, len));
        self.values.push(Some(value));
        self.blocks.push(Some((block, Shape::from_slice(shape))));
        Ok(())
    }

    /// Leaves the allocation of the next output to the library.
    pub fn leave_open(&mut self) {
        self.values.push(None);
        self.blocks.push(None);
    }

    pub fn has_bound(&self) -> bool {
        self.blocks.iter().any(Option::is_some)
    }

    pub fn values_mut(&mut self) -> &mut [Option<Value>] {
        &mut self.values
    }

    /// Takes output number `index` after a successful run. `inputs` are those of the run: an output that is one of them
    /// under another name is copied, because their bytes are freed with the requests.
    pub fn take(
        &mut self,
        index: usize,
        element: ElementType,
        inputs: &[BoundInput],
        returns: &Arc<Returns>,
        pool: &Pool,
    ) -> Result<Produced, Status> {
        let missing = || RuntimeError::here("an output was taken twice");
        let value = self.values.get_mut(index).and_then(Option::take).ok_or_else(missing)?;
        if let Some((block, shape)) = self.blocks.get_mut(index).and_then(Option::take) {
            // The library has checked the shape against the computed one, and has written to the block.
            drop(value);
            return Ok(Produced::Numbers { shape, bytes: block.freeze() });
        }
        let (found, shape) = value.tensor_type()?;
        if found != Some(element) {
            let found = found.map_or("another type", ElementType::onnx_name);
            return Err(
                RuntimeError::here(format!("expected {}, but the model gave {found}", element.onnx_name())).into()
            );
        }
        let size = element.datatype().byte_size();
        if size == 0 {
            return Ok(Produced::Strings { shape, value });
        }
        let count = nereid_request::element_count(&shape).and_then(|count| usize::try_from(count).ok());
        let len = count.and_then(|count| count.checked_mul(size)).ok_or_else(|| {
            RuntimeError::here(format!("an output has the shape {}", nereid_request::format_shape(&shape)))
        })?;
        let data = value.data()?;
        let bytes = match self.lies_in_ours(data, len, inputs) {
            true => copied(data, len, pool)?,
            // SAFETY: the tensor's bytes stay in place, unwritten, until the lease drops the value.
            false => unsafe { Slice::foreign(data, len, Lease::owner(value, returns)) },
        };
        Ok(Produced::Numbers { shape, bytes })
    }

    /// The same for an output that is no tensor: the library has allocated it.
    pub fn take_value(&mut self, index: usize) -> Result<Value, RuntimeError> {
        let missing = || RuntimeError::here("an output was taken twice");
        self.values.get_mut(index).and_then(Option::take).ok_or_else(missing)
    }

    /// True if an output of the library is an input, or the bound block of another output: one tensor with two names.
    /// The library does not own such bytes, so its value cannot keep them alive beyond this run.
    fn lies_in_ours(&self, data: *const u8, len: usize, inputs: &[BoundInput]) -> bool {
        let output = range(data, len);
        let input_ranges = inputs.iter().map(|input| range(input.bytes.as_ptr(), input.bytes.len()));
        input_ranges.chain(self.ranges.iter().cloned()).any(|ours| intersect(&output, &ours))
    }
}

fn range(data: *const u8, len: usize) -> Range<usize> {
    data.addr()..data.addr().saturating_add(len)
}

fn intersect(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// # Panics
/// Never: the block is as long as the copied bytes.
fn copied(data: *const u8, len: usize, pool: &Pool) -> Result<Slice, Exhausted> {
    let mut block = pool.get(len)?;
    if len > 0 {
        // SAFETY: the caller holds the tensor, whose `len` bytes begin at `data`.
        block.copy_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
    }
    Ok(block.freeze())
}

/// The queue in which values return to the library, from any thread and without waiting. The instance releases them
/// before its next run; values that return after the instance has ended are released with the last of them.
///
/// Bounded by the values that responses of earlier runs still hold: each run empties the queue first.
pub struct Returns {
    queue: SegQueue<Value>,
    /// Values may use the session's allocator: it outlives them.
    _session: Arc<Session>,
}

impl Returns {
    pub fn new(session: Arc<Session>) -> Arc<Returns> {
        Arc::new(Returns { queue: SegQueue::new(), _session: session })
    }

    /// Values that wait to be released.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Releases the returned values; the instance's worker calls it.
    pub fn drain(&self) {
        // Bounded: values that return meanwhile wait for the next call.
        for _ in 0..self.queue.len() {
            drop(self.queue.pop());
        }
    }
}

/// Keeps a value alive for a [`Slice`], or for one on a device.
pub(super) struct Lease {
    value: Option<Value>,
    returns: Option<Arc<Returns>>,
}

impl Lease {
    pub(super) fn owner(value: Value, returns: &Arc<Returns>) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Lease { value: Some(value), returns: Some(Arc::clone(returns)) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (Some(value), Some(returns)) = (self.value.take(), self.returns.take()) else { return };
        returns.queue.push(value);
        let Some(last) = Arc::into_inner(returns) else { return };
        // The model was unloaded while this response was in flight: session and values end here, which is too slow for
        // a shard. If no thread can be started, the failed call drops them in place after all.
        let thread = std::thread::Builder::new().name("ort-release".to_owned());
        if let Err(error) = thread.spawn(move || drop(last)) {
            tracing::warn!("no thread to release an ONNX Runtime session on: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::BlockMut;

    /// A slice whose first byte is `offset` bytes behind an aligned one.
    fn slice_at(offset: usize, bytes: &[u8]) -> Slice {
        let mut block = BlockMut::unpooled(offset + bytes.len());
        block[offset..].copy_from_slice(bytes);
        block.freeze().window(offset..offset + bytes.len())
    }

    #[test]
    fn one_aligned_piece_is_read_where_it_lies() {
        let pool = Pool::new(1 << 20);
        let piece = slice_at(8, &[7; 64]);
        for alignment in [1, 2, 4, 8] {
            assert!(contiguous([&piece].into_iter(), alignment, &pool).unwrap().same_memory(&piece));
        }
        let empty = Slice::empty();
        let padded = contiguous([&empty, &piece, &empty].into_iter(), 8, &pool).unwrap();
        assert!(padded.same_memory(&piece), "empty pieces do not count");
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn everything_else_is_gathered_once() {
        let pool = Pool::new(1 << 20);
        let odd = slice_at(3, &[1, 2, 3, 4]);
        assert!(contiguous([&odd].into_iter(), 1, &pool).unwrap().same_memory(&odd), "bytes have no alignment");
        let moved = contiguous([&odd].into_iter(), 4, &pool).unwrap();
        assert!(!moved.same_memory(&odd) && moved.is_aligned_to(4));
        assert_eq!(*moved, [1, 2, 3, 4]);
        let (a, b) = (slice_at(0, &[1, 2]), slice_at(0, &[3, 4]));
        let joined = contiguous([&a, &b].into_iter(), 4, &pool).unwrap();
        assert_eq!(*joined, [1, 2, 3, 4]);
        assert!(joined.is_aligned_to(nereid_memory::ALIGNMENT));
        assert!(contiguous(std::iter::empty(), 8, &pool).unwrap().is_empty());
        assert!(contiguous([&a, &b].into_iter(), 4, &Pool::new(0)).is_err());
    }

    #[test]
    fn ranges_intersect_only_in_bytes() {
        assert!(intersect(&(0..4), &(3..5)) && intersect(&(0..4), &(1..2)));
        assert!(!intersect(&(0..4), &(4..8)) && !intersect(&(4..8), &(0..4)));
    }
}
