//! Responses that models send through a request's sender: any number, from any thread, at any time until the last.

use std::sync::Arc;

use super::answers::Answer;
use super::marshal::{Malformed, Value, Writer};
use super::worker::Worker;
use nereid_request::Response;

/// `TRITONSERVER_RESPONSE_COMPLETE_FINAL`
const FINAL: u32 = 1;

/// Responses of one request that may wait for a slow client. A correct worker waits for an acknowledgement long before.
const WAITING_MAX: usize = 4096;

/// Bytes that a response costs besides its tensors.
const OVERHEAD: usize = 512;

/// (token, response or None, flags); a sender with a slot gets an acknowledgement when the response is sent, or at once
/// as long as few responses of its request wait.
pub fn send(worker: &Arc<Worker>, slot: Option<u32>, values: &[Value<'_>]) -> Result<(), Malformed> {
    let [token, response, flags] = values else { return Err(Malformed::Form) };
    let token: u64 = token.as_int()?;
    let last = flags.as_int::<u32>()? & FINAL != 0;
    let answer = match response {
        Value::None => None,
        response => Some(Answer::read(response)?),
    };
    let mut is_out = true;
    let Some(address) = worker.open.address(token, last) else {
        // The request has ended in another way meanwhile.
        answer.map_or(Ok(()), |answer| answer.discard(&worker.link))?;
        slot.into_iter().for_each(|slot| accept(worker, slot));
        return Ok(());
    };
    let response: Option<Response> =
        answer.map(|answer| answer.into_response_at(&worker.link, &address)).transpose()?;
    if response.is_some() || last {
        let ahead = slot.and_then(|_| worker.open.run_ahead(token, &address, byte_size(response.as_ref())));
        let tag = ahead.unwrap_or(slot.map_or(0, |slot| u64::from(slot) + 1));
        is_out = worker.open.send(token, &address, response, last, tag) || ahead.is_some();
    }
    if address.outbox.waiting_count() > WAITING_MAX {
        worker.kill("was ended because it sends more responses than their client takes");
    }
    if let (Some(slot), true) = (slot, is_out) {
        accept(worker, slot);
    }
    Ok(())
}

fn byte_size(response: Option<&Response>) -> usize {
    let outputs = response.map_or(&[][..], |response| response.outputs.as_slice());
    outputs.iter().map(|output| output.byte_size()).fold(OVERHEAD, usize::saturating_add)
}

/// Sends the responses that clients have made room for.
pub fn flush(worker: &Arc<Worker>) {
    worker.open.flush(|tag| {
        if let Some(slot) = tag.checked_sub(1).and_then(|slot| u32::try_from(slot).ok()) {
            accept(worker, slot);
        }
    });
}

fn accept(worker: &Arc<Worker>, slot: u32) {
    let mut writer = Writer::default();
    writer.none();
    worker.answer(slot, Ok(writer));
}
