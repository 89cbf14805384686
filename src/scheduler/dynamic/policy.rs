//! Queue policies: how many requests of a priority level may wait, how long, and what happens then
//! (contract/schedulers.md section 2, "Enqueue" and "Queue policy, priority").

use std::collections::BTreeMap;

use nereid_request::Request;
use nereid_wire::inference::model_queue_policy::TimeoutAction;
use nereid_wire::inference::{ModelDynamicBatching, ModelQueuePolicy};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    /// `None`: any number.
    pub max_queue_size: Option<usize>,
    pub action: TimeoutAction,
    /// 0: for ever.
    default_timeout_us: u64,
    allows_override: bool,
}

impl Policy {
    fn new(policy: Option<&ModelQueuePolicy>) -> Policy {
        let policy = policy.cloned().unwrap_or_default();
        Policy {
            max_queue_size: (policy.max_queue_size > 0).then_some(policy.max_queue_size as usize),
            action: policy.timeout_action(),
            default_timeout_us: policy.default_timeout_microseconds,
            allows_override: policy.allow_timeout_override,
        }
    }

    /// The last moment at which the request has not waited for too long. Its own timeout counts only if it is smaller
    /// than the default one, so that without a default there is none.
    pub fn deadline_ns(&self, request: &Request) -> Option<u64> {
        let own_us = request.queueing.timeout_us;
        let overrides = self.allows_override && 0 < own_us && own_us < self.default_timeout_us;
        let timeout_us = if overrides { own_us } else { self.default_timeout_us };
        let timeout_ns = timeout_us.saturating_mul(1_000);
        (timeout_us > 0).then(|| request.stamps.queued_ns.saturating_add(timeout_ns))
    }
}

/// The policies of all levels.
#[derive(Debug)]
pub(super) struct Policies {
    default: Policy,
    /// Of the levels with a policy of their own.
    own: BTreeMap<u64, Policy>,
}

impl Policies {
    pub fn new(config: &ModelDynamicBatching) -> Policies {
        let own = config.priority_queue_policy.iter();
        Policies {
            default: Policy::new(config.default_queue_policy.as_ref()),
            own: own.map(|(&level, policy)| (level, Policy::new(Some(policy)))).collect(),
        }
    }

    pub fn of(&self, level: u64) -> &Policy {
        if self.own.is_empty() { &self.default } else { self.own.get(&level).unwrap_or(&self.default) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use nereid_memory::{BlockMut, Exhausted};
    use nereid_request::{Completion, Delivery, Sink};

    struct Nowhere;

    impl Sink for Nowhere {
        fn deliver(&self, _key: u64, _delivery: Delivery) {}

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    /// Default timeout, whether it may be overridden, the request's own; the deadline in microseconds after 7.
    #[test]
    fn a_deadline_follows_the_rule_of_the_specification() {
        let rows = [
            (0, false, 0, None),
            (0, false, 9, None),
            // Without a default the request's own is never smaller.
            (0, true, 9, None),
            (100, false, 0, Some(100)),
            (100, false, 9, Some(100)),
            (100, true, 0, Some(100)),
            (100, true, 9, Some(9)),
            (100, true, 99, Some(99)),
            (100, true, 100, Some(100)),
            (100, true, 101, Some(100)),
            (u64::MAX, true, u64::MAX - 1, Some(u64::MAX)),
        ];
        for (default_timeout_microseconds, allow_timeout_override, timeout_us, expected) in rows {
            let config =
                ModelQueuePolicy { default_timeout_microseconds, allow_timeout_override, ..Default::default() };
            let mut request = Request::new(Completion::new(Arc::new(Nowhere), 0));
            (request.queueing.timeout_us, request.stamps.queued_ns) = (timeout_us, 7_000);
            let deadline = Policy::new(Some(&config)).deadline_ns(&request);
            let expected = expected.map(|us: u64| us.saturating_mul(1_000).saturating_add(7_000));
            assert_eq!(deadline, expected, "default {default_timeout_microseconds}, own {timeout_us}");
        }
    }

    #[test]
    fn a_level_without_a_policy_has_the_default_one() {
        let of = |max_queue_size| ModelQueuePolicy { max_queue_size, ..Default::default() };
        let config = ModelDynamicBatching {
            priority_levels: u64::MAX,
            default_queue_policy: Some(of(3)),
            priority_queue_policy: [(2, of(5)), (u64::MAX, of(0))].into(),
            ..Default::default()
        };
        let policies = Policies::new(&config);
        let sizes = [0, 1, 2, 3, u64::MAX].map(|level| policies.of(level).max_queue_size);
        assert_eq!(sizes, [Some(3), Some(3), Some(5), Some(3), None]);
        assert_eq!(Policies::new(&Default::default()).of(0).max_queue_size, None);
    }
}
