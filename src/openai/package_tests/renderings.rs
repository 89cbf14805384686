//! Renderings of the templates of TRL and of tokenizers, equal to those of transformers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nereid_openai::json::Json;
use nereid_openai::template::{Conversation, RenderBounds, RenderError, Templates};
use serde_json::Value;

use super::{golden, path_of};

const BOUNDS: RenderBounds =
    RenderBounds { steps_max: 1_000_000, bytes_max: 1 << 20, time_max: Duration::from_secs(600) };

/// A value as the script tags it.
fn untagged(value: &Value) -> Json {
    let item = &value[1];
    match value[0].as_str().unwrap() {
        "null" => Json::Null,
        "bool" => Json::Bool(item.as_bool().unwrap()),
        "int" => Json::Int(item.as_str().unwrap().parse().unwrap()),
        "float" => Json::Float(item.as_str().unwrap().parse().unwrap()),
        "text" => Json::Text(item.as_str().unwrap().to_owned()),
        "list" => Json::List(item.as_array().unwrap().iter().map(untagged).collect()),
        "object" => {
            let members = item.as_array().unwrap().iter();
            Json::Object(members.map(|pair| (pair[0].as_str().unwrap().to_owned(), untagged(&pair[1]))).collect())
        }
        tag => panic!("the tag {tag}"),
    }
}

fn list(value: &Value) -> Option<Vec<Json>> {
    match untagged(value) {
        Json::List(items) => Some(items),
        _ => None,
    }
}

fn render(templates: &Templates, case: &Value) -> Result<String, RenderError> {
    let messages = list(&case["messages"]).unwrap();
    let tools = list(&case["tools"]);
    let Json::Object(arguments) = untagged(&case["arguments"]) else { panic!("arguments of {}", case["name"]) };
    let conversation = Conversation {
        messages: &messages,
        tools: tools.as_deref(),
        add_generation_prompt: case["prompt"].as_bool().unwrap(),
        arguments: &arguments,
    };
    templates.render(&conversation, &BOUNDS)
}

/// None: as it should be.
fn difference(case: &Value, rendered: &Result<String, RenderError>) -> Option<String> {
    let name = case["name"].as_str().unwrap();
    let is_equal = match (rendered, case["text"].as_str(), case["raised"].as_str()) {
        (Ok(text), Some(expected), _) => text == expected,
        (Err(RenderError::Failed(text)), None, Some(expected)) => text == expected,
        // Errors of Python itself: what minijinja does instead does not matter, if it ends. The text of a folder
        // without a template does.
        (Err(RenderError::NoTemplate(text)), None, None) => case["failed"].as_str().unwrap().ends_with(text),
        (_, None, None) => true,
        _ => false,
    };
    (!is_equal).then(|| {
        let expected = case["text"].as_str().or(case["raised"].as_str()).unwrap_or_default();
        format!("{name}\n  expected {expected:?}\n  rendered {rendered:?}")
    })
}

#[test]
fn templates_render_as_in_python() {
    let Some(golden) = golden() else { return };
    let sources = golden["templates"].as_object().unwrap();
    let mut templates = BTreeMap::new();
    let (mut texts, mut raised) = (0, 0);
    let mut differences = Vec::new();
    for case in golden["renderings"].as_array().unwrap() {
        let key = (case["template"].as_str(), path_of(&case["folder"]));
        let templates = templates.entry(key).or_insert_with(|| match key {
            (Some(name), _) => Templates::load(Path::new("/nonexistent"), sources[name].as_str()).unwrap(),
            (None, folder) => Templates::load(folder.unwrap(), None).unwrap(),
        });
        texts += usize::from(case["text"].is_string());
        raised += usize::from(case["raised"].is_string());
        differences.extend(difference(case, &render(templates, case)));
    }
    let shown = differences.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {texts} texts and {raised} errors differ:\n{shown}", differences.len());
    assert!(texts > 1500 && raised > 50, "{texts} {raised}");
}

#[test]
fn forms_of_content_are_detected() {
    let Some(golden) = golden() else { return };
    // By reading the templates.
    let parts = ["gemma3", "qwen2_5_vl", "qwen3_vl", "smolvlm", "idefics3"];
    let text = ["llama3_2", "qwen2_5", "qwen3", "llama3", "phi3", "gemma", "deepseekv3"];
    let wants = |name: &str| {
        let source = golden["templates"][name].as_str().unwrap_or_else(|| panic!("no template {name}"));
        Templates::load(Path::new("/nonexistent"), Some(source)).unwrap().wants_parts(false)
    };
    assert_eq!(parts.map(wants), [true; 5], "{parts:?}");
    assert_eq!(text.map(wants), [false; 7], "{text:?}");
}
