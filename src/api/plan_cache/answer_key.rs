//! The key of an answer: all that it says but its id and its contents.

use smallvec::SmallVec;

use nereid_request::{DataType, Parameters, Response, Shape, Text};
use nereid_scheduler::ServedModel;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct AnswerKey {
    model: String,
    version: i64,
    outputs: SmallVec<[(Text, DataType, Shape); 2]>,
    parameters: Parameters,
}

impl AnswerKey {
    pub fn is_of(&self, model: &ServedModel) -> bool {
        self.version == model.version && self.model == model.name
    }

    /// Whether a response of the same model says the same.
    #[inline]
    pub fn fits(&self, response: &Response) -> bool {
        self.outputs.len() == response.outputs.len()
            && self.outputs.iter().zip(&response.outputs).all(|((name, datatype, shape), output)| {
                *datatype == output.datatype && *shape == output.shape && *name == output.name
            })
            && self.parameters.is_same(&response.parameters)
    }

    /// Becomes the key of this response, in the memory that it has.
    pub fn set(&mut self, response: &Response, model: &ServedModel) {
        self.model.clone_from(&model.name);
        self.version = model.version;
        if !self.parameters.is_same(&response.parameters) {
            self.parameters = response.parameters.clone();
        }
        self.outputs.clear();
        let outputs = response.outputs.iter();
        self.outputs
            .extend(outputs.map(|output| (output.name.clone(), output.datatype, Shape::from_slice(&output.shape))));
    }
}
