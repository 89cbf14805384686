//! The [`Post`] trait: the sending side of a queue to another thread.

/// Sends values to another thread.
pub trait Post<T>: Send + Sync {
    /// Hands `value` over. Cannot fail and does not block; if the thread is gone, the value is dropped.
    fn post(&self, value: T);
}
