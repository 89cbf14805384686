//! Joins pieces that lie anywhere into one tensor on a device, and waits for it.

use super::buffer::DeviceSlice;
use super::device::Gpu;
use super::driver;
use super::flight::Piece;
use super::regions::DeviceTarget;

impl Gpu {
    /// Joins the pieces in memory of this device, and waits for it.
    pub fn gather(&self, pieces: &[Piece]) -> driver::Result<DeviceSlice> {
        let len = pieces.iter().map(Piece::len).fold(0, usize::saturating_add);
        let buffer = self.allocate(len)?;
        // SAFETY: the buffer is new and outlives the copies, which are complete when this returns.
        let target = unsafe { DeviceTarget::foreign(self.clone(), buffer.address(), len, std::sync::Arc::new(())) };
        let mut at = 0;
        for piece in pieces {
            let part = target.part(at, piece.len());
            match piece {
                Piece::Host(bytes) => self.put_slice_at(&part, bytes)?,
                Piece::Device(bytes) => self.copy_to(&part, bytes)?,
            }
            at += piece.len();
        }
        Ok(buffer.freeze())
    }
}
