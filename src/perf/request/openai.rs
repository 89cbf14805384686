//! Requests to a server of OpenAI's interface: a head before a body that was made with the plan.

use super::{Layout, Prepared};
use crate::PerfError;
use crate::openai::OpenAi;
use crate::plan::{Compression, Plan, Template};
use nereid_protocol::http1::{RequestBody, RequestHead};

pub fn prepare(plan: &Plan, openai: &OpenAi, template: &Template) -> Result<Prepared, PerfError> {
    let Some(body) = &template.body else {
        return Err(PerfError::Plan("a request to OpenAI's interface has no body".to_owned()));
    };
    let accept = if openai.streaming { "text/event-stream" } else { "application/json" };
    let mut fields = vec![("Content-Type", "application/json"), ("Accept", accept), ("User-Agent", "nereid-perf")];
    fields.extend(plan.work.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let head = RequestHead {
        method: "POST",
        target: &openai.path,
        host: &plan.target.endpoint.authority(),
        headers: &fields,
        body: RequestBody::Length(body.len()),
    };
    let mut before = Vec::new();
    head.encode(&mut before);
    Ok(Prepared { layout: Layout::Fixed, before, after: body.clone(), packing: Compression::None })
}
