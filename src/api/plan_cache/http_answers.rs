//! The JSON of answers that say what an answer before them said.
//!
//! Of a model whose outputs keep their shapes and leave as binary data, every answer has the same JSON but for the id.
//! Comparing what it is made of takes a fraction of the steps that writing it takes.

use smallvec::SmallVec;

use crate::api::infer::AnswerForm;
use crate::repository::ServedModel;
use nereid_request::{DataType, OutputTensor, Parameters, Response, Shape, Text, Value};

/// Models of which a text is kept.
const MODELS_MAX: usize = 16;
/// Longest text that is kept.
const TEXT_BYTES_MAX: usize = 4096;

/// The last texts, by model.
#[derive(Debug, Default)]
pub struct Templates {
    known: Vec<Template>,
    /// The one that makes way next.
    oldest: usize,
    /// Answers whose text was known.
    pub hits: u64,
}

#[derive(Debug, Default)]
struct Template {
    model: String,
    version: i64,
    parameters: Parameters,
    outputs: SmallVec<[Said; 2]>,
    /// Without an id.
    text: Vec<u8>,
}

/// What the text says of an output.
#[derive(Debug)]
struct Said {
    name: Text,
    datatype: DataType,
    shape: Shape,
    /// `None`: it is in shared memory.
    byte_size: Option<usize>,
}

/// What an answer says of an output that is no part of its JSON.
fn byte_size(output: &OutputTensor, form: &AnswerForm) -> Option<usize> {
    if form.is_shared(&output.name) { None } else { Some(output.byte_size()) }
}

fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::String(one), Value::String(other)) => one == other,
        (Value::Int(one), Value::Int(other)) => one == other,
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::Double(one), Value::Double(other)) => one.to_bits() == other.to_bits(),
        _ => false,
    }
}

impl Template {
    fn is_of(&self, model: &ServedModel) -> bool {
        self.version == model.version && self.model == model.name
    }

    fn has_parameters(&self, given: &Parameters) -> bool {
        self.parameters.len() == given.len()
            && self
                .parameters
                .iter()
                .zip(given.iter())
                .all(|(one, other)| one.name == other.name && is_same(&one.value, &other.value))
    }

    fn fits(&self, response: &Response, form: &AnswerForm) -> bool {
        self.outputs.len() == response.outputs.len()
            && self.outputs.iter().zip(&response.outputs).all(|(said, output)| {
                said.name == output.name
                    && said.datatype == output.datatype
                    && said.shape == output.shape
                    && said.byte_size == byte_size(output, form)
            })
            && self.has_parameters(&response.parameters)
    }
}

/// Whether no output of the answer stands in its JSON.
pub fn is_all_binary(response: &Response, form: &AnswerForm) -> bool {
    response.outputs.iter().all(|output| form.of(&output.name).0 || form.is_shared(&output.name))
}

impl Templates {
    /// The JSON of an answer without its id, if it is known. Only for answers that are
    /// [binary throughout](is_all_binary).
    pub fn find(&self, response: &Response, model: &ServedModel, form: &AnswerForm) -> Option<&[u8]> {
        let known = self.known.iter().find(|known| known.is_of(model))?;
        known.fits(response, form).then_some(&known.text[..])
    }

    /// Keeps `text`, which is the JSON of such an answer without an id.
    pub fn keep(&mut self, response: &Response, model: &ServedModel, form: &AnswerForm, text: &[u8]) {
        if text.len() > TEXT_BYTES_MAX {
            return;
        }
        let at = self.known.iter().position(|known| known.is_of(model)).unwrap_or_else(|| {
            if self.known.len() < MODELS_MAX {
                self.known.push(Template::default());
                return self.known.len() - 1;
            }
            self.oldest = (self.oldest + 1) % MODELS_MAX;
            self.oldest
        });
        let Some(known) = self.known.get_mut(at) else { return };
        // Memory is used again: a model whose shapes change comes here with each answer.
        known.model.clone_from(&model.name);
        known.version = model.version;
        if !known.has_parameters(&response.parameters) {
            known.parameters = response.parameters.clone();
        }
        known.outputs.clear();
        known.outputs.extend(response.outputs.iter().map(|output| Said {
            name: output.name.clone(),
            datatype: output.datatype,
            shape: Shape::from_slice(&output.shape),
            byte_size: byte_size(output, form),
        }));
        known.text.clear();
        known.text.extend_from_slice(text);
    }
}
