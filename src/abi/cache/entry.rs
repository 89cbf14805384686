//! A cached response as a cache library uses it: buffers with sizes, and the allocator that copies them.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::server::BufferAttributes;
use nereid_request::Status;

/// Buffers that a cache may add to one entry. The server's entries have one.
const BUFFERS_MAX: usize = 1024;
/// Bytes of one entry, as in Redis.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;
/// `TRITONSERVER_MEMORY_GPU`.
const GPU: u32 = 2;

/// `TRITONCACHE_CacheEntry`: lives as long as the call that gets it.
#[derive(Debug)]
pub struct EntryHandle(Mutex<EntryState>);

#[derive(Debug)]
struct EntryState {
    purpose: Purpose,
    buffers: Vec<Buffer>,
    is_copied: bool,
}

#[derive(Debug)]
enum Purpose {
    /// The content for the buffers of the cache, one piece for each buffer.
    Insert(Vec<Vec<u8>>),
    /// The pieces that were copied out of the cache's buffers.
    Lookup(Vec<Vec<u8>>),
}

#[derive(Debug)]
struct Buffer {
    /// The address in the cache; NULL until it is set.
    base: *mut c_void,
    byte_size: usize,
    memory_type: u32,
    memory_type_id: i64,
}

// SAFETY: the pointers are only followed inside `copy`, whose contract allows it.
unsafe impl Send for Buffer {}

/// `TRITONCACHE_Allocator`, of one entry.
#[derive(Debug)]
pub struct AllocatorHandle(*const EntryHandle);

impl AllocatorHandle {
    pub fn new(entry: *const EntryHandle) -> AllocatorHandle {
        AllocatorHandle(entry)
    }

    pub fn is_of(&self, entry: *const EntryHandle) -> bool {
        self.0 == entry
    }
}

impl EntryHandle {
    /// An entry to insert, made of these pieces.
    pub fn inserting(pieces: Vec<Vec<u8>>) -> EntryHandle {
        let buffer = |piece: &Vec<u8>| Buffer {
            base: std::ptr::null_mut(),
            byte_size: piece.len(),
            memory_type: 0,
            memory_type_id: 0,
        };
        let buffers = pieces.iter().map(buffer).collect();
        EntryHandle(Mutex::new(EntryState { purpose: Purpose::Insert(pieces), buffers, is_copied: false }))
    }

    /// An empty entry for a lookup.
    pub fn looking_up() -> EntryHandle {
        EntryHandle(Mutex::new(EntryState {
            purpose: Purpose::Lookup(Vec::new()),
            buffers: Vec::new(),
            is_copied: false,
        }))
    }

    /// The pieces that were found; None unless the cache called `TRITONCACHE_Copy`.
    pub fn found(self) -> Option<Vec<Vec<u8>>> {
        let state = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.purpose {
            Purpose::Lookup(found) if state.is_copied => Some(found),
            Purpose::Lookup(_) | Purpose::Insert(_) => None,
        }
    }

    /// Whether the cache called `TRITONCACHE_Copy`.
    pub fn is_copied(&self) -> bool {
        self.lock().is_copied
    }

    pub fn buffer_count(&self) -> usize {
        self.lock().buffers.len()
    }

    pub fn add(&self, base: *mut c_void, attributes: &BufferAttributes) -> Result<(), Status> {
        let mut state = self.lock();
        if matches!(state.purpose, Purpose::Insert(_)) {
            return Err(Status::invalid("buffers can be added only to an entry that is looked up"));
        }
        state.refuse_if_copied()?;
        if base.is_null() {
            return Err(Status::invalid(INCOMPLETE));
        }
        if attributes.byte_size == 0 {
            return Err(Status::invalid("Buffer byte size was zero"));
        }
        refuse_device(attributes.memory_type)?;
        if state.buffers.len() == BUFFERS_MAX {
            return Err(Status::invalid(format!("an entry may have at most {BUFFERS_MAX} buffers")));
        }
        let taken: usize = state.buffers.iter().map(|buffer| buffer.byte_size).sum();
        if attributes.byte_size > ENTRY_BYTES_MAX - taken {
            return Err(Status::invalid(format!("an entry may have at most {ENTRY_BYTES_MAX} bytes")));
        }
        state.buffers.push(Buffer {
            base,
            byte_size: attributes.byte_size,
            memory_type: attributes.memory_type,
            memory_type_id: attributes.memory_type_id,
        });
        Ok(())
    }

    pub fn get(&self, index: usize) -> Result<(*mut c_void, BufferAttributes), Status> {
        let state = self.lock();
        let buffer = state.buffers.get(index).ok_or_else(no_buffer)?;
        let attributes = BufferAttributes {
            memory_type: buffer.memory_type,
            memory_type_id: buffer.memory_type_id,
            byte_size: buffer.byte_size,
            ..BufferAttributes::default()
        };
        Ok((buffer.base, attributes))
    }

    pub fn set(&self, index: usize, base: *mut c_void, attributes: Option<&BufferAttributes>) -> Result<(), Status> {
        let mut state = self.lock();
        state.refuse_if_copied()?;
        let buffer = state.buffers.get_mut(index).ok_or_else(no_buffer)?;
        if let Some(attributes) = attributes {
            if attributes.byte_size != buffer.byte_size {
                let (has, given) = (buffer.byte_size, attributes.byte_size);
                return Err(Status::invalid(format!("buffer {index} has {has} bytes and cannot get {given}")));
            }
            refuse_device(attributes.memory_type)?;
            buffer.memory_type = attributes.memory_type;
            buffer.memory_type_id = attributes.memory_type_id;
        }
        buffer.base = base;
        Ok(())
    }

    /// # Safety
    /// Every buffer is readable, or writable when the entry is inserted, for its whole size.
    pub unsafe fn copy(&self) -> Result<(), Status> {
        let mut state = self.lock();
        state.refuse_if_copied()?;
        let EntryState { purpose, buffers, is_copied } = &mut *state;
        if let Some(index) = buffers.iter().position(|buffer| buffer.base.is_null()) {
            return Err(Status::invalid(format!("buffer {index} was not set")));
        }
        match purpose {
            Purpose::Insert(pieces) => {
                for (piece, buffer) in pieces.iter().zip(buffers.iter()) {
                    // SAFETY: by contract the buffer has room for as many bytes as its attributes state, which is the
                    // length of the piece, and a foreign buffer does not overlap with ours.
                    unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), buffer.base.cast(), piece.len()) };
                }
            }
            Purpose::Lookup(found) => {
                for buffer in buffers.iter_mut() {
                    // SAFETY: by contract the buffer is readable for the size that the cache passed.
                    let bytes = unsafe { std::slice::from_raw_parts(buffer.base.cast::<u8>(), buffer.byte_size) };
                    let mut piece = bytes.to_vec();
                    // From now on the entry refers to the copy: the cache may free its own buffer.
                    (buffer.base, buffer.memory_type, buffer.memory_type_id) = (piece.as_mut_ptr().cast(), 0, 0);
                    found.push(piece);
                }
            }
        }
        *is_copied = true;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EntryState {
    fn refuse_if_copied(&self) -> Result<(), Status> {
        if self.is_copied { Err(Status::invalid("the entry was copied already")) } else { Ok(()) }
    }
}

/// Triton's text for an incomplete buffer.
pub const INCOMPLETE: &str = "entry, base, or attrs was nullptr";

fn no_buffer() -> Status {
    Status::invalid("index was greater than count")
}

fn refuse_device(memory_type: u32) -> Result<(), Status> {
    match memory_type {
        0..GPU => Ok(()),
        GPU => Err(Status::invalid("Only buffers in CPU memory are allowed in cache currently")),
        other => Err(Status::invalid(format!("unknown memory type {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(byte_size: usize) -> BufferAttributes {
        BufferAttributes { byte_size, ..BufferAttributes::default() }
    }

    #[test]
    fn an_entry_is_copied_once_to_where_the_cache_says() {
        let entry = EntryHandle::inserting(vec![b"abc".to_vec(), b"defg".to_vec()]);
        let (mut one, mut two) = ([0u8; 3], [0u8; 4]);
        assert_eq!(entry.buffer_count(), 2);
        let (base, attributes) = entry.get(1).unwrap();
        assert_eq!((base, attributes.byte_size, attributes.memory_type), (std::ptr::null_mut(), 4, 0));
        assert_eq!(entry.get(2).unwrap_err(), Status::invalid("index was greater than count"));
        // SAFETY: the buffers are as large as their attributes state.
        unsafe {
            assert_eq!(entry.copy(), Err(Status::invalid("buffer 0 was not set")));
            entry.set(0, one.as_mut_ptr().cast(), None).unwrap();
            assert_eq!(entry.copy(), Err(Status::invalid("buffer 1 was not set")));
            let wrong = entry.set(1, two.as_mut_ptr().cast(), Some(&sized(3)));
            assert_eq!(wrong, Err(Status::invalid("buffer 1 has 4 bytes and cannot get 3")));
            entry.set(1, two.as_mut_ptr().cast(), Some(&sized(4))).unwrap();
            assert!(!entry.is_copied());
            assert_eq!(entry.copy(), Ok(()));
            assert!(entry.is_copied());
            assert_eq!(entry.copy(), Err(Status::invalid("the entry was copied already")));
        }
        assert_eq!((&one, &two), (b"abc", b"defg"));
        assert!(entry.set(0, one.as_mut_ptr().cast(), None).is_err());
        assert!(entry.add(one.as_mut_ptr().cast(), &sized(3)).is_err());
        assert_eq!(entry.found(), None);
    }

    #[test]
    fn what_is_found_is_a_copy() {
        let mut held = *b"abcdef";
        let entry = EntryHandle::looking_up();
        entry.add(held.as_mut_ptr().cast(), &sized(4)).unwrap();
        // SAFETY: the buffer is readable.
        assert_eq!(unsafe { entry.copy() }, Ok(()));
        held.fill(0);
        let (base, attributes) = entry.get(0).unwrap();
        assert_ne!(base, held.as_mut_ptr().cast());
        assert_eq!(attributes.byte_size, 4);
        assert_eq!(entry.found(), Some(vec![b"abcd".to_vec()]));
        let entry = EntryHandle::looking_up();
        entry.add(held.as_mut_ptr().cast(), &sized(4)).unwrap();
        assert_eq!(entry.found(), None, "nobody copied it");
    }

    #[test]
    fn what_a_cache_may_add_is_bounded() {
        let mut held = [0u8; 4];
        let base = held.as_mut_ptr().cast();
        let entry = EntryHandle::looking_up();
        let error = |attributes: &BufferAttributes| entry.add(base, attributes).unwrap_err().message.into_owned();
        let text = format!("an entry may have at most {ENTRY_BYTES_MAX} bytes");
        assert_eq!(error(&sized(usize::MAX)), text);
        let on = |memory_type| BufferAttributes { memory_type, ..sized(4) };
        assert_eq!(error(&on(2)), "Only buffers in CPU memory are allowed in cache currently");
        assert_eq!(error(&on(9)), "unknown memory type 9");
        assert_eq!(entry.add(std::ptr::null_mut(), &sized(1)), Err(Status::invalid(INCOMPLETE)));
        assert_eq!(entry.add(base, &on(1)), Ok(()));
        assert_eq!(error(&sized(ENTRY_BYTES_MAX - 3)), text);
        for _ in 1..BUFFERS_MAX {
            entry.add(base, &sized(1)).unwrap();
        }
        assert_eq!(error(&sized(0)), "Buffer byte size was zero");
        assert_eq!(error(&sized(1)), "an entry may have at most 1024 buffers");
    }
}
