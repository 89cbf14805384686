//! Reading a request and preparing it for its model, on a thread of this interface or on the shard.

use std::cell::Cell;
use std::sync::Arc;

use super::settings::OpenAi;
use crate::api::mail::{Mail, Post};
use crate::repository::ModelMap;
use nereid_memory::Slice;
use nereid_openai::error::Refusal;
use nereid_openai::prepare::{self, Outcome};
use nereid_openai::request::Operation;
use nereid_openai::schema::{self, Rules};
use nereid_openai::template::RenderBounds;
use std::time::Duration;

/// Bodies that a shard reads itself.
const BYTES_AT_ONCE: usize = 8 * 1024;
/// How long templates may be for that.
const RENDERED_AT_ONCE: RenderBounds =
    RenderBounds { steps_max: 10_000, bytes_max: 64 * 1024, time_max: Duration::from_millis(1) };

/// A request whose body is there.
#[derive(Clone)]
pub struct Job {
    pub openai: Arc<OpenAi>,
    pub models: Arc<ModelMap>,
    pub operation: Operation,
    pub body: Slice,
    /// Its content type is JSON, or it has none.
    pub is_json: bool,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
}

/// What a job has come to; none: its thread has failed.
pub type Prepared = Option<Result<Outcome, Refusal>>;

impl Job {
    /// On the shard; none: it has to be done elsewhere.
    pub fn try_at_once(&self) -> Option<Result<Outcome, Refusal>> {
        if self.body.len() > BYTES_AT_ONCE {
            return None;
        }
        let is_unread = Cell::new(false);
        let find = |name: &str| {
            let served = self.models.lookup(name.as_bytes(), None).ok()?;
            let known = self.openai.models.known(served);
            is_unread.set(is_unread.get() || known.is_none());
            known
        };
        let prepared = self.prepare(Some(&RENDERED_AT_ONCE), &find);
        let is_deferred = is_unread.get() || matches!(prepared, Ok(Outcome::Deferred(_)));
        (!is_deferred).then_some(prepared)
    }

    /// On a thread of this interface; posts what it has come to.
    pub fn run(self, key: u64, post: Post) {
        let mut result = JobResult { key, post, prepared: None };
        let find = |name: &str| {
            let served = self.models.lookup(name.as_bytes(), None).ok()?;
            Some(self.openai.models.read(served, &self.openai.prepare, self.created))
        };
        result.prepared = Some(self.prepare(None, &find));
    }

    fn prepare(
        &self,
        at_once: Option<&RenderBounds>,
        find: &dyn Fn(&str) -> Option<prepare::Model>,
    ) -> Result<Outcome, Refusal> {
        let settings = &self.openai.prepare;
        let rules = Rules { compat: settings.compat, extensions: settings.extensions };
        let request = schema::read(self.operation, &self.body, self.is_json, &rules)?;
        prepare::prepare(request, self.id.clone(), self.created, settings, at_once, find)
    }
}

/// Posts when it is dropped, so that a call is answered whatever happens to its job.
struct JobResult {
    key: u64,
    post: Post,
    prepared: Prepared,
}

impl Drop for JobResult {
    fn drop(&mut self) {
        (self.post)(Mail::OpenAi { key: self.key, prepared: self.prepared.take().map(Box::new) });
    }
}
