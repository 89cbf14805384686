//! Which form of content a template writes out: templates of older models expect a string, and a list of parts would be
//! printed as Python prints a list (contract/openai.md section 1.4).
//!
//! Two renderings of one message decide, as its text or as a list of one part, because what counts is what the template
//! writes. A part that is printed has its text in quotation marks.

use std::time::Duration;

use super::{ContentForm, Conversation, RenderBounds, Templates};
use crate::json::Json;

const PROBE: &str = "nereid-probe-of-content";

/// Templates take some thousand steps. The time is long, so that a busy host does not decide the form.
const BOUNDS: RenderBounds = RenderBounds { steps_max: 200_000, bytes_max: 1 << 20, time_max: Duration::from_secs(20) };

pub(super) fn detect(templates: &Templates, name: &str) -> ContentForm {
    let text = Json::Text(PROBE.into());
    let part = object(&[("type", Json::Text("text".into())), ("text", text.clone())]);
    let takes_text = render(templates, name, text).is_some_and(|text| text.contains(PROBE));
    let takes_parts = render(templates, name, Json::List(vec![part])).is_some_and(|text| shows_probe(&text));
    match (takes_text, takes_parts) {
        (true, true) => ContentForm::Both,
        (false, true) => ContentForm::Parts,
        (_, false) => ContentForm::Text,
    }
}

fn render(templates: &Templates, name: &str, content: Json) -> Option<String> {
    let message = object(&[("role", Json::Text("user".into())), ("content", content)]);
    let conversation = Conversation { messages: &[message], tools: None, add_generation_prompt: true, arguments: &[] };
    templates.render_named(name, &conversation, &BOUNDS).ok()
}

/// Somewhere without a quotation mark before it.
fn shows_probe(text: &str) -> bool {
    text.match_indices(PROBE).any(|(start, _)| !text.get(..start).unwrap_or_default().ends_with(['\'', '"']))
}

fn object(members: &[(&str, Json)]) -> Json {
    Json::Object(members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}
