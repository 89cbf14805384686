//! Templates written for these tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Conversation, RenderBounds, RenderError, Templates};
use crate::json::Json;

mod bounds;
mod folders;
mod forms;
mod python;

const BOUNDS: RenderBounds =
    RenderBounds { steps_max: 1_000_000, bytes_max: 1 << 20, time_max: Duration::from_secs(600) };

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nereid-templates-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn with(self, file: &str, text: &str) -> Folder {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn load(&self) -> Templates {
        Templates::load(&self.0, None).unwrap()
    }

    fn error(&self) -> String {
        Templates::load(&self.0, None).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(text: &str) -> Json {
    Json::Text(text.to_owned())
}

fn object(members: &[(&str, Json)]) -> Json {
    Json::Object(members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

fn message(role: &str, content: Json) -> Json {
    object(&[("role", text(role)), ("content", content)])
}

/// A template without a folder.
fn template(source: &str) -> Templates {
    Templates::load(Path::new("/nonexistent"), Some(source)).unwrap()
}

fn render_with(templates: &Templates, arguments: &[(String, Json)]) -> Result<String, RenderError> {
    let messages = [message("user", text("hi"))];
    let conversation = Conversation { messages: &messages, tools: None, add_generation_prompt: true, arguments };
    templates.render(&conversation, &BOUNDS)
}

/// What an expression prints, with `x` as a variable.
fn printed(expression: &str, x: Json) -> String {
    render_with(&template(&format!("{{{{ {expression} }}}}")), &[("x".to_owned(), x)]).unwrap()
}

fn rendered(source: &str) -> String {
    render_with(&template(source), &[]).unwrap()
}

fn failure(source: &str) -> String {
    match render_with(&template(source), &[]) {
        Err(RenderError::Failed(text)) => text,
        other => panic!("{other:?}"),
    }
}
