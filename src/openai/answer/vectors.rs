//! Answers made of numbers: embeddings (contract/openai.md section 1.8), and the scores and ranks that servers beside
//! Triton have (section 5). Each of several requests gives one vector, or one number.

use std::sync::Arc;

use nereid_memory::{Gather, Pool};

use super::Progress;
use super::document::Document;
use super::held::Held;
use super::numbers::{Elements, Malformed, NumberList, Vector};
use super::outputs::Arrived;
use super::text::{put_number, put_string};
use super::usage::Counts;
use crate::error::Refusal;
use crate::plan::Plan;
use crate::request::Operation;

/// What is being read.
enum Source {
    /// `text_output` holds the numbers as JSON.
    Text(NumberList),
    /// A tensor holds them.
    Tensor(Elements),
}

struct Reading {
    index: usize,
    arrived: Arrived,
    source: Source,
}

#[derive(Default)]
pub(super) struct Vectors {
    items: Vec<Option<Vector>>,
    reading: Option<Reading>,
    counts: Counts,
    /// In all items.
    bytes: usize,
    held: Held,
    document: Option<Document>,
}

impl Vectors {
    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn begin(&mut self, index: usize, arrived: Arrived) {
        let source = match (arrived.text_left(), arrived.floats()) {
            (0, None) => return,
            (0, Some(_)) => Source::Tensor(Elements::default()),
            _ => Source::Text(NumberList::new()),
        };
        // The first response with a vector counts.
        if self.items.get(index).is_some_and(Option::is_some) {
            return;
        }
        self.counts.add_request(&arrived);
        self.reading = Some(Reading { index, arrived, source });
    }

    pub fn end_without_response(&self, index: usize) -> Result<(), Refusal> {
        self.items.get(index).and_then(Option::as_ref).map(|_| ()).ok_or_else(missing)
    }

    pub fn step(&mut self, plan: &Plan, pool: &Pool) -> Result<Progress, Refusal> {
        let Some(mut reading) = self.reading.take() else { return Ok(Progress::Done) };
        let elements_max = if plan.operation == Operation::Embeddings { usize::MAX } else { 1 };
        let is_done = match &mut reading.source {
            Source::Text(list) => match reading.arrived.next_run() {
                Some((run, is_rest)) => list.push(run).map(|()| is_rest),
                None => Ok(true),
            },
            Source::Tensor(elements) => elements.read(reading.arrived.floats().unwrap_or_default(), elements_max),
        };
        if !is_done.map_err(malformed)? {
            self.reading = Some(reading);
            return Ok(Progress::More);
        }
        let vector = match reading.source {
            Source::Text(list) => list.finish().map_err(malformed)?,
            Source::Tensor(elements) => elements.finish(),
        };
        if vector.len() == 0 {
            return Err(missing());
        }
        self.bytes = self.bytes.saturating_add(vector.byte_size());
        self.held.set(self.bytes, pool)?;
        if self.items.len() <= reading.index {
            self.items.resize_with(reading.index.saturating_add(1), || None);
        }
        if let Some(item) = self.items.get_mut(reading.index) {
            *item = Some(vector);
        }
        Ok(Progress::Done)
    }

    /// Writes a bounded part of the answer. True when it is whole.
    pub fn finish(&mut self, plan: &Plan, pool: &Pool, out: &mut Gather) -> Result<bool, Refusal> {
        if self.document.is_none() {
            let vectors: Option<Vec<Vector>> = std::mem::take(&mut self.items).into_iter().collect();
            let vectors = vectors.filter(|vectors| !vectors.is_empty()).ok_or_else(missing)?;
            let mut document = Document::default();
            match plan.operation {
                Operation::Rerank => self.put_ranks(plan, &vectors, &mut document),
                Operation::Score => self.put_scores(plan, &vectors, &mut document),
                _ => self.put_embeddings(plan, vectors, &mut document),
            }
            self.document = Some(document);
        }
        Ok(self.document.as_mut().is_none_or(|document| document.write(pool, out)))
    }

    fn put_embeddings(&self, plan: &Plan, vectors: Vec<Vector>, document: &mut Document) {
        document.put("{\"object\":\"list\",\"data\":[");
        let (open, close) = if plan.base64 { ("\"", "\"") } else { ("[", "]") };
        for (index, vector) in vectors.into_iter().enumerate() {
            document.put(if index > 0 { "," } else { "" });
            document.put("{\"object\":\"embedding\",\"embedding\":");
            document.put(open);
            match plan.base64 {
                true => document.put_base64(vector),
                false => document.put_numbers(vector),
            }
            document.put(close);
            document.put(",\"index\":");
            put_number(document.json(), index as u64);
            document.put("}");
        }
        document.put("],\"model\":");
        put_string(document.json(), &plan.model);
        self.end(plan, document);
    }

    fn put_scores(&self, plan: &Plan, vectors: &[Vector], document: &mut Document) {
        let json = document.json();
        json.extend_from_slice(b"{\"id\":");
        put_string(json, &plan.id);
        json.extend_from_slice(b",\"object\":\"list\",\"created\":");
        put_number(json, plan.created);
        json.extend_from_slice(b",\"model\":");
        put_string(json, &plan.model);
        json.extend_from_slice(b",\"data\":[");
        for (index, vector) in vectors.iter().enumerate() {
            json.extend_from_slice(if index > 0 { b",{\"index\":" } else { b"{\"index\":" });
            put_number(json, index as u64);
            json.extend_from_slice(b",\"object\":\"score\",\"score\":");
            vector.put(0, json);
            json.push(b'}');
        }
        json.push(b']');
        self.end(plan, document);
    }

    /// The documents by their relevance; of the same one, in the order of the request.
    fn put_ranks(&self, plan: &Plan, vectors: &[Vector], document: &mut Document) {
        let mut order: Vec<usize> = (0..vectors.len()).collect();
        let score = |index: &usize| vectors.get(*index).map_or(0.0, |vector| vector.double(0));
        order.sort_by(|one, other| score(other).total_cmp(&score(one)));
        let request = plan.rerank.as_ref();
        let most = request.and_then(|request| request.top_n).map(|most| usize::try_from(most).unwrap_or(0));
        order.truncate(most.unwrap_or(usize::MAX));
        let json = document.json();
        json.extend_from_slice(b"{\"id\":");
        put_string(json, &plan.id);
        json.extend_from_slice(b",\"model\":");
        put_string(json, &plan.model);
        json.extend_from_slice(b",\"results\":[");
        for (place, index) in order.into_iter().enumerate() {
            let json = document.json();
            json.extend_from_slice(if place > 0 { b",{\"index\":" } else { b"{\"index\":" });
            put_number(json, index as u64);
            if let Some(request) = request.filter(|request| request.return_documents) {
                json.extend_from_slice(b",\"document\":{\"text\":");
                document.put_document(Arc::clone(request), index);
                document.put("}");
            }
            document.put(",\"relevance_score\":");
            if let Some(vector) = vectors.get(index) {
                vector.put(0, document.json());
            }
            document.put("}");
        }
        document.put("]");
        self.end(plan, document);
    }

    fn end(&self, plan: &Plan, document: &mut Document) {
        document.put(",\"usage\":");
        self.counts.with_prompt_of(plan).put_prompt_usage(document.json());
        document.put("}");
    }
}

fn missing() -> Refusal {
    Refusal::server(
        "The model gave no numbers: it needs an output 'text_output' with a JSON list of numbers, or an output of the \
         datatype FP32.",
    )
}

fn malformed(Malformed(what): Malformed) -> Refusal {
    Refusal::server(format!("The model's vector cannot be read: {what}."))
}
