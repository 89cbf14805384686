//! The memory that backends report for their models and instances (contract/metrics.md section 3, `memory_usage`).
//!
//! Reported at loads and read on request of a client: never on the path of an inference request.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kinds of memory in the order in which they are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    Cpu,
    CpuPinned,
    Gpu,
}

impl MemoryKind {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Cpu => "CPU",
            MemoryKind::CpuPinned => "CPU_PINNED",
            MemoryKind::Gpu => "GPU",
        }
    }
}

/// Bytes of one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    pub kind: MemoryKind,
    /// The id of the device, or of the NUMA node.
    pub id: i64,
    pub byte_size: u64,
}

/// A holder of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    Model,
    /// An instance, by a number that no other existing instance of the model has.
    Instance(usize),
}

/// The newest report of every holder.
#[derive(Debug, Default)]
pub struct MemoryReports {
    holders: Mutex<BTreeMap<Holder, Vec<MemoryUse>>>,
}

impl MemoryReports {
    /// Replaces the report of `holder`.
    pub fn report(&self, holder: Holder, uses: Vec<MemoryUse>) {
        self.holders().insert(holder, uses);
    }

    /// Removes the report of `holder`, which is gone with its memory.
    pub fn forget(&self, holder: Holder) {
        self.holders().remove(&holder);
    }

    /// The sums by kind and id, kinds in their order and ids ascending.
    pub fn read(&self) -> Vec<MemoryUse> {
        let mut sums: BTreeMap<(MemoryKind, i64), u64> = BTreeMap::new();
        for one in self.holders().values().flatten() {
            let sum = sums.entry((one.kind, one.id)).or_default();
            *sum = sum.saturating_add(one.byte_size);
        }
        sums.into_iter().map(|((kind, id), byte_size)| MemoryUse { kind, id, byte_size }).collect()
    }

    fn holders(&self) -> MutexGuard<'_, BTreeMap<Holder, Vec<MemoryUse>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: MemoryKind, id: i64, byte_size: u64) -> MemoryUse {
        MemoryUse { kind, id, byte_size }
    }

    #[test]
    fn holders_add_up_by_place_and_the_newest_word_counts() {
        let memory = MemoryReports::default();
        assert_eq!(memory.read(), []);
        memory.report(Holder::Model, vec![of(MemoryKind::Gpu, 1, 5), of(MemoryKind::Cpu, 0, 7)]);
        memory.report(Holder::Instance(1), vec![of(MemoryKind::Cpu, 0, 100), of(MemoryKind::CpuPinned, 0, 1)]);
        memory.report(Holder::Instance(2), vec![of(MemoryKind::Cpu, 0, 1_000), of(MemoryKind::Gpu, 0, 2)]);
        let (pinned, gpu) = (of(MemoryKind::CpuPinned, 0, 1), of(MemoryKind::Gpu, 0, 2));
        assert_eq!(memory.read(), [of(MemoryKind::Cpu, 0, 1_107), pinned, gpu, of(MemoryKind::Gpu, 1, 5)]);
        memory.report(Holder::Model, Vec::new());
        assert_eq!(memory.read(), [of(MemoryKind::Cpu, 0, 1_100), pinned, gpu]);
        memory.forget(Holder::Instance(2));
        assert_eq!(memory.read(), [of(MemoryKind::Cpu, 0, 100), of(MemoryKind::CpuPinned, 0, 1)]);
        memory.report(Holder::Model, vec![of(MemoryKind::Cpu, 0, u64::MAX)]);
        assert_eq!(memory.read()[0].byte_size, u64::MAX, "a sum stops at the largest number");
    }
}
