//! The findings on a configuration, each with its field.

use super::super::Error;

/// Most findings that are kept: no reader needs more.
const MOST: usize = 256;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path of the field, as [`super::super::text::Positions`] spells it; the field itself may be missing. Empty: the
    /// whole configuration.
    pub path: String,
    pub error: Error,
}

/// All findings, in the order of the server's checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    found: Vec<Finding>,
}

impl Findings {
    /// The error that the server reports.
    pub fn first(self) -> Result<(), Error> {
        self.found.into_iter().next().map_or(Ok(()), |finding| Err(finding.error))
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds the findings that are not in the list yet.
    pub fn extend(&mut self, others: Findings) {
        for Finding { path, error } in others.found {
            self.push(path, error);
        }
    }

    /// Removes the findings that do not fit.
    pub fn retain(&mut self, fits: impl Fn(&Finding) -> bool) {
        self.found.retain(fits);
    }

    pub fn push(&mut self, path: impl Into<String>, error: Error) {
        let finding = Finding { path: path.into(), error };
        if self.found.len() < MOST && !self.found.contains(&finding) {
            self.found.push(finding);
        }
    }

    pub(super) fn invalid(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.push(path, Error::invalid(message));
    }
}

impl IntoIterator for Findings {
    type Item = Finding;
    type IntoIter = std::vec::IntoIter<Finding>;

    fn into_iter(self) -> Self::IntoIter {
        self.found.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_one_counts_and_none_is_kept_twice() {
        let mut findings = Findings::default();
        assert!(findings.is_empty());
        assert_eq!(findings.clone().first(), Ok(()));
        for path in ["b", "a", "b"] {
            findings.invalid(path, path);
        }
        let mut others = findings.clone();
        others.invalid("c", "c");
        findings.extend(others);
        let paths: Vec<String> = findings.clone().into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["b", "a", "c"]);
        assert_eq!(findings.first(), Err(Error::invalid("b")));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut findings = Findings::default();
        (0..2 * MOST).for_each(|index| findings.invalid(format!("input[{index}]"), "wrong"));
        assert_eq!(findings.into_iter().count(), MOST);
    }
}
