//! The context that links a trace to those of other processes: W3C Trace Context, levels 1 and 2.

use std::collections::hash_map::RandomState;
use std::fmt::Write;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) type SpanId = [u8; 8];
pub(super) type TraceId = [u8; 16];

/// Longest `tracestate` that is passed on (W3C section 3.3.1.5 demands 512 at least).
const STATE_BYTES_MAX: usize = 4096;

/// The trace that a request belongs to, as its caller states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    trace: TraceId,
    parent: SpanId,
    state: String,
}

impl Context {
    /// Reads `traceparent` and, if there is one, `tracestate`. An invalid parent is none.
    pub fn parse(traceparent: &[u8], tracestate: Option<&[u8]>) -> Option<Context> {
        let text = std::str::from_utf8(traceparent).ok()?.trim();
        let mut fields = text.split('-');
        let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let [version] = hex::<1>(version)?;
        // Versions to come may have more fields; the first has none.
        if version == 0xff || (version == 0 && fields.next().is_some()) {
            return None;
        }
        hex::<1>(flags)?;
        let (trace, parent) = (hex::<16>(trace)?, hex::<8>(parent)?);
        if trace == [0; 16] || parent == [0; 8] {
            return None;
        }
        let state = tracestate.filter(|state| state.len() <= STATE_BYTES_MAX);
        let state = state.and_then(|state| std::str::from_utf8(state).ok()).unwrap_or_default().trim().to_owned();
        Some(Context { trace, parent, state })
    }
}

/// Lower-case hexadecimal of exactly `N` bytes.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The root span of a request, and the trace it is part of.
#[derive(Debug, Clone)]
pub(super) struct SpanPosition {
    pub trace: TraceId,
    pub span: SpanId,
    /// The parent span, in another process.
    pub parent: Option<SpanId>,
    pub state: String,
}

impl SpanPosition {
    /// The context for a callee of the span, as JSON.
    pub fn context_at(&self, span: SpanId) -> String {
        let mut text = "{\"traceparent\":\"00-".to_owned();
        put_hex(&mut text, &self.trace);
        text.push('-');
        put_hex(&mut text, &span);
        text.push_str("-01\"");
        if !self.state.is_empty() {
            text.push_str(",\"tracestate\":");
            super::text::put_string(&mut text, self.state.as_bytes());
        }
        text.push('}');
        text
    }
}

fn put_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

/// The number of a new trace: ids count from 1 over all traces of the process.
pub fn next_id() -> u64 {
    static TRACES: AtomicU64 = AtomicU64::new(0);
    TRACES.fetch_add(1, Ordering::Relaxed) + 1
}

/// Generates ids of spans and traces.
#[derive(Debug, Default)]
pub(super) struct Ids {
    names: AtomicU64,
    /// Keyed by the system's random numbers.
    hash: RandomState,
}

impl Ids {
    /// A random number, which is unique over calls and processes.
    fn random(&self) -> u64 {
        loop {
            let number = self.hash.hash_one(self.names.fetch_add(1, Ordering::Relaxed));
            if number != 0 {
                return number;
            }
        }
    }

    pub fn span(&self) -> SpanId {
        self.random().to_be_bytes()
    }

    pub fn position(&self, context: Option<Context>) -> SpanPosition {
        let span = self.span();
        match context {
            Some(Context { trace, parent, state }) => SpanPosition { trace, span, parent: Some(parent), state },
            None => {
                let mut trace = [0; 16];
                trace[..8].copy_from_slice(&self.span());
                trace[8..].copy_from_slice(&self.span());
                SpanPosition { trace, span, parent: None, state: String::new() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn parents_are_read_by_the_recommendation() {
        let parsed = |text: &str| Context::parse(text.as_bytes(), None);
        for valid in [
            PARENT.to_owned(),
            PARENT.replace("-01", "-00"),
            PARENT.replacen("00", "cc", 1),
            format!("{}-more", PARENT.replacen("00", "01", 1)),
            format!(" {PARENT} "),
        ] {
            let context = parsed(&valid).unwrap_or_else(|| panic!("{valid}"));
            assert_eq!((context.trace[0], context.parent[7]), (0x0a, 0x31), "{valid}");
        }
        for invalid in [
            String::new(),
            "00".to_owned(),
            PARENT.to_uppercase(),
            PARENT.replacen("00", "ff", 1),
            format!("{PARENT}-more"),
            PARENT.replace("-01", ""),
            PARENT.replace("-01", "-1"),
            PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            PARENT.replace("b7ad6b7169203331", &"0".repeat(16)),
            PARENT.replace("b7ad", "b7a"),
            PARENT.replace("b7ad", "b7ag"),
        ] {
            assert_eq!(parsed(&invalid), None, "{invalid}");
        }
    }

    #[test]
    fn a_callee_gets_its_parent() {
        let ids = Ids::default();
        let context = Context::parse(PARENT.as_bytes(), Some(b" a=1,b=\"2 ")).unwrap();
        let position = ids.position(Some(context));
        let span = [1, 2, 3, 4, 5, 6, 7, 0xff];
        let expected = "{\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-01020304050607ff-01\",\
                        \"tracestate\":\"a=1,b=\\\"2\"}";
        assert_eq!(position.context_at(span), expected);
        assert_eq!(position.parent, Some([0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]));
        let alone = ids.position(None);
        assert!(alone.parent.is_none() && alone.trace != position.trace && alone.span != position.span);
        assert!(!alone.context_at(span).contains("tracestate"));
    }

    #[test]
    fn a_state_without_bound_is_not_passed_on() {
        let long = "a".repeat(STATE_BYTES_MAX + 1);
        assert_eq!(Context::parse(PARENT.as_bytes(), Some(long.as_bytes())).unwrap().state, "");
        assert_eq!(Context::parse(PARENT.as_bytes(), Some(&[0xff])).unwrap().state, "");
    }
}
