//! A part of a segment that requests of one client refer to by name, as to a region that was registered.
//!
//! The name is a secret of the client's connection. The region goes with the connection; slices that point into it keep
//! its memory.

use std::sync::Arc;

use super::mapping::Mapping;
use super::{Region, RegionTable, Uses};

/// What the name of every lent region begins with.
pub const LENT_PREFIX: &[u8] = b"nereid-ipc/";

/// Requests find the region as long as this lives.
#[derive(Debug)]
pub struct LentRegion {
    region: Arc<Region>,
    table: Arc<RegionTable>,
}

impl LentRegion {
    pub(super) fn add(table: &Arc<RegionTable>, name: &[u8], mapping: Mapping) -> Option<LentRegion> {
        if !name.starts_with(LENT_PREFIX) {
            return None;
        }
        let region =
            Arc::new(Region { name: name.into(), key: Box::default(), offset: 0, uses: Uses::default(), mapping });
        let mut regions = table.lock();
        if regions.contains_key(name) {
            return None;
        }
        regions.insert(name.into(), Arc::clone(&region));
        drop(regions);
        Some(LentRegion { region, table: Arc::clone(table) })
    }
}

impl Drop for LentRegion {
    fn drop(&mut self) {
        drop(self.table.remove(&self.region));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Regions;
    use super::*;
    use crate::Segment;

    #[test]
    fn a_lent_region_is_found_by_its_name_alone_and_goes_with_its_owner() {
        let regions = Regions::default();
        let segment = Arc::new(Segment::create(8192).unwrap());
        let name = [LENT_PREFIX, b"5d"].concat();
        assert!(regions.lend(b"other", Arc::clone(&segment), 0, 64).is_none(), "a name that a client could register");
        assert!(regions.lend(&name, Arc::clone(&segment), 4096, 4097).is_none(), "longer than the segment");
        let lent = regions.lend(&name, Arc::clone(&segment), 4096, 4096).unwrap();
        assert!(regions.lend(&name, Arc::clone(&segment), 0, 64).is_none(), "taken");
        assert!(regions.is_empty() && regions.list().is_empty() && regions.find(&name).is_none());
        regions.unregister(&name).unwrap();
        let found = regions.get(&name).unwrap();
        let slice = found.window(64, 6).unwrap().slice();
        assert!(segment.write(4096 + 64, b"tensor") && found.window(4000, 97).is_err());
        drop((lent, segment));
        assert!(regions.get(&name).is_none());
        drop(found);
        assert!(&*slice == b"tensor" && slice.is_in_region(), "it keeps its memory");
    }
}
