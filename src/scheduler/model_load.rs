//! What the clients' requests to one model hold, so that it cannot take everything that the server has for all models.
//!
//! The steps of ensembles and the calls of Python models are not counted: they belong to a request that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_request::{RefusalReason, Request};

/// Requests with fewer bytes than this are bounded by their number.
const COUNTED_FROM: usize = 4096;

/// The part of the server's memory and calls that each model may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelBounds {
    pub calls: usize,
    /// Of inputs.
    pub bytes: usize,
}

impl ModelBounds {
    pub const NONE: ModelBounds = ModelBounds { calls: usize::MAX, bytes: usize::MAX };
}

/// The requests that a model has now. Those are as many as there are [`ModelPlace`]s, and each refers to it: so its
/// references are the count.
#[derive(Debug, Default)]
pub struct ModelLoad {
    bytes: AtomicUsize,
}

/// The part of one request; it ends when this is dropped.
#[derive(Debug)]
pub struct ModelPlace {
    load: Arc<ModelLoad>,
    /// 0 if there are few.
    bytes: usize,
}

impl ModelLoad {
    /// The requests of clients that the model has now, waiting ones included.
    pub fn requests(self: &Arc<Self>) -> usize {
        // The model itself has a reference, too.
        Arc::strong_count(self).saturating_sub(1)
    }

    /// Takes a place for a request with so many bytes. Shards that do this at the same moment may each take one more
    /// call than `bounds` allow.
    #[inline]
    pub fn enter(self: &Arc<Self>, bytes: usize, bounds: &ModelBounds) -> Result<ModelPlace, RefusalReason> {
        // The model itself has a reference, too.
        if Arc::strong_count(self) > bounds.calls {
            return Err(RefusalReason::ModelCalls);
        }
        let bytes = if bytes < COUNTED_FROM { 0 } else { bytes };
        if bytes > 0 && self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > bounds.bytes {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(RefusalReason::ModelMemory);
        }
        Ok(ModelPlace { load: Arc::clone(self), bytes })
    }
}

impl Drop for ModelPlace {
    #[inline]
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.load.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Bytes of the inputs of a request.
#[inline]
pub fn input_bytes(request: &Request) -> usize {
    let pieces = request.inputs.iter().flat_map(|input| input.data.iter());
    pieces.fold(0usize, |sum, piece| sum.saturating_add(piece.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_as_many_calls_as_its_bound() {
        let (load, bounds) = (Arc::new(ModelLoad::default()), ModelBounds { calls: 2, ..ModelBounds::NONE });
        let (one, two) = (load.enter(0, &bounds).unwrap(), load.enter(0, &bounds).unwrap());
        assert_eq!(load.enter(0, &bounds).unwrap_err(), RefusalReason::ModelCalls);
        drop(one);
        let again = load.enter(0, &bounds).unwrap();
        assert!(load.enter(0, &bounds).is_err());
        drop((two, again));
        let none = ModelBounds { calls: 0, ..bounds };
        assert_eq!(load.enter(0, &none).unwrap_err(), RefusalReason::ModelCalls);
    }

    #[test]
    fn a_model_has_as_many_bytes_as_its_bound() {
        let bounds = ModelBounds { bytes: 3 * COUNTED_FROM, ..ModelBounds::NONE };
        let load = Arc::new(ModelLoad::default());
        let held = load.enter(2 * COUNTED_FROM, &bounds).unwrap();
        let refused = load.enter(COUNTED_FROM + 1, &bounds).unwrap_err();
        assert_eq!(refused, RefusalReason::ModelMemory);
        let rest = load.enter(COUNTED_FROM, &bounds).unwrap();
        assert!(load.enter(COUNTED_FROM - 1, &bounds).is_ok(), "a small one is bounded by the calls");
        assert!(load.enter(usize::MAX, &bounds).is_err());
        drop((held, rest));
        assert_eq!(load.bytes.load(Ordering::Relaxed), 0, "what was refused is counted nowhere");
        assert!(load.enter(3 * COUNTED_FROM, &bounds).is_ok());
    }
}
