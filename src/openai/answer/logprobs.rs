//! Logprobs of chunks and answers. A stub.

use super::outputs::Arrived;
use crate::error::Refusal;
use crate::plan::Plan;

pub(super) struct LogprobsForm {}

impl LogprobsForm {
    pub fn new(_plan: &Plan) -> LogprobsForm {
        LogprobsForm {}
    }

    pub fn of(&mut self, _arrived: &Arrived) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(None)
    }

    pub fn collect(&mut self, _arrived: &Arrived) -> Result<(), Refusal> {
        Ok(())
    }

    pub fn put_collected(&self, out: &mut Vec<u8>) -> Result<(), Refusal> {
        out.extend_from_slice(b"null");
        Ok(())
    }
}
