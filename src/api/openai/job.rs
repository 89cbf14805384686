//! Reading a request and preparing it for its model, on a thread of this interface or on the shard.

use std::cell::{Cell, RefCell};
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
    /// Models that are not there may be loaded on demand.
    pub on_demand: bool,
    /// Those that it has waited for.
    pub tried: Vec<String>,
}

/// What a job has come to.
pub enum Prepared {
    Done(Result<Outcome, Refusal>),
    /// It is refused because its model is not loaded: the model, and the job.
    Missing(String, Box<Job>, Refusal),
    /// Its thread has failed.
    Panicked,
}

/// What a job has come to on the shard.
pub enum AtOnce {
    Done(Result<Outcome, Refusal>),
    Missing(String, Refusal),
    /// It has to be done elsewhere.
    Elsewhere,
}

impl Job {
    /// On the shard.
    pub fn try_at_once(&self) -> AtOnce {
        if self.body.len() > BYTES_AT_ONCE {
            return AtOnce::Elsewhere;
        }
        let (is_unread, missing) = (Cell::new(false), RefCell::new(None));
        let find = |name: &str| {
            let served = self.models.lookup(name.as_bytes(), None);
            let served = served.inspect_err(|_| self.note_missing(name, &missing)).ok()?;
            let known = self.openai.models.known(served);
            is_unread.set(is_unread.get() || known.is_none());
            known
        };
        let prepared = self.prepare(Some(&RENDERED_AT_ONCE), &find);
        let is_deferred = is_unread.get() || matches!(prepared, Ok(Outcome::Deferred(_)));
        match (prepared, missing.into_inner()) {
            _ if is_deferred => AtOnce::Elsewhere,
            (Err(refusal), Some(model)) => AtOnce::Missing(model, refusal),
            (prepared, _) => AtOnce::Done(prepared),
        }
    }

    /// Notes the first model that is to be loaded on demand.
    fn note_missing(&self, name: &str, missing: &RefCell<Option<String>>) {
        let is_new = !self.tried.iter().any(|tried| tried == name);
        if self.on_demand && is_new && self.models.is_absent(name.as_bytes()) {
            missing.borrow_mut().get_or_insert_with(|| name.to_owned());
        }
    }

    /// On a thread of this interface; posts what it has come to.
    pub fn run(self, key: u64, post: Post) {
        let mut result = JobResult { key, post, prepared: Prepared::Panicked };
        let missing = RefCell::new(None);
        let find = |name: &str| {
            let served = self.models.lookup(name.as_bytes(), None);
            let served = served.inspect_err(|_| self.note_missing(name, &missing)).ok()?;
            Some(self.openai.models.read(served, &self.openai.prepare, self.created))
        };
        let prepared = self.prepare(None, &find);
        result.prepared = match (prepared, missing.into_inner()) {
            (Err(refusal), Some(model)) => Prepared::Missing(model, Box::new(self), refusal),
            (prepared, _) => Prepared::Done(prepared),
        };
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
        let prepared = std::mem::replace(&mut self.prepared, Prepared::Panicked);
        (self.post)(Mail::OpenAi { key: self.key, prepared: Box::new(prepared) });
    }
}
