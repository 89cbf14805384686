//! Which of a model's versions are served (contract/model_config.md section 4).

use super::Error;
use nereid_wire::inference::ModelVersionPolicy;
use nereid_wire::inference::model_version_policy::PolicyChoice;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The numerically highest versions, at most so many.
    Latest(u32),
    All,
    Specific(Vec<i64>),
}

/// The selection of a policy from the versions on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Ascending, without duplicates.
    pub versions: Vec<i64>,
    /// Listed by the policy but not on disk: worth a line in the log, not an error.
    pub absent: Vec<i64>,
}

impl VersionPolicy {
    /// An absent policy is the latest version.
    pub fn from_config(policy: Option<&ModelVersionPolicy>) -> VersionPolicy {
        match policy.and_then(|policy| policy.policy_choice.as_ref()) {
            None => VersionPolicy::Latest(1),
            Some(PolicyChoice::Latest(latest)) => VersionPolicy::Latest(latest.num_versions),
            Some(PolicyChoice::All(_)) => VersionPolicy::All,
            Some(PolicyChoice::Specific(specific)) => VersionPolicy::Specific(specific.versions.clone()),
        }
    }

    /// Chooses from `available`, in any order.
    pub fn select(&self, available: &[i64]) -> Selection {
        let mut versions = available.to_vec();
        versions.sort_unstable();
        versions.dedup();
        let mut absent = Vec::new();
        match self {
            VersionPolicy::All => {}
            VersionPolicy::Latest(count) => {
                let surplus = versions.len().saturating_sub(usize::try_from(*count).unwrap_or(usize::MAX));
                versions.drain(..surplus);
            }
            VersionPolicy::Specific(listed) => {
                absent = listed.iter().filter(|version| versions.binary_search(version).is_err()).copied().collect();
                absent.sort_unstable();
                absent.dedup();
                versions.retain(|version| listed.contains(version));
            }
        }
        Selection { versions, absent }
    }
}

impl Selection {
    /// The versions, of which there must be one.
    pub fn at_least_one(self, model: &str) -> Result<Vec<i64>, Error> {
        if self.versions.is_empty() {
            return Err(Error::invalid(format!(
                "at least one version must be available under the version policy of model '{model}'"
            )));
        }
        Ok(self.versions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_wire::inference::model_version_policy::{All, Latest, Specific};

    #[test]
    fn policies_choose() {
        let latest = VersionPolicy::Latest;
        let specific = |versions: &[i64]| VersionPolicy::Specific(versions.to_vec());
        /// Policy, versions on disk, chosen, absent.
        type Case<'a> = (VersionPolicy, &'a [i64], &'a [i64], &'a [i64]);
        let cases: [Case<'_>; 12] = [
            (latest(1), &[1, 3, 2], &[3], &[]),
            (latest(2), &[1, 10, 9], &[9, 10], &[]),
            (latest(5), &[2, 1], &[1, 2], &[]),
            (latest(0), &[2, 1], &[], &[]),
            (latest(u32::MAX), &[0], &[0], &[]),
            (latest(1), &[], &[], &[]),
            (VersionPolicy::All, &[3, 1, 3], &[1, 3], &[]),
            (VersionPolicy::All, &[], &[], &[]),
            (specific(&[3, 1]), &[1, 2, 3], &[1, 3], &[]),
            (specific(&[4, 1, 4, 1]), &[1, 2], &[1], &[4]),
            (specific(&[]), &[1], &[], &[]),
            (specific(&[-1]), &[1], &[], &[-1]),
        ];
        for (policy, available, versions, absent) in cases {
            let selection = policy.select(available);
            assert_eq!(selection.versions, versions, "{policy:?} of {available:?}");
            assert_eq!(selection.absent, absent, "{policy:?} of {available:?}");
        }
    }

    #[test]
    fn nothing_selected_is_an_error() {
        let error = VersionPolicy::All.select(&[]).at_least_one("m").unwrap_err();
        assert_eq!(error.to_string(), "at least one version must be available under the version policy of model 'm'");
        assert_eq!(VersionPolicy::All.select(&[7]).at_least_one("m"), Ok(vec![7]));
    }

    #[test]
    fn read_from_the_configuration() {
        let of = |choice| VersionPolicy::from_config(Some(&ModelVersionPolicy { policy_choice: choice }));
        assert_eq!(VersionPolicy::from_config(None), VersionPolicy::Latest(1));
        assert_eq!(of(None), VersionPolicy::Latest(1));
        assert_eq!(of(Some(PolicyChoice::Latest(Latest { num_versions: 0 }))), VersionPolicy::Latest(0));
        assert_eq!(of(Some(PolicyChoice::All(All {}))), VersionPolicy::All);
        let specific = Specific { versions: vec![2] };
        assert_eq!(of(Some(PolicyChoice::Specific(specific))), VersionPolicy::Specific(vec![2]));
    }
}
