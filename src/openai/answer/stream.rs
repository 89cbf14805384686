//! Streams of chat and of completions (contract/openai.md sections 1.5 and 1.6).

use nereid_memory::{Gather, Pool};

use super::Progress;
use super::chunks::{ChunkForm, Facts};
use super::failure;
use super::finish::Finish;
use super::message::Message;
use super::outputs::Arrived;
use super::token_logprobs::TokenLogprobs;
use super::usage::Counts;
use crate::error::{Compat, Refusal};
use crate::json::escape_into;
use crate::plan::Plan;
use crate::tools::Delta;

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The chunk of the role is not written.
    Closed,
    BetweenChunks,
    /// The chunk of a long text is written in part.
    InText,
    /// The chunk with the reason of the end is written.
    Ended,
    Done,
}

pub(super) struct Stream {
    form: ChunkForm,
    message: Message,
    deltas: Vec<Delta>,
    /// Written once it is known whether it is the last of its response, which has the facts.
    pending: Option<Delta>,
    /// What one step writes.
    buffer: Vec<u8>,
    arrived: Option<Arrived>,
    logprobs: TokenLogprobs,
    /// Those of the response, as JSON.
    logprobs_json: Option<String>,
    reported: Option<Finish>,
    counts: Counts,
    stage: Stage,
}

impl Stream {
    pub fn new(plan: &Plan) -> Stream {
        let form = ChunkForm::new(plan);
        let stage = if form.is_chat { Stage::Closed } else { Stage::BetweenChunks };
        Stream {
            form,
            message: Message::new(plan),
            deltas: Vec::new(),
            pending: None,
            buffer: Vec::new(),
            arrived: None,
            logprobs: TokenLogprobs::new(plan),
            logprobs_json: None,
            reported: None,
            counts: Counts { prompt: None, completion: None },
            stage,
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Writes the chunk of the role.
    pub fn open(&mut self, pool: &Pool, out: &mut Gather) {
        self.buffer.clear();
        self.put_role();
        out.put(pool, &self.buffer);
    }

    fn put_role(&mut self) {
        if self.stage == Stage::Closed {
            self.form.put_role(&mut self.buffer);
            self.stage = Stage::BetweenChunks;
        }
    }

    pub fn begin(&mut self, mut arrived: Arrived) -> Result<(), Refusal> {
        self.counts.add(&arrived);
        self.reported = arrived.finish.or(self.reported);
        self.logprobs_json = self.logprobs.of(&arrived)?;
        self.message.begin(&mut arrived);
        self.arrived = Some(arrived);
        Ok(())
    }

    pub fn step(&mut self, plan: &Plan, pool: &Pool, out: &mut Gather) -> Progress {
        let Some(mut arrived) = self.arrived.take().filter(|_| self.stage < Stage::Ended) else {
            return Progress::Done;
        };
        self.buffer.clear();
        self.put_role();
        let progress = match self.message.is_plain() {
            true => self.step_text(plan, &mut arrived),
            false => self.step_parts(plan, &mut arrived),
        };
        out.put(pool, &self.buffer);
        if progress == Progress::More {
            self.arrived = Some(arrived);
        }
        progress
    }

    /// Writes a run of a text that no parser has to see.
    #[inline]
    fn step_text(&mut self, plan: &Plan, arrived: &mut Arrived) -> Progress {
        let is_last = arrived.is_last;
        let facts = self.facts(plan, is_last);
        let facts = Facts { logprobs: self.logprobs_json.as_deref(), ..facts };
        let (text, is_rest) = self.message.plain(arrived);
        self.logprobs.pass(text);
        if self.stage == Stage::BetweenChunks {
            if is_rest
                && facts.are_none()
                && let Some((before, after)) = self.form.plain()
            {
                self.buffer.extend_from_slice(before);
                escape_into(text, &mut self.buffer);
                self.buffer.extend_from_slice(after);
                return Progress::Done;
            }
            self.form.begin_text(&mut self.buffer, facts);
            self.stage = Stage::InText;
        }
        escape_into(text, &mut self.buffer);
        if !is_rest {
            return Progress::More;
        }
        if is_last {
            escape_into(self.message.plain_end(), &mut self.buffer);
        }
        self.form.end_text(&mut self.buffer, facts);
        self.stage = if is_last { Stage::Ended } else { Stage::BetweenChunks };
        Progress::Done
    }

    /// What the last chunk of a response says; its logprobs are the caller's.
    fn facts(&self, plan: &Plan, is_last: bool) -> Facts<'static> {
        let finish = || Finish::of(plan, self.reported, self.counts.completion, self.message.has_calls());
        Facts {
            finish: is_last.then(finish),
            logprobs: None,
            usage: plan.continuous_usage.then(|| self.counts.with_prompt_of(plan)),
        }
    }

    /// Gives a run of the text to the parsers, and writes the parts that they find.
    fn step_parts(&mut self, plan: &Plan, arrived: &mut Arrived) -> Progress {
        let is_last = arrived.is_last;
        let Ok(is_rest) = self.message.push(arrived, &mut self.deltas) else { return self.put_limit() };
        self.put_deltas();
        if !is_rest {
            return Progress::More;
        }
        self.end_parts(plan, is_last);
        Progress::Done
    }

    /// Writes the deltas but for the last one.
    fn put_deltas(&mut self) {
        for delta in self.deltas.drain(..) {
            if let Some(earlier) = self.pending.replace(delta) {
                self.form.put_delta(&mut self.buffer, &earlier, Facts::default());
            }
        }
    }

    /// A response is read: its last delta has the facts.
    fn end_parts(&mut self, plan: &Plan, is_last: bool) {
        if is_last {
            self.message.finish(&mut self.deltas);
            self.put_deltas();
        }
        let has_more_to_say = is_last || (self.logprobs_json.is_some() && plan.compat == Compat::OpenAi);
        let empty = || has_more_to_say.then(|| Delta::Content(String::new()));
        if let Some(delta) = self.pending.take().or_else(empty) {
            let facts = Facts { logprobs: self.logprobs_json.as_deref(), ..self.facts(plan, is_last) };
            self.form.put_delta(&mut self.buffer, &delta, facts);
        }
        if is_last {
            self.stage = Stage::Ended;
        }
    }

    /// The text is too long to look for calls in it.
    fn put_limit(&mut self) -> Progress {
        self.put_deltas();
        if let Some(delta) = self.pending.take() {
            self.form.put_delta(&mut self.buffer, &delta, Facts::default());
        }
        let facts = Facts { finish: Some(Finish::Length), ..Facts::default() };
        self.form.put_delta(&mut self.buffer, &Delta::Content(String::new()), facts);
        self.stage = Stage::Ended;
        Progress::Enough
    }

    /// The chunks behind the last response.
    pub fn finish(&mut self, plan: &Plan, pool: &Pool, out: &mut Gather) {
        if self.stage == Stage::Done {
            return;
        }
        self.buffer.clear();
        self.put_role();
        if self.stage < Stage::Ended {
            self.logprobs_json = None;
            self.put_last(plan);
        }
        let counts = self.counts.with_prompt_of(plan);
        if plan.include_usage && counts.is_whole() {
            self.form.put_usage(&mut self.buffer, counts);
        }
        self.end(pool, out);
    }

    /// The last chunk, where the model ended without a response for it.
    fn put_last(&mut self, plan: &Plan) {
        if !self.message.is_plain() {
            return self.end_parts(plan, true);
        }
        let facts = self.facts(plan, true);
        if self.stage == Stage::BetweenChunks {
            self.form.begin_text(&mut self.buffer, facts);
        }
        escape_into(self.message.plain_end(), &mut self.buffer);
        self.form.end_text(&mut self.buffer, facts);
        self.stage = Stage::Ended;
    }

    fn end(&mut self, pool: &Pool, out: &mut Gather) {
        self.buffer.extend_from_slice(b"data: [DONE]\n\n");
        self.stage = Stage::Done;
        out.put(pool, &self.buffer);
    }

    pub fn fail(&mut self, refusal: &Refusal, pool: &Pool, out: &mut Gather) {
        self.buffer.clear();
        if self.stage == Stage::InText {
            self.form.end_text(&mut self.buffer, Facts::default());
        }
        failure::put_error_event(&mut self.buffer, refusal);
        self.end(pool, out);
    }
}
