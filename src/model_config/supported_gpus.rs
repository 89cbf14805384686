//! The GPUs that instances may be placed on, by their numbers: all that a configuration needs to know of them.

use std::collections::BTreeSet;

/// See the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub enum SupportedGpus {
    /// There is no driver that this server could use any with.
    #[default]
    NoDriver,
    /// Those that have at least the compute capability that the server asks for.
    Found { ids: BTreeSet<i32>, capability_min: f64 },
}

impl SupportedGpus {
    pub fn ids(&self) -> &BTreeSet<i32> {
        static NONE: BTreeSet<i32> = BTreeSet::new();
        match self {
            SupportedGpus::NoDriver => &NONE,
            SupportedGpus::Found { ids, .. } => ids,
        }
    }

    pub fn has(&self, id: i32) -> bool {
        self.ids().contains(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.ids().is_empty()
    }
}
