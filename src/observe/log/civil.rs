//! Seconds of the epoch as a date and time of day in UTC, without time zones, locales or locks.

const SECONDS_PER_DAY: u64 = 86_400;
/// The Gregorian calendar repeats after 400 years.
const DAYS_PER_CYCLE: u64 = 146_097;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Civil {
    pub year: u64,
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl Civil {
    pub fn from_epoch(seconds: u64) -> Civil {
        let (days, second) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
        let (mut year, mut day) = (1970 + 400 * (days / DAYS_PER_CYCLE), days % DAYS_PER_CYCLE);
        while day >= days_of(year) {
            day -= days_of(year);
            year += 1;
        }
        let february = if is_leap(year) { 29 } else { 28 };
        let mut month = 1;
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if day < days {
                break;
            }
            day -= days;
            month += 1;
        }
        Civil { year, month, day: day + 1, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let known = [
            (0, [1970, 1, 1, 0, 0, 0]),
            (946_684_799, [1999, 12, 31, 23, 59, 59]),
            (951_782_400, [2000, 2, 29, 0, 0, 0]),
            (951_868_800, [2000, 3, 1, 0, 0, 0]),
            (1_677_585_600, [2023, 2, 28, 12, 0, 0]),
            (1_709_251_199, [2024, 2, 29, 23, 59, 59]),
            (1_735_606_923, [2024, 12, 31, 1, 2, 3]),
            (1_795_243_157, [2026, 11, 21, 6, 39, 17]),
            (4_107_542_399, [2100, 2, 28, 23, 59, 59]),
            (4_107_542_400, [2100, 3, 1, 0, 0, 0]),
            (12_622_780_800, [2370, 1, 1, 0, 0, 0]),
            (13_574_581_567, [2400, 2, 29, 5, 6, 7]),
            (253_402_300_799, [9999, 12, 31, 23, 59, 59]),
        ];
        for (seconds, [year, month, day, hour, minute, second]) in known {
            assert_eq!(Civil::from_epoch(seconds), Civil { year, month, day, hour, minute, second });
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = Civil::from_epoch(0);
        for day in 1..2 * DAYS_PER_CYCLE {
            let now = Civil::from_epoch(day * SECONDS_PER_DAY);
            let expected = match (now.month, now.day) {
                (1, 1) => (before.year + 1, 12, 31),
                (_, 1) => (before.year, before.month + 1, 1),
                _ => (before.year, before.month, before.day + 1),
            };
            match now.day {
                1 if now.month == 1 => assert_eq!((now.year, before.month, before.day), expected),
                _ => assert_eq!((now.year, now.month, now.day), expected),
            }
            before = now;
        }
    }

    #[test]
    fn a_clock_far_off_is_still_a_date() {
        let far = Civil::from_epoch(u64::MAX);
        assert!((1..=12).contains(&far.month) && (1..=31).contains(&far.day));
    }
}
