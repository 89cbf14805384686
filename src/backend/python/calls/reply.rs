//! A response to a call, as it is written into the caller's slot: (response or None, whether it is the last one).

use smallvec::SmallVec;

use super::super::exported_tensors::ExportedTensor;
use super::super::link::{Link, LinkError};
use super::super::marshal::Writer;
use super::super::message::{ANSWER, SLOT_STREAM_BYTES};
use super::super::tensors::{self, TensorContent, TensorRange};
use super::preference::{Preference, fetch};
use super::{Caller, WINDOW};
use nereid_queue::frames;
use nereid_request::{Response, Status, Value};

/// The most bytes of a response inside the slot, so that a full window, the unusable end of the stream and a final flag
/// fit. Frames are multiples of eight bytes. Larger responses are written to shared memory.
const WINDOWED_MAX: usize = SLOT_STREAM_BYTES / (WINDOW + 2) / 8 * 8 - frames::HEAD;

/// Bytes of an error's text in a response that must not need shared memory.
const SHORT_TEXT_MAX: usize = 56;

/// The slot on which a caller waits.
pub struct Slot<'a> {
    pub caller: &'a dyn Caller,
    pub number: u32,
    /// Whether several responses may have to fit into it.
    pub is_windowed: bool,
}

impl Slot<'_> {
    /// The most bytes of a response inside the slot.
    fn most(&self) -> usize {
        if self.is_windowed { WINDOWED_MAX } else { frames::payload_max(SLOT_STREAM_BYTES) }
    }

    fn link(&self) -> &Link {
        self.caller.link()
    }
}

/// Writes a response. One that cannot be written becomes an error for the model; a slot without room is the worker's
/// fault. May wait for the device of an output, at its source or target.
pub fn write(slot: &Slot<'_>, response: Option<Response>, last: bool, preference: &Preference) {
    let outcome = match response.map(|response| with_outputs(slot, response, last, preference)) {
        None => bare_end(slot, last),
        Some(Ok(())) => Ok(()),
        Some(Err(Failure::Link(error))) => Err(error),
        Some(Err(Failure::Response(status))) => with_error(slot, &status, last),
    };
    if let Err(error) = outcome {
        slot.caller.kill(&format!("was ended because it cannot be answered: {error}"));
    }
}

enum Failure {
    /// The response is at fault.
    Response(Status),
    Link(LinkError),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Response(status)
    }
}

fn bare_end(slot: &Slot<'_>, last: bool) -> Result<(), LinkError> {
    let mut writer = Writer::default();
    writer.tuple(2);
    writer.none();
    writer.bool(last);
    slot.link().answer_within(slot.number, ANSWER, writer.bytes(), usize::MAX)
}

type OutputExports = SmallVec<[Option<ExportedTensor>; 2]>;

fn with_outputs(slot: &Slot<'_>, mut response: Response, last: bool, preference: &Preference) -> Result<(), Failure> {
    if let Some(status) = response.error.take() {
        return Err(Failure::Response(status));
    }
    let link = slot.link();
    preference.apply(&mut response)?;
    let mut exports = OutputExports::new();
    let outcome = export(&mut response, link, &mut exports)
        .map_err(Failure::from)
        .and_then(|()| write_outputs(slot, &response, &exports, last));
    if outcome.is_err() {
        let keys: Vec<u64> = exports.iter().flatten().map(|exported| exported.key).collect();
        link.release(&keys);
    }
    outcome
}

/// Exports the outputs that lie on devices, and copies those to the host that cannot be exported.
fn export(response: &mut Response, link: &Link, exports: &mut OutputExports) -> Result<(), Status> {
    for output in &mut response.outputs {
        let exported = output.on_device.as_ref().and_then(|slice| link.exported.export(slice, output.datatype));
        if exported.is_none() {
            fetch(output)?;
        }
        exports.push(exported);
    }
    Ok(())
}

fn write_outputs(slot: &Slot<'_>, response: &Response, exports: &OutputExports, last: bool) -> Result<(), Failure> {
    let link = slot.link();
    let contents = || {
        response.outputs.iter().zip(exports).map(|(output, exported)| TensorContent {
            name: output.name.as_bytes(),
            datatype: output.datatype,
            shape: &output.shape,
            pieces: &output.data,
            exported: exported.as_ref(),
        })
    };
    let len = tensors::shared_len(contents())?;
    let taken = match len {
        0 => None,
        len => Some(link.reserve(len)?.ok_or_else(full)?),
    };
    let written = (|| {
        let mut room = taken.as_ref().map(|(range, segment)| TensorRange::new(*range, segment));
        let mut writer = Writer::default();
        writer.tuple(2);
        writer.tuple(3);
        writer.tuple(response.outputs.len());
        contents().try_for_each(|tensor| tensors::write(&mut writer, &tensor, &mut room))?;
        write_parameters(&mut writer, response)?;
        writer.none();
        writer.bool(last);
        match link.answer_within(slot.number, ANSWER, writer.bytes(), slot.most()) {
            // There is no memory for the message itself.
            Err(LinkError::Memory(status)) => Err(Failure::Response(status)),
            Err(LinkError::NoMemory) => Err(Failure::Response(full())),
            outcome => outcome.map_err(Failure::Link),
        }
    })();
    if let (Err(_), Some((range, _))) = (&written, &taken) {
        link.inbound.release(std::iter::once(range.key));
    }
    written
}

fn full() -> Status {
    Status::unavailable("no memory for the response ('shm-max-byte-size')")
}

/// Doubles are passed on; Triton returns an error for them.
fn write_parameters(writer: &mut Writer, response: &Response) -> Result<(), Status> {
    writer.tuple(response.parameters.len());
    for parameter in response.parameters.iter() {
        writer.tuple(2);
        writer.text(parameter.name.as_bytes());
        match &parameter.value {
            Value::String(text) => writer.text(text.as_bytes()),
            Value::Int(number) => writer.int(*number),
            Value::Bool(is_set) => writer.bool(*is_set),
            Value::Double(number) => writer.float(*number),
            Value::Bytes(_) => {
                let name = &parameter.name;
                return Err(Status::internal(format!("Unsupported parameter type for parameter '{name}'.")));
            }
        }
    }
    Ok(())
}

fn with_error(slot: &Slot<'_>, status: &Status, last: bool) -> Result<(), LinkError> {
    let write_error = |text: &str| {
        let mut writer = Writer::default();
        writer.tuple(2);
        writer.tuple(3);
        writer.tuple(0);
        writer.tuple(0);
        writer.tuple(2);
        writer.int(status.code as i32);
        writer.text(text.as_bytes());
        writer.bool(last);
        slot.link().answer_within(slot.number, ANSWER, writer.bytes(), slot.most())
    };
    match write_error(&status.message) {
        Err(LinkError::NoMemory | LinkError::Memory(_)) => write_error(prefix(&status.message, SHORT_TEXT_MAX)),
        outcome => outcome,
    }
}

/// At most `most` bytes of a text, without splitting a character.
fn prefix(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}
