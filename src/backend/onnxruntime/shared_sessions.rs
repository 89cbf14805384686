//! Sessions that all instances of one group share, if the model's parameter `share_session_between_instances` asks for
//! it: the weights lie in memory once. A session may be run by several threads at the same time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tracing::info;

use super::session::Session;
use nereid_request::Status;

/// The sessions of one model, by the groups of its instances. They live as long as instances use them.
#[derive(Debug, Default)]
pub struct SharedSessions {
    by_group: Mutex<BTreeMap<String, Weak<Session>>>,
}

impl SharedSessions {
    /// The session of the group of `instance`, which the first of its instances opens while the others wait.
    pub fn get(&self, instance: &str, open: impl FnOnce() -> Result<Session, Status>) -> Result<Arc<Session>, Status> {
        let group = group_of(instance);
        let mut by_group = self.by_group.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = by_group.get(group).and_then(Weak::upgrade) {
            info!("Reusing session for instance: {instance}");
            return Ok(session);
        }
        info!("Could not find a session corresponding to instance group: {group}");
        let session = Arc::new(open()?);
        by_group.retain(|_, session| session.strong_count() > 0);
        by_group.insert(group.to_owned(), Arc::downgrade(&session));
        Ok(session)
    }
}

/// The name of the group: that of the instance without its number.
fn group_of(instance: &str) -> &str {
    match instance.rsplit_once('_') {
        Some((group, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => group,
        _ => instance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_the_name_without_the_number() {
        for (instance, group) in [("m_0_3", "m_0"), ("m_0", "m"), ("named_12", "named"), ("named", "named"), ("_1", "")]
        {
            assert_eq!(group_of(instance), group);
        }
    }
}
