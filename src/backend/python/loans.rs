//! Tensors on devices that a worker is lent: each stays until nothing of the worker refers to it any more.
//!
//! The worker opens the allocation around a tensor by its handle, when its model asks where the tensor lies. What it
//! could not open, because it is another process's or the driver does not share it, is copied first.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::marshal::Writer;
use nereid_gpu::{DeviceSlice, DriverError, Exported};
use nereid_request::{DataType, Status};

/// Keys from here on are those of loans; below are ranges of shared memory.
pub const ON_DEVICE: u64 = 1 << 62;
/// Tensors that a worker may hold at a time.
const LOANS_MAX: usize = 1 << 16;

/// A tensor, as messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loan {
    pub key: u64,
    exported: Exported,
    len: usize,
    device: i32,
}

impl Loan {
    /// (handle, offset, length, key, device, lasts)
    pub fn write(&self, writer: &mut Writer) {
        writer.tuple(6);
        writer.bytes_head(self.exported.handle.len());
        let _ = writer.append(|bytes| {
            bytes.extend_from_slice(&self.exported.handle);
            Ok::<(), Status>(())
        });
        writer.int(self.exported.offset as u64);
        writer.int(self.len as u64);
        writer.int(self.key);
        writer.int(self.device);
        writer.bool(self.exported.lasts);
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct Loans(Mutex<State>);

#[derive(Default)]
struct State {
    lent: HashMap<u64, Lent>,
    count: u64,
}

struct Lent {
    slice: DeviceSlice,
    /// Where it begins in its allocation.
    offset: usize,
}

impl Loans {
    /// Lends a tensor. `None`: it has to be brought to the host, where every worker can read it. May block.
    pub fn lend(&self, slice: &DeviceSlice, datatype: DataType) -> Option<Loan> {
        // Strings are told apart on the host.
        if datatype == DataType::Bytes || slice.is_empty() || self.lock().lent.len() >= LOANS_MAX {
            return None;
        }
        match exported(slice) {
            Ok((slice, exported)) => {
                let (offset, len, device) = (exported.offset, slice.len(), slice.gpu().id());
                let mut state = self.lock();
                let key = ON_DEVICE | state.count;
                // More than any server lends.
                state.count = (state.count + 1) % ON_DEVICE;
                state.lent.insert(key, Lent { slice, offset });
                Some(Loan { key, exported, len, device })
            }
            Err(error) => {
                tracing::debug!("a tensor on GPU {} is brought to the host for its model: {error}", slice.gpu());
                None
            }
        }
    }

    /// The worker refers to these no more.
    pub fn release(&self, keys: impl Iterator<Item = u64>) {
        // Dropped outside the lock: what is the last of a tensor may have to tell others.
        let released: Vec<Lent> = {
            let mut state = self.lock();
            keys.filter_map(|key| state.lent.remove(&key)).collect()
        };
        drop(released);
    }

    /// A tensor that was lent, or a part of it, which a message of the worker names by its place in the allocation.
    pub fn find(&self, key: u64, offset: usize, len: usize) -> Option<DeviceSlice> {
        let state = self.lock();
        let Lent { slice, offset: begin } = state.lent.get(&key)?;
        let from = offset.checked_sub(*begin)?;
        let to = from.checked_add(len).filter(|to| *to <= slice.len())?;
        Some(slice.window(from..to))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().lent.len()
    }
}

/// The tensor as it can be opened elsewhere: itself, or a copy of it.
fn exported(slice: &DeviceSlice) -> Result<(DeviceSlice, Exported), DriverError> {
    if let Ok(exported) = slice.export() {
        return Ok((slice.clone(), exported));
    }
    let copy = slice.gpu().take_over(slice)?;
    let exported = copy.export()?;
    Ok((copy, exported))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::python::marshal::Value;
    use nereid_gpu::simulated::{Simulated, Spec};
    use nereid_gpu::{Gpus, Settings};

    fn gpus(pool_bytes: u64) -> Arc<Gpus> {
        let mut settings = Settings::default();
        settings.memory_pool_bytes.insert(0, pool_bytes);
        Gpus::with(Arc::new(Simulated::new(Spec::prompt(1, 1))), &settings)
    }

    #[test]
    fn a_loan_stays_until_it_is_released() {
        for (pool_bytes, lasts) in [(1 << 20, true), (0, false)] {
            let gpus = gpus(pool_bytes);
            let gpu = gpus.get(0).unwrap();
            let slice = gpu.put(&[7; 300]).unwrap();
            let loans = Loans::default();
            let (first, second) =
                (loans.lend(&slice, DataType::Uint8).unwrap(), loans.lend(&slice, DataType::Uint8).unwrap());
            assert!(first.key != second.key && first.key & ON_DEVICE > 0);
            let mut writer = Writer::default();
            first.write(&mut writer);
            let bytes = writer.finish();
            let value = Value::read(&bytes).unwrap();
            let [handle, offset, len, key, device, is_lasting] = value.as_tuple().unwrap();
            assert_eq!(handle.as_bytes().unwrap()[..8], *b"nereid-1");
            assert_eq!((len.as_int::<u64>(), key.as_int::<u64>()), (Ok(300), Ok(first.key)));
            assert_eq!((device.as_int::<i32>(), is_lasting.as_bool()), (Ok(0), Ok(lasts)));
            let offset: usize = offset.as_int().unwrap();
            drop(slice);
            let part = loans.find(first.key, offset + 100, 200).unwrap();
            let mut read = [0; 200];
            gpu.fetch(&part, &mut read).unwrap();
            assert_eq!(read, [7; 200]);
            for (from, len) in [(offset + 101, 200), (offset + 300, 1), (usize::MAX, 1), (offset, usize::MAX)] {
                assert!(loans.find(first.key, from, len).is_none(), "{from} {len}");
            }
            loans.release([first.key, first.key, 12].into_iter());
            assert!(loans.find(first.key, offset, 1).is_none() && loans.find(second.key, offset, 1).is_some());
            loans.release(std::iter::once(second.key));
            assert_eq!((loans.len(), gpu.pool_usage().0 > 0), (0, lasts), "the part is still held");
            drop(part);
            assert_eq!(gpu.pool_usage().0, 0);
        }
    }

    #[test]
    fn strings_and_nothing_are_brought_to_the_host() {
        let gpus = gpus(1 << 20);
        let gpu = gpus.get(0).unwrap();
        let loans = Loans::default();
        assert_eq!(loans.lend(&gpu.put(&[0; 4]).unwrap(), DataType::Bytes), None);
        assert_eq!(loans.lend(&gpu.put(&[]).unwrap(), DataType::Fp32), None);
        assert_eq!(loans.len(), 0);
    }
}
