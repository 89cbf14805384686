//! Device tensors of a worker that the server opens: outputs of its model, and inputs of its requests to other models.
//!
//! The server opens the allocation around a tensor by its handle. The worker keeps the tensor's owner until the server
//! sends the tensor's number back, which it does after it closed the allocation: freeing memory that another process
//! has open is undefined.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::link::Bell;
use nereid_gpu::{DeviceSlice, Gpus, Imported};
use nereid_request::Status;

/// Tensors that a worker may have lent at a time; a correct one requests the releases long before.
const IMPORTED_MAX: usize = 1 << 16;
/// Allocations that are recorded before closed ones are removed from the record.
const OPENED_MIN: usize = 16;
/// Allocations that stay open as long as the worker lives; a correct one has one for each device.
const KEPT_MAX: usize = 64;

/// An allocation, as a worker names it: the device and the handle.
type Name = (i32, [u8; 64]);

/// See the [module](self).
pub struct ImportedTensors {
    gpus: Arc<Gpus>,
    /// Rung when there are numbers to send to the worker.
    monitor: Bell,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Allocations that are open, or were.
    opened: HashMap<Name, Weak<Imported>>,
    /// Those that the worker does not free while it lives.
    kept: HashMap<Name, Arc<Imported>>,
    out: usize,
    /// Numbers that are still to be sent back to the worker.
    freed: Vec<u64>,
}

/// A tensor of the worker, as a message describes it.
#[derive(Debug, Clone, Copy)]
pub struct ImportedTensor<'a> {
    pub handle: &'a [u8],
    pub offset: usize,
    pub len: usize,
    /// The worker's number for it.
    pub number: u64,
    pub device: i32,
    /// The allocation lives as long as the worker.
    pub lasts: bool,
}

impl ImportedTensors {
    pub fn new(gpus: Arc<Gpus>, monitor: Bell) -> ImportedTensors {
        ImportedTensors { gpus, monitor, state: Mutex::default() }
    }

    /// Opens the tensor. Its number is sent back to the worker in any case, also after an error. May block.
    pub fn open(self: &Arc<Self>, place: &ImportedTensor<'_>) -> Result<DeviceSlice, Status> {
        self.lock().out += 1;
        // From here on the number is always given back.
        let held = Held { tensors: Arc::clone(self), number: place.number, imported: None };
        let failed = |text: String| {
            Status::internal(format!("memory of a Python model on GPU {} cannot be used: {text}", place.device))
        };
        if self.lock().out > IMPORTED_MAX {
            return Err(failed(format!("its process has lent {IMPORTED_MAX} tensors already")));
        }
        let handle = place.handle.try_into().map_err(|_| failed("its handle is none".to_owned()))?;
        let gpu = self.gpus.get(place.device).ok_or_else(|| failed("the server does not use that GPU".to_owned()))?;
        let name = (place.device, handle);
        let imported = self.imported(name, gpu).map_err(|error| failed(error.to_string()))?;
        if place.lasts {
            self.keep(name, &imported);
        }
        let held = held.of(Arc::clone(&imported));
        imported.slice(place.offset, place.len, held).map_err(|error| failed(error.to_string()))
    }

    /// The allocation, opened once for all tensors in it.
    fn imported(&self, name: Name, gpu: &nereid_gpu::Gpu) -> nereid_gpu::driver::Result<Arc<Imported>> {
        if let Some(open) = self.lock().opened.get(&name).and_then(Weak::upgrade) {
            return Ok(open);
        }
        // Outside the lock, because it is slow. A thread that opens it a second time meanwhile also closes it a second
        // time.
        let imported = Imported::open(gpu, &name.1)?;
        let mut state = self.lock();
        if state.opened.len() >= OPENED_MIN {
            state.opened.retain(|_, open| open.strong_count() > 0);
        }
        state.opened.insert(name, Arc::downgrade(&imported));
        Ok(imported)
    }

    /// Keeps the allocation open, so that its next tensor need not open it.
    fn keep(&self, name: Name, imported: &Arc<Imported>) {
        let mut state = self.lock();
        if state.kept.len() < KEPT_MAX || state.kept.contains_key(&name) {
            state.kept.insert(name, Arc::clone(imported));
        }
    }

    /// Queues the number for the worker: the tensor is closed, or was never opened.
    pub fn give_back(&self, number: u64) {
        self.lock().freed.push(number);
        self.monitor.ring();
    }

    /// Numbers to send to the worker; the caller puts them back if it cannot send them.
    pub fn take_freed(&self, most: usize) -> Vec<u64> {
        let mut state = self.lock();
        let kept = state.freed.len().saturating_sub(most);
        state.freed.split_off(kept)
    }

    pub fn put_back_freed(&self, numbers: Vec<u64>) {
        self.lock().freed.extend(numbers);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tensor of the worker that is in use.
struct Held {
    tensors: Arc<ImportedTensors>,
    number: u64,
    imported: Option<Arc<Imported>>,
}

impl Held {
    fn of(mut self, imported: Arc<Imported>) -> Held {
        self.imported = Some(imported);
        self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (tensors, number, imported) = (Arc::clone(&self.tensors), self.number, self.imported.take());
        // On the thread that closes allocations, so that the number is sent after the allocation is closed.
        nereid_gpu::run_in_background(move || {
            drop(imported);
            let mut state = tensors.lock();
            state.out = state.out.saturating_sub(1);
            drop(state);
            tensors.give_back(number);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::python::exported_tensors::ExportedTensors;
    use crate::python::link::{Bounds, Link};
    use nereid_gpu::Settings;
    use nereid_gpu::simulated::{Simulated, Spec};
    use nereid_request::DataType;

    /// Memory of a worker, simulated by a file.
    fn lent(content: &[u8]) -> (File, [u8; 64]) {
        let memory = rustix::fs::memfd_create(c"lent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let memory = File::from(memory);
        memory.set_len(8192).unwrap();
        memory.write_all_at(content, 512).unwrap();
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(b"nereid-1");
        handle[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        handle[12..16].copy_from_slice(&memory.as_raw_fd().to_le_bytes());
        handle[24..32].copy_from_slice(&8192u64.to_le_bytes());
        (memory, handle)
    }

    fn link(simulated: &Arc<Simulated>) -> Link {
        let bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 4096 };
        let gpus = Gpus::with(Arc::clone(simulated) as Arc<_>, &Settings::default());
        Link::new(bounds, 0, false, gpus).unwrap().0
    }

    /// The numbers for the worker, once there are that many.
    fn freed(imported: &ImportedTensors, count: usize) -> Vec<u64> {
        let began = Instant::now();
        let mut freed = Vec::new();
        while freed.len() < count {
            assert!(began.elapsed() < Duration::from_secs(300), "only {freed:?}");
            freed.extend(imported.take_freed(100));
            std::thread::yield_now();
        }
        freed.sort_unstable();
        freed
    }

    #[test]
    fn a_workers_tensor_is_read_where_it_lies_and_given_back() {
        let simulated = Arc::new(Simulated::new(Spec::prompt(2, 1)));
        let link = link(&simulated);
        let (_memory, handle) = lent(b"numbers");
        let place = ImportedTensor { handle: &handle, offset: 512, len: 7, number: 3, device: 1, lasts: false };
        let first = link.imported.open(&place).unwrap();
        let second = link.imported.open(&ImportedTensor { number: 4, offset: 514, len: 5, ..place }).unwrap();
        let mut read = [0; 5];
        second.gpu().fetch(&second, &mut read).unwrap();
        assert_eq!((&read, second.gpu().ordinal()), (b"mbers", 1));
        drop(first);
        assert_eq!(freed(&link.imported, 1), [3]);
        let copy = second.clone();
        drop(second);
        assert!(link.imported.take_freed(9).is_empty());
        // Memory of another process cannot be exported: it is copied first.
        assert!(copy.export().is_err());
        let exported = ExportedTensors::default();
        let tensor = exported.export(&copy, DataType::Uint8).unwrap();
        drop(copy);
        assert_eq!(freed(&link.imported, 1), [4]);
        exported.release(std::iter::once(tensor.key));
        assert_eq!(simulated.violations(), Vec::<String>::new());
    }

    #[test]
    fn an_allocation_that_lasts_is_opened_once_and_closed_with_the_link() {
        let simulated = Arc::new(Simulated::new(Spec::prompt(1, 1)));
        let link = link(&simulated);
        let (_memory, handle) = lent(b"numbers");
        let lasting = ImportedTensor { handle: &handle, offset: 512, len: 7, number: 1, device: 0, lasts: true };
        let addresses: Vec<_> = (1..9)
            .map(|number| {
                let slice = link.imported.open(&ImportedTensor { number, ..lasting }).unwrap();
                let at = slice.address();
                drop(slice);
                assert_eq!(freed(&link.imported, 1), [number]);
                at
            })
            .collect();
        assert!(addresses.iter().all(|at| *at == addresses[0]), "it stays open: {addresses:?}");
        // A worker that says so of everything does not make the server keep everything.
        let others: Vec<_> = (0..2 * KEPT_MAX).map(|_| lent(b"")).collect();
        for ((_, handle), number) in others.iter().zip(100..) {
            link.imported.open(&ImportedTensor { handle, number, ..lasting }).unwrap();
        }
        freed(&link.imported, others.len());
        assert_eq!(link.imported.lock().kept.len(), KEPT_MAX);
        let kept = Arc::downgrade(link.imported.lock().kept.values().next().unwrap());
        drop(link);
        let began = Instant::now();
        while kept.strong_count() > 0 {
            assert!(began.elapsed() < Duration::from_secs(300));
            std::thread::yield_now();
        }
        assert_eq!(simulated.violations(), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_with_a_place_is_an_error_and_comes_back_too() {
        let simulated = Arc::new(Simulated::new(Spec::prompt(1, 1)));
        let link = link(&simulated);
        let (_memory, handle) = lent(b"");
        let good = ImportedTensor { handle: &handle, offset: 0, len: 8, number: 1, device: 0, lasts: false };
        let nowhere = [0x6e; 64];
        let cases = [
            ImportedTensor { handle: &handle[..63], ..good },
            ImportedTensor { handle: &nowhere, number: 2, ..good },
            ImportedTensor { device: 1, number: 3, ..good },
            ImportedTensor { device: -1, number: 4, ..good },
            ImportedTensor { len: 8193, number: 5, ..good },
            ImportedTensor { offset: usize::MAX, number: 6, ..good },
        ];
        for place in &cases {
            let status = link.imported.open(place).unwrap_err();
            let begin = format!("memory of a Python model on GPU {} cannot be used: ", place.device);
            assert!(status.message.starts_with(&begin), "{status}");
        }
        assert_eq!(freed(&link.imported, 6), [1, 2, 3, 4, 5, 6]);
        assert!(link.imported.open(&good).is_ok());
        assert_eq!(simulated.violations(), Vec::<String>::new());
    }
}
