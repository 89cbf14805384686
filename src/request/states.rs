//! Implicit state: tensors that a model hands from one request of a sequence to the next
//! (contract/schedulers.md section 3).
//!
//! A request brings the present values as ordinary inputs; what its backend puts here becomes the inputs of the next
//! request of the same sequence. A backend requests a [`StateHandle`], writes into the buffer that it gets from it, and
//! reports when the new value counts. The values lie under a lock, because a backend may update from any thread.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{DataType, Shape, Status, element_count};
use nereid_memory::{BlockMut, Exhausted, Pool, Slice};

/// One state tensor.
#[derive(Debug, Clone)]
pub struct StateTensor {
    /// The model's input that gets it.
    pub input_name: String,
    /// The model's output that updates it.
    pub output_name: String,
    pub datatype: DataType,
    /// Full shape, batch dimension included.
    pub shape: Shape,
    pub data: Slice,
}

/// How the values of a state follow each other in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Buffering {
    /// Each has a buffer of its own, and counts once its backend reports it.
    #[default]
    Apart,
    /// What a backend writes is the next value, without a word from it; a buffer of another size begins anew.
    Single,
    /// The same, but that a buffer of another size begins with what the present one holds.
    Growing,
}

/// The states of one sequence, shared by its scheduler and the request that executes.
#[derive(Default)]
pub struct States {
    tensors: Mutex<Vec<StateTensor>>,
    /// By tensor: made when the backend first requests one, then kept, because C holds pointers to them.
    handles: Mutex<Vec<Option<Box<StateHandle>>>>,
    /// By tensor.
    buffering: Vec<Buffering>,
    /// Where buffers come from; unbounded memory where there is none.
    pool: Option<Pool>,
}

impl States {
    pub fn new(tensors: Vec<StateTensor>) -> States {
        States { tensors: Mutex::new(tensors), ..States::default() }
    }

    /// Takes buffers for new values from `pool`, for each tensor in its way.
    pub fn with_buffers(self, pool: Option<Pool>, buffering: Vec<Buffering>) -> States {
        States { pool, buffering, ..self }
    }

    /// Replaces the state that the output `name` updates; any type and shape that the model gives.
    pub fn update(&self, name: &str, datatype: DataType, shape: Shape, data: Slice) -> Result<(), Status> {
        let at = self.position(name)?;
        self.replace(at, datatype, shape, data);
        Ok(())
    }

    /// The present values.
    pub fn tensors(&self) -> Vec<StateTensor> {
        let mut written = Vec::new();
        for (at, handle) in lock(&self.handles).iter().enumerate() {
            if let Some(handle) = handle
                && self.is_single(at)
                && let Some(written_now) = handle.take_written()
            {
                written.push((at, written_now));
            }
        }
        written.into_iter().for_each(|(at, (datatype, shape, data))| self.replace(at, datatype, shape, data));
        lock(&self.tensors).clone()
    }

    /// Shapes of the present values, in their order.
    pub fn shapes(&self) -> Vec<Shape> {
        lock(&self.tensors).iter().map(|tensor| tensor.shape.clone()).collect()
    }

    /// A handle for a new value of the state that the output `name` updates. It lives as long as the states; a second
    /// call starts it anew.
    pub fn handle(
        self: &Arc<Self>,
        name: &str,
        datatype: DataType,
        shape: Shape,
    ) -> Result<*const StateHandle, Status> {
        let at = self.position(name)?;
        let mut handles = lock(&self.handles);
        if handles.len() <= at {
            handles.resize_with(at + 1, || None);
        }
        let new = || {
            Box::new(StateHandle {
                states: Arc::downgrade(self),
                at,
                draft: Mutex::new(Draft { datatype, shape: Shape::new(), buffer: None }),
                attachment: Mutex::default(),
            })
        };
        let handle = handles.get_mut(at).map(|place| place.get_or_insert_with(new));
        let handle = handle.ok_or_else(|| Status::internal("a state has no place for its handle"))?;
        // A single buffer stays what it is; another one is a value that was given up.
        let kept = if self.is_single(at) { lock(&handle.draft).buffer.take() } else { None };
        *lock(&handle.draft) = Draft { datatype, shape, buffer: kept };
        Ok(&raw const **handle)
    }

    fn is_single(&self, at: usize) -> bool {
        self.buffering(at) != Buffering::Apart
    }

    fn buffering(&self, at: usize) -> Buffering {
        self.buffering.get(at).copied().unwrap_or_default()
    }

    fn position(&self, name: &str) -> Result<usize, Status> {
        let found = lock(&self.tensors).iter().position(|state| state.output_name == name);
        found.ok_or_else(|| Status::invalid(format!("state '{name}' is not a valid state name.")))
    }

    fn replace(&self, at: usize, datatype: DataType, shape: Shape, data: Slice) {
        // What a caller lent for one request, or another process may write to, cannot become the state of the next.
        let data = if data.is_lent() { Slice::copy_of(&data) } else { data.stable() };
        let mut tensors = lock(&self.tensors);
        if let Some(state) = tensors.get_mut(at) {
            let old = std::mem::replace(&mut state.data, data);
            (state.datatype, state.shape) = (datatype, shape);
            drop(tensors);
            // Perhaps to its pool: not under the lock.
            drop(old);
        }
    }

    fn allocate(&self, byte_size: usize) -> Result<BlockMut, Exhausted> {
        match &self.pool {
            Some(pool) => pool.get(byte_size),
            None => BlockMut::try_unpooled(byte_size),
        }
    }
}

/// A new value in the making: what a backend holds between asking for a state and updating it.
pub struct StateHandle {
    states: Weak<States>,
    at: usize,
    draft: Mutex<Draft>,
    /// The C interface's own, which lives as long as the handle.
    attachment: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Draft {
    datatype: DataType,
    shape: Shape,
    buffer: Option<BlockMut>,
}

impl StateHandle {
    /// `byte_size` bytes for the new value: the same ones as before if that was as large. With a single buffer for
    /// input and output they hold the present value; what is new of one that grows is zero.
    pub fn buffer(&self, byte_size: usize) -> Result<*mut u8, Status> {
        let states = self.states()?;
        let mut draft = lock(&self.draft);
        if let Some(buffer) = draft.buffer.as_mut().filter(|buffer| buffer.len() == byte_size) {
            return Ok(buffer.as_mut_ptr());
        }
        let mut buffer = states.allocate(byte_size)?;
        let present = || lock(&states.tensors).get(self.at).map(|tensor| tensor.data.clone()).unwrap_or_default();
        match states.buffering(self.at) {
            Buffering::Apart => {}
            Buffering::Single => {
                let present = present();
                if present.len() == byte_size {
                    buffer.copy_from_slice(&present);
                }
            }
            Buffering::Growing => match &draft.buffer {
                Some(written) => carry_over(written, &mut buffer),
                None => carry_over(&present(), &mut buffer),
            },
        }
        Ok(draft.buffer.insert(buffer).as_mut_ptr())
    }

    /// Bytes of the buffer that was requested last.
    pub fn byte_size(&self) -> usize {
        lock(&self.draft).buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// From now on the new value is the present one.
    pub fn update(&self) -> Result<(), Status> {
        let states = self.states()?;
        let written = self.take_written();
        let draft = lock(&self.draft);
        match written {
            Some((datatype, shape, data)) => {
                drop(draft);
                states.replace(self.at, datatype, shape, data);
                Ok(())
            }
            None if element_count(&draft.shape) == Some(0) => {
                let (datatype, shape) = (draft.datatype, draft.shape.clone());
                drop(draft);
                states.replace(self.at, datatype, shape, Slice::empty());
                Ok(())
            }
            None => Err(Status::invalid("the state has no buffer that could become its value")),
        }
    }

    /// Runs `with` on what the C interface keeps here.
    pub fn attachment<R>(&self, with: impl FnOnce(&mut Option<Box<dyn Any + Send>>) -> R) -> R {
        with(&mut lock(&self.attachment))
    }

    fn take_written(&self) -> Option<(DataType, Shape, Slice)> {
        let mut draft = lock(&self.draft);
        let data = draft.buffer.take()?.freeze();
        Some((draft.datatype, draft.shape.clone(), data))
    }

    fn states(&self) -> Result<Arc<States>, Status> {
        self.states.upgrade().ok_or_else(|| Status::internal("the sequence of the state is over"))
    }
}

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "States({})", lock(&self.tensors).len())
    }
}

impl std::fmt::Debug for StateHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateHandle({})", self.at)
    }
}

/// As much of `old` as there is room for, and zeros behind it.
fn carry_over(old: &[u8], new: &mut [u8]) {
    let (kept, fresh) = new.split_at_mut(old.len().min(new.len()));
    kept.copy_from_slice(&old[..kept.len()]);
    fresh.fill(0);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::regions::testing::{Object, registry};

    fn states(is_single: bool) -> Arc<States> {
        states_of(if is_single { Buffering::Single } else { Buffering::Apart })
    }

    fn states_of(buffering: Buffering) -> Arc<States> {
        let tensor = StateTensor {
            input_name: "IN".to_owned(),
            output_name: "OUT".to_owned(),
            datatype: DataType::Uint8,
            shape: Shape::from_slice(&[2]),
            data: Slice::copy_of(b"ab"),
        };
        Arc::new(States::new(vec![tensor]).with_buffers(None, vec![buffering]))
    }

    fn present(states: &States) -> (Vec<i64>, Vec<u8>) {
        let tensor = states.tensors().remove(0);
        (tensor.shape.to_vec(), tensor.data.to_vec())
    }

    fn draft(states: &Arc<States>, dims: &[i64]) -> Arc<States> {
        states.handle("OUT", DataType::Uint8, Shape::from_slice(dims)).unwrap();
        Arc::clone(states)
    }

    fn with_handle<R>(states: &Arc<States>, then: impl FnOnce(&StateHandle) -> R) -> R {
        let handles = lock(&states.handles);
        then(handles[0].as_ref().unwrap())
    }

    fn write(states: &Arc<States>, bytes: &[u8]) {
        with_handle(states, |handle| {
            handle.buffer(bytes.len()).unwrap();
            lock(&handle.draft).buffer.as_mut().unwrap().copy_from_slice(bytes);
        });
    }

    #[test]
    fn only_known_outputs_are_states() {
        let states = states(false);
        let error = Status::invalid("state 'IN' is not a valid state name.");
        assert_eq!(states.update("IN", DataType::Uint8, Shape::new(), Slice::empty()), Err(error.clone()));
        assert_eq!(states.handle("IN", DataType::Uint8, Shape::new()).err(), Some(error));
        states.update("OUT", DataType::Uint8, Shape::from_slice(&[1]), Slice::copy_of(b"z")).unwrap();
        assert_eq!(present(&states), (vec![1], b"z".to_vec()));
    }

    #[test]
    fn a_value_counts_once_its_backend_reports_it() {
        let states = draft(&states(false), &[3]);
        write(&states, b"xyz");
        assert_eq!(present(&states), (vec![2], b"ab".to_vec()), "not yet");
        assert_eq!(with_handle(&states, StateHandle::byte_size), 3);
        with_handle(&states, |handle| handle.update().unwrap());
        assert_eq!(present(&states), (vec![3], b"xyz".to_vec()), "of any size");
        let error = with_handle(&states, |handle| handle.update().unwrap_err());
        assert_eq!(error, Status::invalid("the state has no buffer that could become its value"));
        // One that was not updated is forgotten.
        write(&states, b"lost");
        let states = draft(&states, &[0]);
        with_handle(&states, |handle| handle.update().unwrap());
        assert_eq!(present(&states), (vec![0], Vec::new()));
    }

    #[test]
    fn the_same_size_is_the_same_buffer() {
        let states = draft(&states(false), &[2]);
        let at = |size| with_handle(&states, |handle| handle.buffer(size).unwrap());
        let first = at(200);
        assert_eq!(first, at(200));
        assert_eq!(with_handle(&states, StateHandle::byte_size), 200);
        at(4_000);
        assert_eq!(with_handle(&states, StateHandle::byte_size), 4_000);
    }

    #[test]
    fn a_state_is_not_what_a_client_can_change() {
        let object = Object::new(b"xy");
        let regions = registry(b"r", &object, 2);
        let slice = regions.get(b"r").unwrap().window(0, 2).unwrap().slice();
        let states = states(false);
        states.update("OUT", DataType::Uint8, Shape::from_slice(&[2]), slice).unwrap();
        object.write(0, b"zz");
        assert_eq!(present(&states), (vec![2], b"xy".to_vec()));
    }

    #[test]
    fn a_single_buffer_needs_no_update() {
        let states = draft(&states(true), &[2]);
        with_handle(&states, |handle| {
            handle.buffer(2).unwrap();
            assert_eq!(lock(&handle.draft).buffer.as_deref(), Some(&b"ab"[..]), "it holds the present value");
            lock(&handle.draft).buffer.as_mut().unwrap()[1] = b'!';
        });
        assert_eq!(present(&states), (vec![2], b"a!".to_vec()));
        assert_eq!(present(&states), (vec![2], b"a!".to_vec()), "and keeps it");
    }

    #[test]
    fn a_buffer_that_grows_keeps_what_it_holds() {
        let states = draft(&states_of(Buffering::Growing), &[4]);
        with_handle(&states, |handle| {
            let bytes = || lock(&handle.draft).buffer.as_deref().unwrap().to_vec();
            handle.buffer(4).unwrap();
            assert_eq!(bytes(), b"ab\0\0");
            lock(&handle.draft).buffer.as_mut().unwrap()[2] = b'c';
            handle.buffer(5).unwrap();
            assert_eq!(bytes(), b"abc\0\0", "also what was written a moment ago");
            handle.buffer(3).unwrap();
            assert_eq!(bytes(), b"abc");
        });
        let states = draft(&states, &[3]);
        assert_eq!(present(&states), (vec![3], b"abc".to_vec()), "the next request has it");
        with_handle(&states, |handle| assert!(handle.buffer(6).is_ok()));
        let states = draft(&states, &[6]);
        assert_eq!(present(&states), (vec![6], b"abc\0\0\0".to_vec()));
    }

    #[test]
    fn a_handle_does_not_keep_its_sequence() {
        let states = draft(&states(false), &[1]);
        let weak = Arc::downgrade(&states);
        drop(states);
        assert!(weak.upgrade().is_none());
    }
}
