//! Turns the responses in a worker's messages into responses to clients.

use super::link::Link;
use super::marshal::{Malformed, Value};
use super::open_requests::Address;
use super::tensors::ReceivedTensor;
use nereid_request::{Code, Parameters, Request, Response, Status, Text};

/// A response as its worker sent it: (outputs, parameters, error).
pub struct Answer<'a> {
    outputs: &'a [Value<'a>],
    parameters: Parameters,
    error: Option<Status>,
}

impl<'a> Answer<'a> {
    pub fn read(value: &'a Value<'a>) -> Result<Answer<'a>, Malformed> {
        let [outputs, parameters, error] = value.as_tuple()?;
        let error = error.optional(|error| {
            let [code, text] = error.as_tuple()?;
            let code = Code::from_number(code.as_int()?);
            Ok(Status { code, refusal: None, message: text.as_text()?.into_owned().into() })
        })?;
        Ok(Answer { outputs: outputs.as_sequence()?, parameters: read_parameters(parameters)?, error })
    }

    /// The response to `request`, which is still held.
    pub fn into_response_to(self, link: &Link, request: &Request) -> Result<Response, Malformed> {
        let mut response = Response::new(request.id.clone());
        self.fill(&mut response, |received| received.output(link, &request.outputs, request))?;
        Ok(response)
    }

    /// The response through a sender, for a request that may be gone.
    pub fn into_response_at(self, link: &Link, address: &Address) -> Result<Response, Malformed> {
        let mut response = Response::new(address.id.clone());
        self.fill(&mut response, |received| received.output(link, &address.outputs, address.outbox.factory()))?;
        Ok(response)
    }

    /// Drops a response without a receiver: the memory of its tensors is released.
    pub fn discard(self, link: &Link) -> Result<(), Malformed> {
        self.outputs.iter().try_for_each(|output| {
            ReceivedTensor::read(output)?.discard(link);
            Ok(())
        })
    }

    /// Reads every tensor, also after an error, so that the memory of all is released.
    fn fill(
        self,
        response: &mut Response,
        mut output: impl FnMut(ReceivedTensor<'a>) -> Result<Option<nereid_request::OutputTensor>, Status>,
    ) -> Result<(), Malformed> {
        let mut error = self.error;
        for value in self.outputs {
            match output(ReceivedTensor::read(value)?) {
                Ok(Some(tensor)) if error.is_none() => response.outputs.push(tensor),
                Ok(_) => {}
                Err(status) => {
                    error.get_or_insert(status);
                }
            }
        }
        if error.is_some() {
            response.outputs.clear();
        }
        response.parameters = self.parameters;
        response.error = error;
        Ok(())
    }
}

/// ((name, value), …)
pub fn read_parameters(value: &Value<'_>) -> Result<Parameters, Malformed> {
    let mut parameters = Parameters::default();
    for pair in value.as_sequence()? {
        let [name, value] = pair.as_tuple()?;
        let value = match value {
            Value::Bool(is_set) => nereid_request::Value::Bool(*is_set),
            Value::Int(_) => nereid_request::Value::Int(value.as_int()?),
            Value::Float(number) => nereid_request::Value::Double(*number),
            value => nereid_request::Value::String(Text::from(&*value.as_text()?)),
        };
        parameters.push(Text::from(&*name.as_text()?), value);
    }
    Ok(parameters)
}
