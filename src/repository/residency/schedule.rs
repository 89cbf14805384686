//! `--model-prewarm`: models that are loaded at a time of the day, and pinned until another.

use std::collections::BTreeSet;
use std::str::FromStr;

use nereid_clock::LocalMinute;

const MINUTES_OF_DAY: u16 = 24 * 60;

/// `<name>@<HH:MM>[-<HH:MM>]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prewarm {
    pub model: String,
    /// Minutes since midnight.
    from: u16,
    /// None: the model is loaded at `from`, and an ordinary one afterwards.
    until: Option<u16>,
}

/// Why a text is no schedule.
#[derive(Debug, PartialEq, Eq)]
pub struct NoSchedule;

impl FromStr for Prewarm {
    type Err = NoSchedule;

    fn from_str(text: &str) -> Result<Prewarm, NoSchedule> {
        let (model, times) = text.rsplit_once('@').filter(|(model, _)| !model.is_empty()).ok_or(NoSchedule)?;
        let (from, until) = match times.split_once('-') {
            Some((from, until)) => (minute(from)?, Some(minute(until)?)),
            None => (minute(times)?, None),
        };
        match until == Some(from) {
            true => Err(NoSchedule),
            false => Ok(Prewarm { model: model.to_owned(), from, until }),
        }
    }
}

fn minute(text: &str) -> Result<u16, NoSchedule> {
    let number = |text: &str, below: u16| {
        let digits = Some(text).filter(|text| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse::<u16>().ok()).filter(|number| *number < below).ok_or(NoSchedule)
    };
    let (hours, minutes) = text.split_once(':').ok_or(NoSchedule)?;
    Ok(number(hours, 24)? * 60 + number(minutes, 60)?)
}

impl Prewarm {
    /// Whether the minute is in the window; past midnight too.
    fn holds(&self, minute: u16) -> bool {
        match self.until {
            None => minute == self.from,
            Some(until) if self.from < until => (self.from..until).contains(&minute),
            Some(until) => minute >= self.from || minute < until,
        }
    }
}

/// What is to be done at a minute.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// To be loaded now.
    pub load: BTreeSet<String>,
    /// To be kept.
    pub pinned: BTreeSet<String>,
}

/// The schedules, and which of them are in their windows.
#[derive(Debug, Default)]
pub struct Schedules {
    all: Vec<(Prewarm, bool)>,
    last: Option<LocalMinute>,
}

impl Schedules {
    pub fn new(all: &[Prewarm]) -> Schedules {
        Schedules { all: all.iter().map(|one| (one.clone(), false)).collect(), last: None }
    }

    /// The clock shows this minute. What was missed since the last call, by at most a day, is due now.
    pub fn at(&mut self, now: LocalMinute) -> Due {
        let last = self.last.replace(now);
        let mut due = Due::default();
        for (one, is_within) in &mut self.all {
            let was_within = std::mem::replace(is_within, one.holds(now.minute));
            // A moment without an end lies between two calls.
            let has_passed = one.until.is_none() && last.is_some_and(|last| passed(last, now, one.from));
            if !was_within && (*is_within || has_passed) {
                due.load.insert(one.model.clone());
            }
            if *is_within && one.until.is_some() {
                due.pinned.insert(one.model.clone());
            }
        }
        due
    }
}

/// Whether the clock has passed a minute of the day. A clock that was set back has passed nothing.
fn passed(last: LocalMinute, now: LocalMinute, minute: u16) -> bool {
    match now.day == last.day {
        true => last.minute < minute && minute <= now.minute,
        false => now > last && minute < MINUTES_OF_DAY && (minute > last.minute || minute <= now.minute),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn schedules_are_read() {
        let of = |model: &str, from, until| Ok(Prewarm { model: model.to_owned(), from, until });
        assert_eq!("a@08:30".parse(), of("a", 510, None));
        assert_eq!("a@b@08:30-17:00".parse(), of("a@b", 510, Some(1020)));
        assert_eq!("night@22:00-06:00".parse(), of("night", 1320, Some(360)));
        for text in ["", "a", "@08:30", "a@", "a@8:30", "a@24:00", "a@08:60", "a@08:30-", "a@08:30-08:30", "a@-08:30"] {
            assert_eq!(text.parse::<Prewarm>(), Err(NoSchedule), "{text}");
        }
    }

    #[test]
    fn a_window_loads_once_and_pins_until_its_end() {
        let at = |day, hour: u16, minute| LocalMinute { day, minute: hour * 60 + minute };
        let mut schedules = Schedules::new(&["day@08:00-17:00".parse().unwrap(), "night@22:00-06:00".parse().unwrap()]);
        // The server starts within a window.
        let due = |load: &[&str], pinned: &[&str]| Due { load: names(load), pinned: names(pinned) };
        assert_eq!(schedules.at(at(1, 7, 59)), due(&[], &[]));
        assert_eq!(schedules.at(at(1, 8, 0)), due(&["day"], &["day"]));
        assert_eq!(schedules.at(at(1, 8, 0)), due(&[], &["day"]));
        assert_eq!(schedules.at(at(1, 16, 59)), due(&[], &["day"]));
        assert_eq!(schedules.at(at(1, 17, 0)), due(&[], &[]));
        assert_eq!(schedules.at(at(1, 23, 0)), due(&["night"], &["night"]));
        assert_eq!(schedules.at(at(2, 5, 59)), due(&[], &["night"]), "past midnight");
        assert_eq!(schedules.at(at(2, 6, 0)), due(&[], &[]));
        assert_eq!(schedules.at(at(2, 9, 0)), due(&["day"], &["day"]), "its beginning was missed");
        let mut late = Schedules::new(&["day@08:00-17:00".parse().unwrap()]);
        assert_eq!(late.at(at(1, 12, 0)), due(&["day"], &["day"]), "the server starts within the window");
    }

    #[test]
    fn a_moment_loads_once_and_pins_nothing() {
        let at = |day, minute| LocalMinute { day, minute };
        let mut schedules = Schedules::new(&["a@00:10".parse().unwrap()]);
        let loads = |schedules: &mut Schedules, at| {
            let due = schedules.at(at);
            assert!(due.pinned.is_empty());
            !due.load.is_empty()
        };
        assert!(!loads(&mut schedules, at(1, 1_400)));
        assert!(loads(&mut schedules, at(2, 11)), "the minute itself was missed");
        assert!(!loads(&mut schedules, at(2, 12)));
        assert!(!loads(&mut schedules, at(2, 5)), "the clock was set back");
        assert!(loads(&mut schedules, at(2, 10)));
        assert!(!loads(&mut schedules, at(2, 10)) && !loads(&mut schedules, at(2, 11)));
    }
}
