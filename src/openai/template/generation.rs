//! The text of a template before it is compiled: statements that minijinja does not have, and ends of lines.
//!
//! transformers adds `{% generation %}`, which marks what an assistant says for training and renders as its body.

use std::borrow::Cow;

use memchr::memmem;

/// With `{% if true %}` and `{% endif %}` in place of the marks of what was generated. Their signs for blanks stay.
pub(super) fn without_tags(source: &str) -> String {
    let mut written = String::with_capacity(source.len());
    let mut done = 0;
    for start in memmem::find_iter(source.as_bytes(), b"{%") {
        let Some((name, end)) = tag(source, start) else { continue };
        written.push_str(source.get(done..name).unwrap_or_default());
        written.push_str(if source.get(name..end) == Some("generation") { "if true" } else { "endif" });
        done = end;
    }
    written.push_str(source.get(done..).unwrap_or_default());
    written
}

/// Where the name of such a statement begins and ends, if there is one at `start`.
fn tag(source: &str, start: usize) -> Option<(usize, usize)> {
    let inside = source.get(start..)?.strip_prefix("{%")?;
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside).trim_ascii_start();
    let rest = inside.strip_prefix("generation").or_else(|| inside.strip_prefix("endgeneration"))?;
    let after = rest.trim_ascii_start();
    let after = after.strip_prefix(['-', '+']).unwrap_or(after);
    let (name, end) = (source.len().checked_sub(inside.len())?, source.len().checked_sub(rest.len())?);
    after.starts_with("%}").then_some((name, end))
}

/// Jinja2 reads each end of a line as `\n`.
pub(super) fn with_newlines(source: &str) -> Cow<'_, str> {
    match source.contains('\r') {
        true => Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n")),
        false => Cow::Borrowed(source),
    }
}
