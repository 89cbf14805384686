//! Converts tensors between requests and messages.
//!
//! Small ones are inside the message, larger ones in shared memory. BYTES become a list of byte strings as the
//! interpreter reads them: the same lengths and bytes, with a letter before each.

use super::exported_tensors::{ExportedTensor, ON_DEVICE};
use super::imported_tensors;
use super::inbound::Range;
use super::link::{Link, write_range};
use super::marshal::{Malformed, Value, Writer};
use nereid_gpu::DeviceSlice;
use nereid_memory::{Segment, Slice, Target};
use nereid_request::shared::OutputDestination;
use nereid_request::{
    DataType, OutputTensor, Request, RequestedOutput, ResponseFactory, Shape, Status, Text, element_count, format_shape,
};

/// The most bytes of a tensor inside its message.
pub const INLINE_MAX: usize = 4096;
/// The alignment of tensors in shared memory.
const ALIGNMENT: usize = 64;

/// A tensor that is written to a message.
pub struct TensorContent<'a> {
    pub name: &'a [u8],
    pub datatype: DataType,
    pub shape: &'a [i64],
    pub pieces: &'a [Slice],
    /// The export, if it lies on a device: then there are no pieces.
    pub exported: Option<&'a ExportedTensor>,
}

impl TensorContent<'_> {
    fn byte_size(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// The number of elements of BYTES.
    fn count(&self) -> Result<usize, Status> {
        let count = element_count(self.shape).and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| self.misshapen())
    }

    fn misshapen(&self) -> Status {
        let (name, shape) = (String::from_utf8_lossy(self.name), format_shape(self.shape));
        Status::internal(format!("tensor '{name}' has bytes that do not fit its shape {shape}"))
    }

    /// The bytes that it takes in a message or in shared memory.
    pub fn packed_len(&self) -> Result<usize, Status> {
        match self.datatype {
            _ if self.exported.is_some() => Ok(0),
            // A shape with more elements than the data has room for is refused when they are packed.
            DataType::Bytes => {
                let count = self.count()?.min(self.byte_size() / LENGTH + 1);
                Ok(count.saturating_add(LIST_HEAD).saturating_add(self.byte_size()))
            }
            _ => Ok(self.byte_size()),
        }
    }

    /// Appends its form in a message or in shared memory.
    fn pack(&self, bytes: &mut Vec<u8>) -> Result<(), Status> {
        match self.datatype {
            DataType::Bytes => self.pack_list(bytes),
            _ => {
                self.pieces.iter().for_each(|piece| piece.append_to(bytes));
                Ok(())
            }
        }
    }

    fn pack_list(&self, bytes: &mut Vec<u8>) -> Result<(), Status> {
        let joined;
        let all: &[u8] = match self.pieces {
            [] => &[],
            [one] => one,
            many => {
                joined = many.iter().fold(Vec::new(), |mut all, piece| {
                    piece.append_to(&mut all);
                    all
                });
                &joined
            }
        };
        let count = self.count()?;
        bytes.push(b'[');
        bytes.extend_from_slice(&u32::try_from(count).map_err(|_| self.misshapen())?.to_le_bytes());
        let mut rest = all;
        for _ in 0..count {
            let Some((len, behind)) = rest.split_first_chunk::<4>() else {
                return Err(if rest.is_empty() { self.misshapen() } else { Status::internal(INCOMPLETE_LENGTH) });
            };
            let whole = 4 + u32::from_le_bytes(*len) as usize;
            if behind.len() + 4 < whole {
                return Err(Status::internal(BEYOND_BUFFER));
            }
            let (element, behind) = rest.split_at(whole);
            bytes.push(b's');
            bytes.extend_from_slice(element);
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(self.misshapen()) }
    }

    /// Writes it to shared memory, with a single copy for numbers.
    fn place(&self, segment: &Segment, at: usize) -> Result<(), Status> {
        let check = |is_inside: bool| match is_inside {
            true => Ok(()),
            false => Err(Status::internal("a tensor lies outside its memory")),
        };
        match self.datatype {
            DataType::Bytes => {
                let mut list = Vec::with_capacity(self.packed_len()?);
                self.pack_list(&mut list)?;
                check(segment.write(at, &list))
            }
            _ => self
                .pieces
                .iter()
                .try_fold(at, |at, piece| {
                    check(segment.write_slice(at, piece)).map(|()| at.saturating_add(piece.len()))
                })
                .map(drop),
        }
    }
}

/// Triton's texts for BYTES with elements that do not end at the tensor's end.
const INCOMPLETE_LENGTH: &str = "Invalid bytes tensor data: incomplete length field";
const BEYOND_BUFFER: &str = "Invalid bytes tensor data: string extends beyond buffer";
/// Letter and length of a list.
const LIST_HEAD: usize = 5;
/// Before each element of BYTES.
const LENGTH: usize = 4;

/// Bytes of shared memory that these tensors take together.
pub fn shared_len<'a>(tensors: impl Iterator<Item = TensorContent<'a>>) -> Result<usize, Status> {
    let mut total = 0usize;
    for tensor in tensors {
        let len = tensor.packed_len()?;
        if len > INLINE_MAX {
            total = total.saturating_add(len.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX));
        }
    }
    Ok(total)
}

/// The range that a message's larger tensors are written to, one behind the other.
pub struct TensorRange<'a> {
    range: Range,
    segment: &'a Segment,
    used: usize,
}

impl<'a> TensorRange<'a> {
    pub fn new(range: Range, segment: &'a Segment) -> TensorRange<'a> {
        TensorRange { range, segment, used: 0 }
    }
}

/// Writes a tensor: (name, datatype, shape, data).
pub fn write(
    writer: &mut Writer,
    tensor: &TensorContent<'_>,
    room: &mut Option<TensorRange<'_>>,
) -> Result<(), Status> {
    writer.tuple(4);
    writer.text(tensor.name);
    writer.int(tensor.datatype as u32);
    writer.tuple(tensor.shape.len());
    tensor.shape.iter().for_each(|dim| writer.int(*dim));
    if let Some(exported) = tensor.exported {
        exported.write(writer);
        return Ok(());
    }
    let len = tensor.packed_len()?;
    match room {
        Some(room) if len > INLINE_MAX => {
            let offset = room.range.offset as usize + room.used;
            tensor.place(room.segment, offset)?;
            room.used += len.next_multiple_of(ALIGNMENT);
            write_range(writer, &Range { offset: offset as u64, len: len as u64, ..room.range });
            Ok(())
        }
        _ => {
            writer.bytes_head(len);
            writer.append(|bytes| tensor.pack(bytes))
        }
    }
}

/// A tensor that a worker sent.
pub struct ReceivedTensor<'a> {
    pub name: Text,
    pub datatype: DataType,
    pub shape: Shape,
    data: &'a Value<'a>,
}

impl<'a> ReceivedTensor<'a> {
    pub fn read(value: &'a Value<'a>) -> Result<ReceivedTensor<'a>, Malformed> {
        let [name, datatype, shape, data] = value.as_tuple()?;
        let number: u32 = datatype.as_int()?;
        let datatype = DataType::ALL.into_iter().find(|known| *known as u32 == number).ok_or(Malformed::Form)?;
        let shape = shape.as_sequence()?.iter().map(Value::as_int).collect::<Result<Shape, _>>()?;
        Ok(ReceivedTensor { name: Text::from(&*name.as_text()?), datatype, shape, data })
    }

    fn misshapen(&self) -> Status {
        let shape = format_shape(&self.shape);
        Status::internal(format!("tensor '{}' has bytes that do not fit its shape {shape}", self.name))
    }

    /// Its elements as requests and responses hold them. Bytes in shared memory stay there, but for BYTES; `allocate`
    /// provides memory for copies.
    pub fn elements(
        &self,
        link: &Link,
        allocate: impl FnOnce(usize) -> Result<Target, Status>,
    ) -> Result<Slice, Status> {
        let inline = self.data.as_bytes().ok();
        let shared = match inline {
            Some(_) => None,
            None => Some(link.data(self.data).ok_or_else(|| {
                Status::internal(format!("tensor '{}' lies where its model has no memory", self.name))
            })?),
        };
        let count = element_count(&self.shape).and_then(|count| usize::try_from(count).ok());
        let count = count.ok_or_else(|| self.misshapen())?;
        if self.datatype == DataType::Bytes {
            // Those of the worker's memory are read as a copy.
            let list = shared.as_deref().or(inline).unwrap_or_default();
            return unpack_list(list, count, allocate).ok_or_else(|| self.misshapen())?;
        }
        let expected = count.checked_mul(self.datatype.byte_size()).ok_or_else(|| self.misshapen())?;
        if shared.as_ref().map_or(inline.map_or(0, <[u8]>::len), |slice| slice.len()) != expected {
            return Err(self.misshapen());
        }
        match shared {
            Some(slice) => Ok(slice),
            None => {
                let mut target = allocate(expected)?;
                match target.write(0, inline.unwrap_or_default()) {
                    true => Ok(target.freeze()),
                    false => Err(self.misshapen()),
                }
            }
        }
    }

    /// Its elements where they lie on a device; `None`: they are on the host. May block.
    pub fn on_device(&self, link: &Link) -> Result<Option<DeviceSlice>, Status> {
        let Some(place) = DeviceLocation::read(self.data) else { return Ok(None) };
        let slice = match place {
            DeviceLocation::Lent { key, offset, len } => link.exported.find(key, offset, len).ok_or_else(|| {
                Status::internal(format!("tensor '{}' lies where its model has no memory", self.name))
            })?,
            DeviceLocation::Own(place) => link.imported.open(&place)?,
        };
        let count = element_count(&self.shape).and_then(|count| usize::try_from(count).ok());
        let expected = count.and_then(|count| count.checked_mul(self.datatype.byte_size()));
        match self.datatype != DataType::Bytes && expected == Some(slice.len()) {
            true => Ok(Some(slice)),
            false => Err(self.misshapen()),
        }
    }

    /// Releases its shared memory.
    pub fn discard(self, link: &Link) {
        match DeviceLocation::read(self.data) {
            Some(DeviceLocation::Own(place)) => link.imported.give_back(place.number),
            Some(DeviceLocation::Lent { .. }) => {}
            None => drop(link.data(self.data)),
        }
    }

    /// The tensor as an output of the model, if it is requested.
    pub fn output(
        self,
        link: &Link,
        wanted: &[RequestedOutput],
        receiver: &impl OutputReceiver,
    ) -> Result<Option<OutputTensor>, Status> {
        let Some(wanted) = wanted.iter().find(|wanted| wanted.name == self.name) else {
            self.discard(link);
            return Ok(None);
        };
        let mut output = OutputTensor {
            name: self.name.clone(),
            datatype: self.datatype,
            shape: Shape::new(),
            data: smallvec::SmallVec::new(),
            index: wanted.index,
            on_device: None,
        };
        match self.on_device(link)? {
            Some(slice) => bring(&mut output, slice, receiver)?,
            None => output.data.push(self.elements(link, |len| receiver.allocate(&self.name, len))?),
        }
        output.shape = self.shape;
        Ok(Some(output))
    }
}

/// The location of a tensor on a device: (handle, offset, length, key, device, lasts).
enum DeviceLocation<'a> {
    /// The server lent the worker this tensor, or one that contains it.
    Lent {
        key: u64,
        offset: usize,
        len: usize,
    },
    Own(imported_tensors::ImportedTensor<'a>),
}

impl<'a> DeviceLocation<'a> {
    fn read(value: &Value<'a>) -> Option<DeviceLocation<'a>> {
        let [handle, offset, len, key, device, lasts] = value.as_sequence().ok()? else { return None };
        let (offset, len) = (offset.as_int().ok()?, len.as_int().ok()?);
        let key: i64 = key.as_int().ok()?;
        match u64::try_from(key) {
            Ok(key) => (key & ON_DEVICE > 0).then_some(DeviceLocation::Lent { key, offset, len }),
            Err(_) => {
                let (handle, device) = (handle.as_bytes().ok()?, device.as_int().ok()?);
                Some(DeviceLocation::Own(imported_tensors::ImportedTensor {
                    handle,
                    offset,
                    len,
                    number: key.unsigned_abs(),
                    device,
                    lasts: lasts.as_bool().ok()?,
                }))
            }
        }
    }
}

/// The receiver of outputs, which determines where they go.
pub trait OutputReceiver {
    fn allocate(&self, name: &Text, len: usize) -> Result<Target, Status>;

    fn destination(&self, name: &Text, len: usize) -> Result<OutputDestination, Status>;
}

impl OutputReceiver for Request {
    fn allocate(&self, name: &Text, len: usize) -> Result<Target, Status> {
        self.allocate_output(name, len)
    }

    fn destination(&self, name: &Text, len: usize) -> Result<OutputDestination, Status> {
        self.destination_of(name, len)
    }
}

impl OutputReceiver for ResponseFactory {
    fn allocate(&self, name: &Text, len: usize) -> Result<Target, Status> {
        self.allocate_output(name.as_bytes(), len)
    }

    fn destination(&self, name: &Text, len: usize) -> Result<OutputDestination, Status> {
        self.destination_of(name.as_bytes(), len)
    }
}

/// Copies an output from a device to where the receiver wants it. May block.
fn bring(output: &mut OutputTensor, slice: DeviceSlice, receiver: &impl OutputReceiver) -> Result<(), Status> {
    match receiver.destination(&output.name, slice.len())? {
        OutputDestination::OnHost => {
            let mut target = receiver.allocate(&output.name, slice.len())?;
            slice.gpu().fetch_into(&slice, &mut target)?;
            output.data.push(target.freeze());
        }
        OutputDestination::OnDevice => output.on_device = Some(Box::new(slice)),
        OutputDestination::At(target) => {
            if target.len() < slice.len() {
                let text = format!("output '{}' is larger than where it is wanted", output.name);
                return Err(Status::internal(text));
            }
            let target = target.part(0, slice.len());
            target.gpu().copy_to(&target, &slice)?;
            output.on_device = Some(Box::new(target.freeze()));
        }
    }
    Ok(())
}

/// A marshalled list of `count` byte strings and texts, as elements with their lengths before them. `None`: it is no
/// such list.
fn unpack_list(
    list: &[u8],
    count: usize,
    allocate: impl FnOnce(usize) -> Result<Target, Status>,
) -> Option<Result<Slice, Status>> {
    let (head, body) = list.split_at_checked(LIST_HEAD)?;
    if head[0] != b'[' || u32::from_le_bytes(head[1..].try_into().ok()?) as usize != count {
        return None;
    }
    let len = body.len().checked_sub(count)?;
    let mut target = match allocate(len) {
        Ok(target) => target,
        Err(status) => return Some(Err(status)),
    };
    let (mut rest, mut at) = (body, 0);
    for _ in 0..count {
        let (letter, behind) = rest.split_first()?;
        let (len, _) = behind.split_first_chunk::<4>()?;
        let whole = 4usize.checked_add(u32::from_le_bytes(*len) as usize)?;
        let (element, behind) = behind.split_at_checked(whole)?;
        if !matches!(letter, b's' | b'u') {
            return None;
        }
        if !target.write(at, element) {
            return None;
        }
        (rest, at) = (behind, at + whole);
    }
    if rest.is_empty() { Some(Ok(target.freeze())) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packed form of BYTES of that shape in these pieces, and the room that was requested for it.
    fn packed(shape: &[i64], pieces: &[&[u8]]) -> (Result<Vec<u8>, String>, usize) {
        let pieces: Vec<Slice> = pieces.iter().map(|piece| Slice::copy_of(piece)).collect();
        let content = TensorContent { name: b"T", datatype: DataType::Bytes, shape, pieces: &pieces, exported: None };
        let mut list = Vec::new();
        let packed = content.pack(&mut list).map(|()| list).map_err(|status| status.message.to_string());
        (packed, content.packed_len().unwrap())
    }

    #[test]
    fn strings_that_do_not_end_with_their_tensor_are_refused() {
        let good = b"[\x02\0\0\0s\x01\0\0\0as\0\0\0\0".to_vec();
        assert_eq!(packed(&[2], &[b"\x01\0", b"\0\0a\0\0\0\0"]), (Ok(good.clone()), good.len()));
        let text = |shape: &[i64], bytes: &[u8]| packed(shape, &[bytes]).0.unwrap_err();
        assert_eq!(text(&[2], b"\x01\0\0\0a\0\0"), "Invalid bytes tensor data: incomplete length field");
        assert_eq!(text(&[1], b"\x02\0\0\0a"), "Invalid bytes tensor data: string extends beyond buffer");
        assert_eq!(text(&[1], b"\xff\xff\xff\xff"), "Invalid bytes tensor data: string extends beyond buffer");
        let misshapen = |shape: &str| format!("tensor 'T' has bytes that do not fit its shape {shape}");
        assert_eq!(text(&[2], b"\x01\0\0\0a"), misshapen("[2]"));
        assert_eq!(text(&[0], b"\x01\0\0\0a"), misshapen("[0]"));
        // A shape alone requests no memory.
        let (refused, len) = packed(&[1 << 31], &[b"\0\0\0\0"]);
        assert_eq!((refused.unwrap_err(), len), (misshapen("[2147483648]"), 5 + 2 + 4));
    }
}
