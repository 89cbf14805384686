//! Host policies: where on the host the instances of a policy run, and the settings that their backend gets.
//!
//! Given by `--host-policy=<policy>,<key>=<value>` (contract/cli.md section 2). The keys are `numa-node` and
//! `cpu-cores`; both are passed on to the backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use nereid_request::Status;

const NUMA_NODE: &str = "numa-node";
const CPU_CORES: &str = "cpu-cores";

/// More cores than any machine has; it limits the memory that a typing error may cost.
const CORE_MAX: usize = 1 << 16;
/// More nodes than any kernel supports; whether the host has the node is checked when it is used.
const NODE_MAX: usize = 4095;

/// The settings of one policy name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPolicy {
    pub name: String,
    /// All keys and values, the last value of each key.
    pub settings: BTreeMap<String, String>,
    /// The node of threads and their memory.
    pub numa_node: Option<usize>,
    /// The requested cores, ascending, without repetition.
    pub cpu_cores: Option<Vec<usize>>,
}

/// All policies of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPolicies {
    policies: BTreeMap<String, Arc<HostPolicy>>,
}

/// Refuses keys other than the server's own, as Triton does.
pub fn check_key(key: &str) -> Result<(), Status> {
    match [NUMA_NODE, CPU_CORES].contains(&key) {
        true => Ok(()),
        false => Err(Status::unsupported(format!(
            "Unsupported host policy setting '{key}' is specified, supported settings are '{NUMA_NODE}', '{CPU_CORES}'"
        ))),
    }
}

impl HostPolicies {
    /// Builds the policies from `(policy, key, value)`, in the order of the command line; a later value wins.
    pub fn new(settings: &[(String, String, String)]) -> Result<HostPolicies, String> {
        let mut policies: BTreeMap<String, HostPolicy> = BTreeMap::new();
        for (name, key, value) in settings {
            let policy = policies
                .entry(name.clone())
                .or_insert_with(|| HostPolicy { name: name.clone(), ..HostPolicy::default() });
            match key.as_str() {
                NUMA_NODE => policy.numa_node = Some(node(name, value)?),
                CPU_CORES => policy.cpu_cores = Some(cores(name, value)?),
                _ => {}
            }
            policy.settings.insert(key.clone(), value.clone());
        }
        Ok(HostPolicies { policies: policies.into_iter().map(|(name, policy)| (name, Arc::new(policy))).collect() })
    }

    /// The policy of that name; an empty one if there are no settings for it.
    pub fn get(&self, name: &str) -> Arc<HostPolicy> {
        let unsaid = || Arc::new(HostPolicy { name: name.to_owned(), ..HostPolicy::default() });
        self.policies.get(name).map_or_else(unsaid, Arc::clone)
    }

    /// The policies that have settings.
    pub fn iter(&self) -> impl Iterator<Item = &HostPolicy> {
        self.policies.values().map(|policy| &**policy)
    }
}

impl HostPolicy {
    /// Whether it places threads or memory.
    pub fn is_placement(&self) -> bool {
        self.numa_node.is_some() || self.cpu_cores.is_some()
    }

    /// `{"<policy>":{"<key>":"<value>",…}}`, the message that a backend gets (contract/c_api.md section 5,
    /// "HostPolicy message").
    pub fn json(&self) -> String {
        serde_json::json!({ self.name.as_str(): self.settings }).to_string()
    }
}

/// `parse` alone would accept a sign.
fn number(text: &str) -> Option<usize> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn node(policy: &str, value: &str) -> Result<usize, String> {
    number(value).filter(|&node| node <= NODE_MAX).ok_or_else(|| {
        format!("Invalid host policy '{policy}': {NUMA_NODE} must be the number of a NUMA node, got '{value}'")
    })
}

fn cores(policy: &str, value: &str) -> Result<Vec<usize>, String> {
    let invalid =
        || format!("Invalid host policy '{policy}': {CPU_CORES} must be a list of cores like 0-3,8, got '{value}'");
    let mut cores = Vec::new();
    for part in value.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first).ok_or_else(invalid)?, number(last).ok_or_else(invalid)?);
        if first > last || last > CORE_MAX {
            return Err(invalid());
        }
        cores.extend(first..=last);
        // Ranges may overlap; without duplicates the list is no longer than the highest core's number plus one.
        cores.sort_unstable();
        cores.dedup();
    }
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(settings: &[(&str, &str, &str)]) -> Result<HostPolicies, String> {
        let owned =
            settings.iter().map(|(policy, key, value)| (policy.to_string(), key.to_string(), value.to_string()));
        HostPolicies::new(&owned.collect::<Vec<_>>())
    }

    #[test]
    fn settings_belong_to_their_policy_and_the_last_one_wins() {
        let policies = policies(&[
            ("cpu", "numa-node", "1"),
            ("gpu_0", "cpu-cores", "8-9"),
            ("cpu", "cpu-cores", "4, 0-2,1-2"),
            ("cpu", "numa-node", "0"),
        ])
        .unwrap();
        let cpu = policies.get("cpu");
        assert_eq!((cpu.numa_node, cpu.cpu_cores.as_deref()), (Some(0), Some(&[0, 1, 2, 4][..])));
        assert_eq!(cpu.json(), r#"{"cpu":{"cpu-cores":"4, 0-2,1-2","numa-node":"0"}}"#);
        assert_eq!(policies.get("gpu_0").cpu_cores, Some(vec![8, 9]));
        assert!(cpu.is_placement() && policies.get("gpu_0").is_placement());
        let other = policies.get("other");
        assert!(!other.is_placement());
        assert_eq!((other.name.as_str(), other.numa_node, other.json()), ("other", None, r#"{"other":{}}"#.to_owned()));
    }

    #[test]
    fn other_settings_are_refused_as_triton_refuses_them() {
        assert!(check_key("numa-node").is_ok() && check_key("cpu-cores").is_ok());
        let refused = check_key("colour").unwrap_err();
        let text =
            "Unsupported host policy setting 'colour' is specified, supported settings are 'numa-node', 'cpu-cores'";
        assert_eq!((refused.code.name(), &*refused.message), ("Unsupported", text));
    }

    #[test]
    fn what_cannot_be_read_names_policy_and_value() {
        for value in ["", "x", "-1", "+1", "4096", "0x1", "99999999999999999999"] {
            assert_eq!(
                policies(&[("cpu", "numa-node", value)]),
                Err(format!("Invalid host policy 'cpu': numa-node must be the number of a NUMA node, got '{value}'"))
            );
        }
        for value in ["", "x", "3-1", "1,,2", "1-", "-2", "1-2-3", "0-99999999", "+1"] {
            assert_eq!(
                policies(&[("p", "cpu-cores", value)]),
                Err(format!("Invalid host policy 'p': cpu-cores must be a list of cores like 0-3,8, got '{value}'"))
            );
        }
    }
}
