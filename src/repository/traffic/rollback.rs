//! When a version is taken out of a rule automatically: the limits, and the window of requests that they apply to.

/// Parts of a window: requests leave it a part at a time.
const PARTS: usize = 10;
/// Requests that a window has at least before it decides, where the rule does not say.
const REQUESTS_MIN: u32 = 100;
/// Seconds of a window, where the rule does not say.
const WINDOW_SECS: u32 = 30;
/// Seconds of the longest window.
const WINDOW_SECS_MAX: u32 = 3600;

/// The limits of one version.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollback {
    /// A label or a version.
    pub target: Box<str>,
    /// The part of requests that may fail.
    pub error_rate: Option<f64>,
    /// The time that 99 of 100 requests may take.
    pub latency_p99_ms: Option<f64>,
    pub requests_min: u32,
    pub window_secs: u32,
}

impl Rollback {
    /// `canary error_rate>0.05 latency_p99_ms>50 min_requests=100 window_secs=30`.
    pub fn parse(text: &str) -> Result<Rollback, String> {
        let mut terms = text.split_ascii_whitespace();
        let mut rollback = Rollback {
            target: terms.next().unwrap_or_default().into(),
            error_rate: None,
            latency_p99_ms: None,
            requests_min: REQUESTS_MIN,
            window_secs: WINDOW_SECS,
        };
        for term in terms {
            let bad = |what: &str| Err(format!("'{term}' needs {what}"));
            if let Some(limit) = term.strip_prefix("error_rate>") {
                match limit.parse::<f64>() {
                    Ok(limit) if (0.0..1.0).contains(&limit) => rollback.error_rate = Some(limit),
                    _ => return bad("a limit from 0 to below 1"),
                }
            } else if let Some(limit) = term.strip_prefix("latency_p99_ms>") {
                match limit.parse::<f64>() {
                    Ok(limit) if limit > 0.0 && limit.is_finite() => rollback.latency_p99_ms = Some(limit),
                    _ => return bad("a number of milliseconds above 0"),
                }
            } else if let Some(count) = term.strip_prefix("min_requests=") {
                match count.parse::<u32>() {
                    Ok(count) if count > 0 => rollback.requests_min = count,
                    _ => return bad("a number of requests above 0"),
                }
            } else if let Some(seconds) = term.strip_prefix("window_secs=") {
                match seconds.parse::<u32>() {
                    Ok(seconds) if (1..=WINDOW_SECS_MAX).contains(&seconds) => rollback.window_secs = seconds,
                    _ => return bad("a number of seconds from 1 to 3600"),
                }
            } else {
                let terms = "'error_rate>R', 'latency_p99_ms>MS', 'min_requests=N' and 'window_secs=N'";
                return Err(format!("'{term}' is unknown; the terms are {terms}"));
            }
        }
        match rollback.error_rate.is_some() || rollback.latency_p99_ms.is_some() {
            true => Ok(rollback),
            false => Err("it has no limit; add 'error_rate>R' or 'latency_p99_ms>MS'".to_owned()),
        }
    }

    /// Whether a request took longer than 99 of 100 may.
    pub fn is_slow(&self, took_ns: u64) -> bool {
        self.latency_p99_ms.is_some_and(|limit_ms| took_ns as f64 > limit_ms * 1e6)
    }
}

/// What happened to requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub requests: u32,
    pub errors: u32,
    /// They took longer than 99 of 100 may.
    pub slow: u32,
}

/// The requests of the last seconds, in parts.
#[derive(Debug, Default)]
pub struct Window {
    parts: [Part; PARTS],
}

#[derive(Debug, Default, Clone, Copy)]
struct Part {
    number: u64,
    totals: Totals,
}

impl Window {
    fn part_of(rollback: &Rollback, now_ns: u64) -> u64 {
        now_ns / (u64::from(rollback.window_secs) * 1_000_000_000 / PARTS as u64)
    }

    /// Counts a request that ended at `now_ns`.
    pub fn record(&mut self, rollback: &Rollback, now_ns: u64, is_error: bool, is_slow: bool) {
        let number = Window::part_of(rollback, now_ns);
        let Some(part) = self.parts.get_mut((number % PARTS as u64) as usize) else { return };
        if part.number != number {
            *part = Part { number, totals: Totals::default() };
        }
        let Totals { requests, errors, slow } = &mut part.totals;
        *requests = requests.saturating_add(1);
        *errors = errors.saturating_add(u32::from(is_error));
        *slow = slow.saturating_add(u32::from(is_slow));
    }

    pub fn totals(&self, rollback: &Rollback, now_ns: u64) -> Totals {
        let oldest = (Window::part_of(rollback, now_ns) + 1).saturating_sub(PARTS as u64);
        let inside = self.parts.iter().filter(|part| part.number >= oldest);
        inside.fold(Totals::default(), |sum, part| Totals {
            requests: sum.requests.saturating_add(part.totals.requests),
            errors: sum.errors.saturating_add(part.totals.errors),
            slow: sum.slow.saturating_add(part.totals.slow),
        })
    }

    /// The limit that the requests of the window exceed, in words.
    pub fn exceeded(&self, rollback: &Rollback, now_ns: u64) -> Option<String> {
        let Totals { requests, errors, slow } = self.totals(rollback, now_ns);
        if requests < rollback.requests_min {
            return None;
        }
        let seconds = rollback.window_secs;
        if let Some(limit) = rollback.error_rate
            && f64::from(errors) > limit * f64::from(requests)
        {
            return Some(format!(
                "{errors} of {requests} requests within {seconds} s failed, more than the rate of {limit}"
            ));
        }
        let limit_ms = rollback.latency_p99_ms.filter(|_| u64::from(slow) * 100 > u64::from(requests))?;
        Some(format!("{slow} of {requests} requests within {seconds} s took longer than {limit_ms} ms"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn limits_are_read_with_their_defaults() {
        let rollback = Rollback::parse("2 error_rate>0.05").unwrap();
        assert_eq!((&*rollback.target, rollback.requests_min, rollback.window_secs), ("2", 100, 30));
        for (text, why) in [
            ("canary", "it has no limit; add 'error_rate>R' or 'latency_p99_ms>MS'"),
            ("canary error_rate>1", "'error_rate>1' needs a limit from 0 to below 1"),
            ("canary error_rate>x", "'error_rate>x' needs a limit from 0 to below 1"),
            ("canary latency_p99_ms>0", "'latency_p99_ms>0' needs a number of milliseconds above 0"),
            ("canary min_requests=0", "'min_requests=0' needs a number of requests above 0"),
            ("canary window_secs=9999", "'window_secs=9999' needs a number of seconds from 1 to 3600"),
            (
                "canary errors>1",
                "'errors>1' is unknown; the terms are 'error_rate>R', 'latency_p99_ms>MS', 'min_requests=N' and \
                 'window_secs=N'",
            ),
        ] {
            assert_eq!(Rollback::parse(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_window_decides_when_it_has_enough_requests_and_forgets_old_ones() {
        let rollback = Rollback::parse("2 error_rate>0.5 min_requests=4 window_secs=10").unwrap();
        let mut window = Window::default();
        for at in 0..3 {
            window.record(&rollback, 100 * SECOND + at, true, false);
        }
        assert_eq!(window.exceeded(&rollback, 100 * SECOND), None, "too few");
        window.record(&rollback, 100 * SECOND, false, false);
        let text = "3 of 4 requests within 10 s failed, more than the rate of 0.5";
        assert_eq!(window.exceeded(&rollback, 100 * SECOND).as_deref(), Some(text));
        assert_eq!(window.totals(&rollback, 109 * SECOND).requests, 4);
        assert_eq!(window.totals(&rollback, 110 * SECOND), Totals::default(), "they are too old");
        window.record(&rollback, 110 * SECOND, false, false);
        assert_eq!(window.totals(&rollback, 110 * SECOND).requests, 1, "the part is used again");
    }

    #[test]
    fn the_slowest_of_a_hundred_does_not_count() {
        let rollback = Rollback::parse("2 latency_p99_ms>5 min_requests=100").unwrap();
        assert!(rollback.is_slow(5_000_001) && !rollback.is_slow(5_000_000));
        let mut window = Window::default();
        (0..99).for_each(|_| window.record(&rollback, SECOND, false, false));
        window.record(&rollback, SECOND, false, true);
        assert_eq!(window.exceeded(&rollback, SECOND), None);
        window.record(&rollback, SECOND, false, true);
        let text = "2 of 101 requests within 30 s took longer than 5 ms";
        assert_eq!(window.exceeded(&rollback, SECOND).as_deref(), Some(text));
    }
}
