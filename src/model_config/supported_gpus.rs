//! The GPUs that instances may be placed on, by their numbers.

use std::collections::BTreeSet;

/// See the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub enum SupportedGpus {
    /// There is no driver, so no GPU can be used.
    #[default]
    NoDriver,
    /// The GPUs that have at least the compute capability that the server requires.
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
