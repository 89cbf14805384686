//! Which version a request gets: numbers that a key or chance gives, and the place among the weights that a number has.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use nereid_request::{CorrelationId, Request, Value};

/// Threads that have drawn a number.
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static STATE: Cell<u64> = Cell::new(mix(THREADS.fetch_add(1, Ordering::Relaxed)));
}

/// The step of Weyl's sequence in SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A random number of this thread: SplitMix64, no lock, the same numbers after each start.
pub fn random() -> u64 {
    STATE.with(|state| {
        let next = state.get().wrapping_add(STEP);
        state.set(next);
        mix(next)
    })
}

/// The number of a key: FNV-1a, mixed. The same on every server.
pub fn number_of(key: &[u8]) -> u64 {
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    mix(hash.wrapping_add(STEP))
}

/// The number of the sequence that a request belongs to.
pub fn of_sequence(request: &Request) -> Option<u64> {
    let id = &request.correlation_id;
    match id {
        id if !id.is_in_sequence() => None,
        CorrelationId::Text(text) => Some(number_of(text.as_bytes())),
        id => Some(number_of(id.to_string().as_bytes())),
    }
}

/// The number of the parameter of that name, whose value is taken as text.
pub fn of_parameter(request: &Request, name: &str) -> Option<u64> {
    let parameter = request.parameters.iter().find(|parameter| parameter.name.as_bytes() == name.as_bytes())?;
    Some(match &parameter.value {
        Value::String(text) => number_of(text.as_bytes()),
        Value::Int(value) => number_of(value.to_string().as_bytes()),
        Value::Bool(value) => number_of(value.to_string().as_bytes()),
        Value::Double(value) => number_of(value.to_string().as_bytes()),
        Value::Bytes(bytes) => number_of(bytes),
    })
}

/// The index of the weight that a number falls on, if not all are 0. Equal weights take equal parts of all numbers, in
/// their order, so that a number keeps its place as long as the weights before it keep their sum.
pub fn place(number: u64, weights: impl Iterator<Item = u32> + Clone) -> Option<usize> {
    let total: u64 = weights.clone().map(u64::from).sum();
    let mut at = (u128::from(number) * u128::from(total)) >> 64;
    for (index, weight) in weights.enumerate() {
        if at < u128::from(weight) {
            return Some(index);
        }
        at -= u128::from(weight);
    }
    None
}

/// Whether a number lies in the first `share` of all numbers.
pub fn is_within(number: u64, share: f64) -> bool {
    (number >> 11) as f64 * (1.0 / (1u64 << 53) as f64) < share
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_request::{Completion, Delivery, Sink, Text};

    const DRAWS: u64 = 100_000;

    /// Six standard deviations of a count of `DRAWS` events of probability `share`.
    fn is_near(count: u64, share: f64) -> bool {
        let mean = DRAWS as f64 * share;
        (count as f64 - mean).abs() <= 6.0 * (mean * (1.0 - share)).sqrt()
    }

    #[test]
    fn numbers_fall_on_weights_in_proportion() {
        let mut counts = [0; 4];
        for _ in 0..DRAWS {
            counts[place(random(), [90, 0, 9, 1].into_iter()).unwrap()] += 1;
        }
        let expected = [0.9, 0.0, 0.09, 0.01];
        assert!(counts.iter().zip(expected).all(|(count, share)| is_near(*count, share)), "{counts:?}");
        assert_eq!(place(5, [0, 0].into_iter()), None);
        assert_eq!([place(0, [1, 1].into_iter()), place(u64::MAX, [1, 1].into_iter())], [Some(0), Some(1)]);
    }

    #[test]
    fn keys_fall_on_weights_in_proportion_and_stay_there() {
        let of =
            |user: u64, weights: [u32; 2]| place(number_of(format!("user-{user}").as_bytes()), weights.into_iter());
        let counted = |weights| (0..DRAWS).filter(|user| of(*user, weights) == Some(1)).count() as u64;
        assert!(is_near(counted([90, 10]), 0.1));
        // With more weight for the second, no user moves to the first.
        let moved = (0..DRAWS).filter(|user| of(*user, [90, 10]) == Some(1) && of(*user, [80, 20]) == Some(0));
        assert_eq!(moved.count(), 0);
    }

    #[test]
    fn shares_are_kept() {
        let within = (0..DRAWS).filter(|_| is_within(random(), 0.1)).count() as u64;
        assert!(is_near(within, 0.1), "{within}");
        assert!(is_within(u64::MAX, 1.0) && !is_within(0, 0.0));
    }

    struct Nowhere;

    impl Sink for Nowhere {
        fn deliver(&self, _key: u64, _delivery: Delivery) {}

        fn allocate(&self, _key: u64, size: usize) -> Result<nereid_memory::BlockMut, nereid_memory::Exhausted> {
            nereid_memory::BlockMut::try_unpooled(size)
        }
    }

    #[test]
    fn a_request_has_the_number_of_its_sequence_and_of_its_parameter() {
        let mut request = Request::new(Completion::new(std::sync::Arc::new(Nowhere), 0));
        assert_eq!((of_sequence(&request), of_parameter(&request, "user")), (None, None));
        request.correlation_id = CorrelationId::Number(7);
        assert_eq!(of_sequence(&request), Some(number_of(b"7")));
        request.correlation_id = CorrelationId::Text(Text::from("abc"));
        assert_eq!(of_sequence(&request), Some(number_of(b"abc")));
        request.parameters.push(Text::from("user"), Value::Int(12));
        assert_eq!(of_parameter(&request, "user"), Some(number_of(b"12")));
    }
}
