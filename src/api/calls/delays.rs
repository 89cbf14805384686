//! Delays of gRPC inference that tests set by environment variables (contract/grpc.md section 7, "Debug env").
//!
//! Triton sleeps in its handlers. A shard never sleeps: what is delayed waits for a timer, and comes back by mail.

use std::sync::OnceLock;

use nereid_request::Delivery;

/// Delays in nanoseconds; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delays {
    /// Requests on their way to their scheduler.
    pub request_ns: u64,
    /// Responses on their way to their client.
    pub response_ns: u64,
    /// Cancellations by clients.
    pub cancellation_ns: u64,
}

/// One day: more is a mistake.
const MS_MAX: u64 = 24 * 60 * 60 * 1000;

impl Delays {
    /// Read once, for all shards: what is wrong with a variable is logged once.
    pub fn of_process() -> Delays {
        static READ: OnceLock<Delays> = OnceLock::new();
        *READ.get_or_init(|| Delays::read(|name| std::env::var(name).ok(), |complaint| tracing::error!("{complaint}")))
    }

    fn read(get: impl Fn(&str) -> Option<String>, complain: impl Fn(String)) -> Delays {
        let number = |name: &str| {
            let Some(text) = get(name) else { return 0 };
            parse_delay(&text).unwrap_or_else(|error| {
                let variable = format!("Unable to parse the debug variable {name}: '{text}'");
                complain(match error {
                    NoDelay::NoNumber => format!("{variable} is not a valid integer. Error: stoi"),
                    NoDelay::TooLarge => format!("{variable} is out of range for an integer."),
                });
                0
            })
        };
        let ms = |names: &[&str]| {
            let sum: u64 =
                names.iter().map(|name| number(&format!("TRITONSERVER_DELAY_{name}"))).fold(0, u64::saturating_add);
            sum.min(MS_MAX)
        };
        let response_s = number("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC").min(MS_MAX / 1000);
        let response_ms = ms(&["GRPC_RESPONSE", "RESPONSE_COMPLETE_EXEC", "RESPONSE_COMPLETION", "GRPC_COMPLETE"]);
        Delays {
            request_ns: ms(&["GRPC_PROCESS_ENTRY", "GRPC_PROCESS", "GRPC_ENQUEUE"]) * 1_000_000,
            response_ns: (response_ms + response_s * 1000) * 1_000_000,
            cancellation_ns: ms(&["GRPC_NOTIFICATION"]) * 1_000_000,
        }
    }
}

/// Why a text is no delay.
#[derive(Debug, PartialEq, Eq)]
enum NoDelay {
    NoNumber,
    TooLarge,
}

/// A number of 32 bits as C++'s `stoi` reads it: blanks, a sign, digits, and whatever follows. A negative one is none.
fn parse_delay(text: &str) -> Result<u64, NoDelay> {
    let text = text.trim_ascii_start();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.split(|byte: char| !byte.is_ascii_digit()).next().filter(|digits| !digits.is_empty());
    let number = digits.ok_or(NoDelay::NoNumber)?.parse::<i32>().map_err(|_| NoDelay::TooLarge)?;
    Ok(if is_negative { 0 } else { u64::from(number.unsigned_abs()) })
}

/// A step whose delay is over.
pub enum DelayedStep {
    Submit { key: u64 },
    Delivered { key: u64, delivery: Box<Delivery> },
    Cancelled { key: u64 },
}

impl DelayedStep {
    /// The work that it is about.
    pub fn key(&self) -> u64 {
        match self {
            DelayedStep::Submit { key } | DelayedStep::Delivered { key, .. } | DelayedStep::Cancelled { key } => *key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_add_up() {
        let read = |given: &[(&str, &str)]| {
            let complaints = std::cell::RefCell::new(Vec::new());
            let get = |name: &str| given.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            let delays = Delays::read(get, |complaint| complaints.borrow_mut().push(complaint));
            (delays, complaints.into_inner())
        };
        assert_eq!(read(&[]), (Delays::default(), Vec::new()));
        let (delays, complaints) = read(&[
            ("TRITONSERVER_DELAY_GRPC_RESPONSE", "5"),
            ("TRITONSERVER_DELAY_RESPONSE_COMPLETION", "7"),
            ("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC", "1"),
            ("TRITONSERVER_DELAY_GRPC_ENQUEUE", "2"),
            ("TRITONSERVER_DELAY_GRPC_PROCESS", "3"),
            ("TRITONSERVER_DELAY_GRPC_NOTIFICATION", "4"),
        ]);
        let expected = Delays { request_ns: 5_000_000, response_ns: 1_012_000_000, cancellation_ns: 4_000_000 };
        assert_eq!((delays, complaints), (expected, Vec::new()));
        let largest = read(&[("TRITONSERVER_DELAY_GRPC_RESPONSE", " +2147483647 ms")]).0;
        assert_eq!(largest.response_ns, MS_MAX * 1_000_000);
        assert_eq!(read(&[("TRITONSERVER_DELAY_GRPC_RESPONSE", "-5")]), (Delays::default(), Vec::new()));
        for (text, reason) in [
            ("soon", "'soon' is not a valid integer. Error: stoi"),
            ("", "'' is not a valid integer. Error: stoi"),
            ("2147483648", "'2147483648' is out of range for an integer."),
        ] {
            let expected = format!("Unable to parse the debug variable TRITONSERVER_DELAY_GRPC_RESPONSE: {reason}");
            assert_eq!(read(&[("TRITONSERVER_DELAY_GRPC_RESPONSE", text)]), (Delays::default(), vec![expected]));
        }
    }
}
