//! Packs answers before they leave, in steps.

use super::Calls;
use super::work::Work;
use crate::api::coding::packing::Answer;
use crate::api::steps::LONG_STEPS_AT_ONCE;
use nereid_protocol::service::Replies;

impl Calls {
    /// Packs on; what does not fit into this turn is put off. `key`: the answer's work, if it has any yet.
    pub fn pack(&mut self, key: Option<u64>, mut answer: Box<Answer>, replies: &mut Replies) {
        for _ in 0..LONG_STEPS_AT_ONCE {
            if answer.step(&self.pool) {
                key.and_then(|key| self.end_work(key));
                return answer.send(true, &self.pool, replies);
            }
        }
        let key = match key {
            Some(key) => key,
            None => match self.new_work(Work::Reserved) {
                Ok(token) => token.0,
                // No place to go on: an answer that is not packed is an answer, too.
                Err(_) => return answer.send(false, &self.pool, replies),
            },
        };
        self.defer(key, Work::Packing(answer));
    }
}
