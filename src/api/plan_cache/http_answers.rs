//! The JSON of answers that equals that of an earlier answer.
//!
//! Of a model whose outputs keep their shapes and leave as binary data, every answer has the same JSON but for the id.
//! Comparing what it is made of takes a fraction of the steps that writing it takes.

use smallvec::SmallVec;

use super::answer_key::AnswerKey;
use super::bounds::{HTTP_ANSWER_BYTES_MAX, HTTP_ANSWERS_MAX};
use crate::api::infer::AnswerForm;
use nereid_request::{OutputTensor, Response};
use nereid_scheduler::ServedModel;

/// The last texts, by model.
#[derive(Debug, Default)]
pub struct HttpAnswers {
    kept: Vec<Kept>,
    /// The one that gives way next.
    oldest: usize,
    /// Answers whose text was known.
    pub hits: u64,
}

#[derive(Debug, Default)]
struct Kept {
    key: AnswerKey,
    /// What the text has of each output beyond the key.
    byte_sizes: SmallVec<[Option<usize>; 2]>,
    /// Without an id.
    text: Vec<u8>,
}

/// The part of an output that is not in the key; `None`: it is in shared memory.
fn byte_size((at, output): (usize, &OutputTensor), form: &AnswerForm) -> Option<usize> {
    if form.is_shared(at, &output.name) { None } else { Some(output.byte_size()) }
}

impl Kept {
    fn fits(&self, response: &Response, form: &AnswerForm) -> bool {
        self.key.fits(response)
            && self
                .byte_sizes
                .iter()
                .zip(response.outputs.iter().enumerate())
                .all(|(size, of)| *size == byte_size(of, form))
    }
}

/// Whether no output of the answer stands in its JSON.
pub fn is_all_binary(response: &Response, form: &AnswerForm) -> bool {
    let mut outputs = response.outputs.iter().enumerate();
    outputs.all(|(at, output)| form.of(at, &output.name).0 || form.is_shared(at, &output.name))
}

impl HttpAnswers {
    /// The JSON of an answer without its id, if it is known. Only for answers that are
    /// [binary throughout](is_all_binary).
    pub fn find(&self, response: &Response, model: &ServedModel, form: &AnswerForm) -> Option<&[u8]> {
        let kept = self.kept.iter().find(|kept| kept.key.is_of(model))?;
        kept.fits(response, form).then_some(&kept.text[..])
    }

    /// Keeps `text`, which is the JSON of such an answer without an id.
    pub fn keep(&mut self, response: &Response, model: &ServedModel, form: &AnswerForm, text: &[u8]) {
        if text.len() > HTTP_ANSWER_BYTES_MAX {
            return;
        }
        let at = self.kept.iter().position(|kept| kept.key.is_of(model)).unwrap_or_else(|| {
            if self.kept.len() < HTTP_ANSWERS_MAX {
                self.kept.push(Kept::default());
                return self.kept.len() - 1;
            }
            self.oldest = (self.oldest + 1) % HTTP_ANSWERS_MAX;
            self.oldest
        });
        let Some(kept) = self.kept.get_mut(at) else { return };
        // Memory is used again: a model whose shapes change comes here with each answer.
        kept.key.set(response, model);
        kept.byte_sizes.clear();
        kept.byte_sizes.extend(response.outputs.iter().enumerate().map(|output| byte_size(output, form)));
        kept.text.clear();
        kept.text.extend_from_slice(text);
    }

    /// Models came or went.
    pub fn forget(&mut self) {
        *self = HttpAnswers { hits: self.hits, ..HttpAnswers::default() };
    }
}
