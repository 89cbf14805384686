//! Device tensors of the server that a worker may open: each is kept until the worker has released it.
//!
//! The worker opens the allocation around a tensor by its handle when its model asks for the tensor's address. A tensor
//! that cannot be exported, because it belongs to another process or the driver does not share it, is copied first.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::marshal::Writer;
use nereid_gpu::{DeviceSlice, DriverError, Exported};
use nereid_request::{DataType, Status};

/// Keys from here on name exported tensors; lower keys name ranges of shared memory.
pub const ON_DEVICE: u64 = 1 << 62;
/// Tensors that a worker may hold at a time.
const EXPORTED_MAX: usize = 1 << 16;

/// A tensor, as messages describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedTensor {
    pub key: u64,
    allocation: Exported,
    len: usize,
    device: i32,
}

impl ExportedTensor {
    /// (handle, offset, length, key, device, lasts)
    pub fn write(&self, writer: &mut Writer) {
        writer.tuple(6);
        writer.bytes_head(self.allocation.handle.len());
        let _ = writer.append(|bytes| {
            bytes.extend_from_slice(&self.allocation.handle);
            Ok::<(), Status>(())
        });
        writer.int(self.allocation.offset as u64);
        writer.int(self.len as u64);
        writer.int(self.key);
        writer.int(self.device);
        writer.bool(self.allocation.lasts);
    }
}

/// See the [module](self).
#[derive(Default)]
pub struct ExportedTensors(Mutex<State>);

#[derive(Default)]
struct State {
    tensors: HashMap<u64, Export>,
    count: u64,
}

struct Export {
    slice: DeviceSlice,
    /// The offset in its allocation.
    offset: usize,
}

impl ExportedTensors {
    /// Exports a tensor. `None`: the caller has to copy it to the host, where every worker can read it. May block.
    pub fn export(&self, slice: &DeviceSlice, datatype: DataType) -> Option<ExportedTensor> {
        // Strings are read on the host, which parses their lengths.
        if datatype == DataType::Bytes || slice.is_empty() || self.lock().tensors.len() >= EXPORTED_MAX {
            return None;
        }
        match export(slice) {
            Ok((slice, exported)) => {
                let (offset, len, device) = (exported.offset, slice.len(), slice.gpu().id());
                let mut state = self.lock();
                let key = ON_DEVICE | state.count;
                // The number wraps around; no server exports that many at a time.
                state.count = (state.count + 1) % ON_DEVICE;
                state.tensors.insert(key, Export { slice, offset });
                Some(ExportedTensor { key, allocation: exported, len, device })
            }
            Err(error) => {
                tracing::debug!("a tensor on GPU {} is brought to the host for its model: {error}", slice.gpu());
                None
            }
        }
    }

    /// Drops the tensors that the worker has released.
    pub fn release(&self, keys: impl Iterator<Item = u64>) {
        // Dropped outside the lock: the last drop of a tensor may call its owner.
        let released: Vec<Export> = {
            let mut state = self.lock();
            keys.filter_map(|key| state.tensors.remove(&key)).collect()
        };
        drop(released);
    }

    /// An exported tensor, or a part of it, which a message of the worker names by its offset in the allocation.
    pub fn find(&self, key: u64, offset: usize, len: usize) -> Option<DeviceSlice> {
        let state = self.lock();
        let Export { slice, offset: begin } = state.tensors.get(&key)?;
        let from = offset.checked_sub(*begin)?;
        let to = from.checked_add(len).filter(|to| *to <= slice.len())?;
        Some(slice.window(from..to))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().tensors.len()
    }
}

/// A tensor that another process can open: the tensor itself, or a copy of it.
fn export(slice: &DeviceSlice) -> Result<(DeviceSlice, Exported), DriverError> {
    if let Ok(exported) = slice.export() {
        return Ok((slice.clone(), exported));
    }
    let copy = slice.gpu().copy_here(slice)?;
    let exported = copy.export()?;
    Ok((copy, exported))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::python::marshal::Value;
    use nereid_gpu::simulated::{Simulated, Spec};
    use nereid_gpu::{Gpus, Settings};

    fn gpus(pool_bytes: u64) -> Arc<Gpus> {
        let mut settings = Settings::default();
        settings.memory_pool_bytes.insert(0, pool_bytes);
        Gpus::with(Arc::new(Simulated::new(Spec::prompt(1, 1))), &settings)
    }

    #[test]
    fn an_exported_tensor_stays_until_it_is_released() {
        for (pool_bytes, lasts) in [(1 << 20, true), (0, false)] {
            let gpus = gpus(pool_bytes);
            let gpu = gpus.get(0).unwrap();
            let slice = gpu.put(&[7; 300]).unwrap();
            let exported = ExportedTensors::default();
            let (first, second) =
                (exported.export(&slice, DataType::Uint8).unwrap(), exported.export(&slice, DataType::Uint8).unwrap());
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
            let part = exported.find(first.key, offset + 100, 200).unwrap();
            let mut read = [0; 200];
            gpu.fetch(&part, &mut read).unwrap();
            assert_eq!(read, [7; 200]);
            for (from, len) in [(offset + 101, 200), (offset + 300, 1), (usize::MAX, 1), (offset, usize::MAX)] {
                assert!(exported.find(first.key, from, len).is_none(), "{from} {len}");
            }
            exported.release([first.key, first.key, 12].into_iter());
            assert!(exported.find(first.key, offset, 1).is_none() && exported.find(second.key, offset, 1).is_some());
            exported.release(std::iter::once(second.key));
            assert_eq!((exported.len(), gpu.pool_usage().0 > 0), (0, lasts), "the part is still held");
            drop(part);
            assert_eq!(gpu.pool_usage().0, 0);
        }
    }

    #[test]
    fn strings_and_nothing_are_brought_to_the_host() {
        let gpus = gpus(1 << 20);
        let gpu = gpus.get(0).unwrap();
        let exported = ExportedTensors::default();
        assert_eq!(exported.export(&gpu.put(&[0; 4]).unwrap(), DataType::Bytes), None);
        assert_eq!(exported.export(&gpu.put(&[]).unwrap(), DataType::Fp32), None);
        assert_eq!(exported.len(), 0);
    }
}
