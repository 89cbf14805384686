//! Responses that models send through a request's sender: any number, from any thread, at any time until the last.

use std::sync::Arc;

use super::answers::Answer;
use super::marshal::{Malformed, Value, Writer};
use super::worker::Worker;
use crate::request::Response;

/// `TRITONSERVER_RESPONSE_COMPLETE_FINAL`
const FINAL: u32 = 1;

/// (token, response or None, flags); a sender that asked is told when the response is on its way.
pub fn send(worker: &Arc<Worker>, slot: Option<u32>, values: &[Value<'_>]) -> Result<(), Malformed> {
    let [token, response, flags] = values else { return Err(Malformed::Form) };
    let last = flags.as_int::<u32>()? & FINAL != 0;
    let response = response.optional(|response| Ok(response.clone()))?;
    let answer = response.as_ref().map(Answer::read).transpose()?;
    if let Some(address) = worker.open.address(token.as_int()?, last) {
        let response: Option<Response> =
            answer.map(|answer| answer.into_response_at(&worker.link, &address)).transpose()?;
        match response {
            Some(response) => address.responses.send(response, last),
            None if last => address.responses.send_end(),
            None => {}
        }
    }
    if let Some(slot) = slot {
        let mut writer = Writer::default();
        writer.none();
        worker.answer(slot, Ok(writer));
    }
    Ok(())
}
