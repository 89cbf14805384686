//! The channels between a worker and the server: streams of frames with their doorbells, slots, and shared memory.
//!
//! A doorbell is an eventfd. A reader that is about to sleep asks for it in its bell word (`queue::bell`), looks at its
//! stream once more and then waits for the eventfd. A writer reads that word after its frames, and rings only if it is
//! asked to: the worker after each frame, unless it is about to send another (see [`instance`](super::instance)), the
//! server after the last of the frames that it has at the moment. For both looks, and where the worker reads a position
//! without a bell, it needs a memory fence ([`fence`](super::fence)).
//!
//! A worker may write anything to the bell words. If it does not ask for a bell, it is not woken; if it asks without
//! sleeping, the server writes one eventfd for each message; if it does not ring, the server's threads wait as they do
//! for a worker that sends nothing: until their time limit, or the end of its process.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

use super::exported_tensors::{ExportedTensors, ON_DEVICE};
use super::fence;
use super::imported_tensors::ImportedTensors;
use super::inbound::{Announce, Inbound, Range};
use super::marshal::Writer;
use super::message::{self, FAR, to_worker};
use super::outbound::Outbound;
use nereid_gpu::Gpus;
use nereid_memory::{Segment, Slice};
use nereid_queue::bell;
use nereid_queue::frames::{self, Consumer, Corrupt, Memory, Producer};
use nereid_request::{RequestEvents, Status};

/// Freed addresses that one message over the socket contains.
const FREED_AT_ONCE: usize = 2048;
/// Released device tensors that one message lists.
pub const LENT_AT_ONCE: usize = 4096;

/// The sizes of the memory that a worker and the server share, and of its growth.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub first_bytes: usize,
    pub growth_bytes: usize,
    /// In each direction.
    pub max_bytes: usize,
}

/// The location of a stream in a segment.
#[derive(Debug)]
pub struct StreamLocation {
    segment: Arc<Segment>,
    words: usize,
    at: usize,
    capacity: usize,
}

impl Memory for StreamLocation {
    fn head(&self) -> &AtomicU64 {
        self.segment.word(self.words)
    }

    fn tail(&self) -> &AtomicU64 {
        self.segment.word(self.words + message::WORD_STRIDE)
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let is_inside = self.segment.write(self.at + at, bytes);
        debug_assert!(is_inside);
    }

    fn read(&self, at: usize, len: usize, bytes: &mut Vec<u8>) {
        let is_inside = self.segment.read(self.at + at, len, bytes);
        debug_assert!(is_inside);
    }
}

/// The eventfd that wakes the reader of a stream.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    pub fn ring(&self) {
        // It fails only after 2^64 rings without a read.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Another descriptor of the same bell.
    pub fn another(&self) -> io::Result<Bell> {
        Ok(Bell(self.0.try_clone()?))
    }

    /// Waits until it has been rung since the last wait.
    pub fn wait(&self) {
        while let Err(rustix::io::Errno::INTR) = rustix::io::read(&self.0, &mut [0u8; 8]) {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The cancellation flags: a byte for every request that the worker may have.
pub struct Cancellations(Arc<Segment>);

impl Cancellations {
    pub fn set(&self, index: usize, is_cancelled: bool) {
        if index < message::OPEN_MAX {
            self.0.set_byte(message::CANCEL_BYTES + index, u8::from(is_cancelled));
        }
    }
}

impl RequestEvents for Cancellations {
    fn cancelled(&self, key: u64) {
        if let Ok(index) = usize::try_from(key) {
            self.set(index, true);
        }
    }
}

/// A bank of slots, on which threads of the worker wait for answers.
struct SlotBank {
    segment: Arc<Segment>,
    streams: Vec<Mutex<Producer<StreamLocation>>>,
    bells: Vec<Bell>,
}

impl SlotBank {
    /// A word of one slot.
    fn word(&self, number: usize, at: usize) -> &AtomicU64 {
        self.segment.word(number * message::SLOT_BYTES + at)
    }

    /// Rings the bell of one slot if somebody sleeps there.
    fn ring(&self, number: usize) {
        if bell::is_due(self.word(number, message::SLOT_BELL), bell::FRAMES)
            && let Some(bell) = self.bells.get(number)
        {
            bell.ring();
        }
    }
}

/// See the [module](self).
pub struct Link {
    control: Arc<Segment>,
    input: Mutex<Producer<StreamLocation>>,
    input_bell: Bell,
    output: Mutex<Consumer<StreamLocation>>,
    pub output_bell: Bell,
    aside: Mutex<Consumer<StreamLocation>>,
    pub aside_bell: Bell,
    /// New segments and slots are announced here, with their descriptors.
    socket: Mutex<OwnedFd>,
    banks: Mutex<Vec<Arc<SlotBank>>>,
    segments: AtomicU32,
    pub inbound: Arc<Inbound>,
    pub outbound: Arc<Outbound>,
    pub exported: ExportedTensors,
    pub imported: Arc<ImportedTensors>,
}

/// Why a frame could not be passed on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error("there is no room for a message to the worker")]
    Full,
    #[error("the worker holds all the memory that it may have ('shm-max-byte-size')")]
    NoMemory,
    #[error("{0}")]
    Memory(Status),
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for a bell. False: a frame came before that, and nothing is to be waited for.
fn park(word: &AtomicU64, stream: &Mutex<Consumer<StreamLocation>>) -> bool {
    bell::want(word, bell::FRAMES);
    !lock(stream).has_next()
}

impl Link {
    /// The link, and the worker's end of its socket, on which the first message already waits. The worker may spin for
    /// `spin_ns` before it sleeps, and with `fences` calls a [memory fence](super::fence) at every position.
    pub fn new(bounds: Bounds, spin_ns: u64, fences: bool, gpus: Arc<Gpus>) -> io::Result<(Link, OwnedFd)> {
        let control = Arc::new(Segment::create(message::CONTROL_BYTES)?);
        let place = |words, number| StreamLocation {
            segment: Arc::clone(&control),
            words,
            at: message::STREAMS + number * message::STREAM_BYTES,
            capacity: message::STREAM_BYTES,
        };
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let aside_bell = Bell::new()?;
        let link = Link {
            imported: Arc::new(ImportedTensors::new(gpus, aside_bell.another()?)),
            exported: ExportedTensors::default(),
            input: Mutex::new(Producer::new(place(message::INPUT_WORDS, 0))),
            output: Mutex::new(Consumer::new(place(message::OUTPUT_WORDS, 1))),
            aside: Mutex::new(Consumer::new(place(message::ASIDE_WORDS, 2))),
            control,
            input_bell: Bell::new()?,
            output_bell: Bell::new()?,
            aside_bell,
            socket: Mutex::new(ours),
            banks: Mutex::default(),
            segments: AtomicU32::new(1),
            inbound: Arc::new(Inbound::new(bounds.first_bytes, bounds.growth_bytes, bounds.max_bytes)),
            outbound: Arc::new(Outbound::new(bounds.first_bytes, bounds.growth_bytes, bounds.max_bytes)),
        };
        let mut hello = Writer::default();
        hello.tuple(4);
        hello.text(b"hello");
        hello.int(message::VERSION);
        hello.int(spin_ns);
        hello.bool(fences);
        let bells = [&link.input_bell, &link.output_bell, &link.aside_bell].map(Bell::as_fd);
        let fence = fence::library()?;
        let descriptors = [&[link.control.object()?][..], &bells, &[fence.as_fd()]].concat();
        link.send_control(hello.bytes(), &descriptors)?;
        Ok((link, theirs))
    }

    /// Sends a message over the socket. It never waits: the buffer holds more messages than a correct worker leaves
    /// unread.
    fn send_control(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(message::SLOTS_PER_BANK + 1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&*lock(&self.socket), &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        Ok(())
    }

    /// Writes a message for the worker's main thread, which may sleep: see [`ring`](Link::ring).
    pub fn push(&self, kind: u32, payload: &[u8]) -> Result<(), LinkError> {
        let is_far = payload.len() > frames::payload_max(message::STREAM_BYTES);
        let location = if is_far { Some(self.write_apart(payload)?) } else { None };
        let (kind, payload) = location.as_ref().map_or((kind, payload), |location| (kind | FAR, &location[..]));
        if !lock(&self.input).push(kind, payload)? {
            return Err(LinkError::Full);
        }
        Ok(())
    }

    /// Wakes the worker's main thread for pushed messages, if it sleeps.
    pub fn ring(&self) {
        if bell::is_due(self.control.word(message::INPUT_BELL), bell::FRAMES) {
            self.input_bell.ring();
        }
    }

    /// From now on the worker's main thread rings `output_bell` for a message, until [`Link::unpark`]. False: a message
    /// is there already.
    pub fn park(&self) -> bool {
        park(self.control.word(message::OUTPUT_BELL), &self.output)
    }

    /// The thread that waits for the worker's main thread does not sleep any more.
    pub fn unpark(&self) {
        bell::awake(self.control.word(message::OUTPUT_BELL));
    }

    /// The same for `aside_bell` and the worker's other threads.
    pub fn park_aside(&self) -> bool {
        park(self.control.word(message::ASIDE_BELL), &self.aside)
    }

    /// The thread that waits for the worker's other threads does not sleep any more.
    pub fn unpark_aside(&self) {
        bell::awake(self.control.word(message::ASIDE_BELL));
    }

    /// Reports to the worker the lent device tensors that are no longer in use. Without room in the stream it reports
    /// them the next time.
    pub fn send_freed(&self) {
        let freed = self.imported.take_freed(LENT_AT_ONCE);
        if freed.is_empty() {
            return;
        }
        let mut writer = Writer::default();
        writer.tuple(1);
        writer.list(freed.len());
        freed.iter().for_each(|number| writer.int(*number));
        match self.push(to_worker::FREED, writer.bytes()) {
            Ok(()) => self.ring(),
            Err(_) => self.imported.put_back_freed(freed),
        }
    }

    /// Releases the ranges and tensors of these keys, which the worker no longer refers to.
    pub fn release(&self, keys: &[u64]) {
        let is_lent = |key: &&u64| **key & ON_DEVICE > 0;
        self.exported.release(keys.iter().filter(is_lent).copied());
        self.inbound.release(keys.iter().filter(|key| !is_lent(key)).copied());
    }

    /// Whether the worker's main thread has sent something that was not received yet.
    pub fn has_output(&self) -> bool {
        lock(&self.output).has_next()
    }

    /// Writes a message to a range of its own, and returns the frame that locates it.
    fn write_apart(&self, payload: &[u8]) -> Result<Vec<u8>, LinkError> {
        let (range, memory) = self.reserve(payload.len()).map_err(LinkError::Memory)?.ok_or(LinkError::NoMemory)?;
        if !memory.write(range.offset as usize, payload) {
            return Err(LinkError::Full);
        }
        let mut location = Writer::default();
        write_range(&mut location, &range);
        Ok(location.finish())
    }

    /// A range of memory that the worker reads. `None`: it holds as much as it may.
    pub fn reserve(&self, len: usize) -> Result<Option<(Range, Arc<Segment>)>, Status> {
        self.inbound.take(len, || self.segments.fetch_add(1, Ordering::Relaxed), self)
    }

    /// The next message of the worker's main thread.
    pub fn receive(&self, payload: &mut Vec<u8>) -> Result<Option<u32>, Corrupt> {
        let kind = lock(&self.output).pop(payload)?;
        kind.map(|kind| self.fetch(kind, payload)).transpose()
    }

    /// The next message of the worker's other threads.
    pub fn receive_aside(&self, payload: &mut Vec<u8>) -> Result<Option<u32>, Corrupt> {
        let kind = lock(&self.aside).pop(payload)?;
        kind.map(|kind| self.fetch(kind, payload)).transpose()
    }

    /// Counts a handled message of the worker's main thread: other threads of it may wait for their turn.
    pub fn count_handled(&self) {
        self.control.word(message::OUTPUT_HANDLED).fetch_add(1, Ordering::Release);
    }

    /// The same for messages of the other threads.
    pub fn count_handled_aside(&self) {
        self.control.word(message::ASIDE_HANDLED).fetch_add(1, Ordering::Release);
    }

    /// Fetches a message from shared memory if the frame only locates it.
    fn fetch(&self, kind: u32, payload: &mut Vec<u8>) -> Result<u32, Corrupt> {
        if kind & FAR == 0 {
            return Ok(kind);
        }
        let place = super::marshal::Value::read(payload).and_then(|value| read_place(&value));
        let (segment, offset, len) = place.map_err(|_| Corrupt)?;
        payload.clear();
        match self.outbound.read(segment, offset, len, payload) {
            true => Ok(kind & !FAR),
            false => Err(Corrupt),
        }
    }

    /// ("segment", number, length, whether the worker cuts it, segments of the server that it may unmap)
    fn announce_segment(&self, number: u32, segment: &Segment, is_outbound: bool, gone: &[u32]) -> io::Result<()> {
        let mut text = Writer::default();
        text.tuple(5);
        text.text(b"segment");
        text.int(number);
        text.int(segment.len() as i128);
        text.bool(is_outbound);
        text.list(gone.len());
        gone.iter().for_each(|number| text.int(*number));
        self.send_control(text.bytes(), &[segment.object()?])
    }

    /// Gives the worker memory for its outputs: freed ranges if there are any, else a new segment, which replaces those
    /// in `gone`.
    pub fn grow(&self, len: usize, gone: &[u32]) -> Result<(), Status> {
        let freed = self.outbound.take_freed(FREED_AT_ONCE);
        if !freed.is_empty() {
            let mut text = Writer::default();
            text.tuple(2);
            text.text(b"freed");
            text.list(freed.len());
            freed.into_iter().for_each(|place| text.int(place));
            let sent = self.send_control(text.bytes(), &[]);
            return sent.map_err(|error| Status::internal(format!("cannot announce its memory to a worker: {error}")));
        }
        let number = self.segments.fetch_add(1, Ordering::Relaxed);
        let segment = self.outbound.grow(number, len, gone)?;
        let sent = self.announce_segment(number, &segment, true, &[]);
        sent.map_err(|error| Status::internal(format!("cannot share memory with a worker: {error}")))
    }

    /// Sends the reason why the worker gets no memory, or no slots.
    pub fn refuse(&self, status: &Status) -> io::Result<()> {
        let mut refusal = Writer::default();
        refusal.tuple(2);
        refusal.text(b"refused");
        refusal.text(status.message.as_bytes());
        self.send_control(refusal.bytes(), &[])
    }

    /// Gives the worker another bank of slots.
    pub fn add_slots(&self) -> Result<(), Status> {
        let cannot = |error: io::Error| Status::unavailable(format!("cannot make slots for a worker: {error}"));
        let mut banks = lock(&self.banks);
        if (banks.len() + 1) * message::SLOTS_PER_BANK > message::SLOTS_MAX {
            let most = message::SLOTS_MAX;
            return Err(Status::unavailable(format!("a worker may wait for {most} answers at a time")));
        }
        let len = message::SLOTS_PER_BANK * message::SLOT_BYTES;
        let segment = Arc::new(Segment::create(len).map_err(cannot)?);
        let stream = |number| StreamLocation {
            segment: Arc::clone(&segment),
            words: number * message::SLOT_BYTES,
            at: number * message::SLOT_BYTES + message::SLOT_BYTES - message::SLOT_STREAM_BYTES,
            capacity: message::SLOT_STREAM_BYTES,
        };
        let bells =
            (0..message::SLOTS_PER_BANK).map(|_| Bell::new()).collect::<io::Result<Vec<_>>>().map_err(cannot)?;
        let streams = (0..message::SLOTS_PER_BANK).map(|number| Mutex::new(Producer::new(stream(number)))).collect();
        let mut text = Writer::default();
        text.tuple(2);
        text.text(b"slots");
        text.int(banks.len() as i32);
        let mut descriptors = vec![segment.object().map_err(cannot)?];
        descriptors.extend(bells.iter().map(Bell::as_fd));
        self.send_control(text.bytes(), &descriptors).map_err(cannot)?;
        banks.push(Arc::new(SlotBank { segment, streams, bells }));
        Ok(())
    }

    /// Writes an answer to a slot. An error means that there is no such slot, or that it is full.
    pub fn answer(&self, slot: u32, kind: u32, payload: &[u8]) -> Result<(), LinkError> {
        self.answer_within(slot, kind, payload, frames::payload_max(message::SLOT_STREAM_BYTES))
    }

    /// The same, but an answer of more than `most` bytes goes to shared memory: several answers may have to fit into
    /// the slot.
    pub fn answer_within(&self, slot: u32, kind: u32, payload: &[u8], most: usize) -> Result<(), LinkError> {
        let (bank, number) = self.find_slot(slot as usize).ok_or(LinkError::Full)?;
        let stream = bank.streams.get(number).ok_or(LinkError::Full)?;
        let is_far = payload.len() > most.min(frames::payload_max(message::SLOT_STREAM_BYTES));
        let location = if is_far { Some(self.write_apart(payload)?) } else { None };
        let (kind, payload) = location.as_ref().map_or((kind, payload), |location| (kind | FAR, &location[..]));
        if !lock(stream).push(kind, payload)? {
            return Err(LinkError::Full);
        }
        self.ring_for(&bank, number);
        Ok(())
    }

    /// The bank of a slot, and the slot's number there.
    fn find_slot(&self, slot: usize) -> Option<(Arc<SlotBank>, usize)> {
        let bank = lock(&self.banks).get(slot / message::SLOTS_PER_BANK).cloned()?;
        Some((bank, slot % message::SLOTS_PER_BANK))
    }

    /// Wakes the reader of a slot, if it sleeps: at the slot's own bell, or at that of the slot that the worker names.
    /// If it names one that does not exist, nobody is woken.
    fn ring_for(&self, bank: &SlotBank, number: usize) {
        // Between the answer and the look at the name, which the reader may change before its own last look.
        atomic::fence(Ordering::SeqCst);
        let named = bank.word(number, message::SLOT_RINGS).load(Ordering::Relaxed);
        let Some(named) = named.checked_sub(1) else { return bank.ring(number) };
        if let Some((bank, number)) = usize::try_from(named).ok().and_then(|named| self.find_slot(named)) {
            bank.ring(number);
        }
    }

    /// The worker's end of a slot.
    #[cfg(test)]
    pub fn slot(&self, slot: u32) -> Consumer<StreamLocation> {
        let banks = lock(&self.banks);
        let stream =
            lock(&banks[slot as usize / message::SLOTS_PER_BANK].streams[slot as usize % message::SLOTS_PER_BANK]);
        let StreamLocation { segment, words, at, capacity } = stream.memory();
        Consumer::new(StreamLocation { segment: Arc::clone(segment), words: *words, at: *at, capacity: *capacity })
    }

    /// The flags with which the worker checks whether a request is cancelled.
    pub fn cancellations(&self) -> Arc<Cancellations> {
        Arc::new(Cancellations(Arc::clone(&self.control)))
    }

    /// The bytes of a tensor that a message of the worker names: (segment, offset, length) of a range that it wrote,
    /// with a key appended for a range that it was given. They stay until the slice is dropped.
    pub fn data(&self, value: &super::marshal::Value<'_>) -> Option<Slice> {
        match value.as_sequence().ok()? {
            [segment, offset, len] => {
                self.outbound.slice(segment.as_int().ok()?, offset.as_int().ok()?, len.as_int().ok()?)
            }
            [segment, offset, len, key] => self.inbound.slice(Range {
                key: key.as_int().ok()?,
                segment: segment.as_int().ok()?,
                offset: offset.as_int().ok()?,
                len: len.as_int().ok()?,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
impl Link {
    /// Overwrites memory of the channels, as a hostile worker can.
    pub fn overwrite(&self, at: usize, bytes: &[u8]) {
        let _ = self.control.write(at, bytes);
    }
}

impl Announce for Link {
    fn announce(&self, number: u32, segment: &Segment, gone: &[u32]) -> io::Result<()> {
        self.announce_segment(number, segment, false, gone)
    }
}

/// (segment, offset, length, key), as the worker reads it.
pub fn write_range(writer: &mut Writer, range: &Range) {
    writer.tuple(4);
    writer.int(range.segment);
    writer.int(range.offset);
    writer.int(range.len);
    writer.int(range.key);
}

fn read_place(value: &super::marshal::Value<'_>) -> Result<(u32, u64, u64), super::marshal::Malformed> {
    let [segment, offset, len] = value.as_tuple()?;
    Ok((segment.as_int()?, offset.as_int()?, len.as_int()?))
}

#[cfg(test)]
mod tests;
