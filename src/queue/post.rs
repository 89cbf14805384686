//! Where values are posted to another thread, whatever it is and whoever owns it.

/// Takes values for another thread.
pub trait Post<T>: Send + Sync {
    /// Hands `value` over. Cannot fail and does not block; if the thread is gone, the value is dropped.
    fn post(&self, value: T);
}
