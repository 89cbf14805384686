//! A receive into many places: what the system is given for it.

use nereid_memory::Scatter;

/// A [`Scatter`] and the header that names its parts to the system. It is boxed, because a ring keeps the address of
/// the header until the receive is over.
pub(super) struct ScatteredReceive {
    scatter: Box<Scatter>,
    pieces: Vec<libc::iovec>,
    message: libc::msghdr,
}

impl ScatteredReceive {
    /// `None` if there is no room for a byte.
    pub(super) fn new(scatter: Box<Scatter>) -> Option<Box<ScatteredReceive>> {
        // SAFETY: all-zero is a valid message header.
        let message = unsafe { std::mem::zeroed() };
        (scatter.capacity() > 0).then(|| Box::new(ScatteredReceive { scatter, pieces: Vec::new(), message }))
    }

    /// What `recvmsg` takes. It points into this value and its memory, of which nothing may move or be used until the
    /// call or operation is over. The system writes to the header, so that each try needs a fresh one.
    pub(super) fn message(&mut self) -> *mut libc::msghdr {
        let parts = self.scatter.parts().count();
        let pieces = self.scatter.pieces_mut();
        self.pieces.clear();
        self.pieces.reserve_exact(parts);
        self.pieces
            .extend(pieces.map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() }));
        // SAFETY: all-zero is a valid message header.
        self.message = unsafe { std::mem::zeroed() };
        self.message.msg_iov = self.pieces.as_mut_ptr();
        self.message.msg_iovlen = self.pieces.len() as _;
        &raw mut self.message
    }

    /// Bytes that can be received.
    pub(super) fn capacity(&self) -> usize {
        self.scatter.capacity()
    }

    pub(super) fn into_scatter(self) -> Box<Scatter> {
        self.scatter
    }
}
