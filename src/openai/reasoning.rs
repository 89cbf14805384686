//! The part of a model's text that is its reasoning.
//!
//! It stands at the start of the text, in front of calls and content, so that it is split off before they are read. As
//! with them, text is held only while it may still become a tag.

#[cfg(test)]
mod tests;

const START: &str = "<think>";
const END: &str = "</think>";

/// Blanks in front of the first tag that are held to see whether it comes.
const BLANKS_MAX: usize = 64;

/// The formats that are known (`--reasoning-parser`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningParserKind {
    /// `<think>` ... `</think>`; the text may begin inside.
    DeepSeekR1,
    /// The same, but text without `<think>` is no reasoning.
    Qwen3,
}

/// Reads the text of one answer as it comes, in front of the parser of tool calls.
#[derive(Debug)]
pub struct ReasoningParser {
    kind: ReasoningParserKind,
    place: Place,
    /// What may become a tag, with the blanks in front of it.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Inside,
    Behind,
}

/// Parts of the text in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Content(String),
}

impl ReasoningParser {
    pub fn new(kind: ReasoningParserKind) -> ReasoningParser {
        ReasoningParser { kind, place: Place::Start, held: String::new() }
    }

    /// Takes more text in; what is certain by it goes to `parts`. No part is empty, and a part extends the last one of
    /// its kind.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        let mut rest = text;
        if self.place == Place::Start {
            rest = self.push_start(rest, parts);
        }
        if self.place == Place::Inside {
            rest = self.push_inside(rest, parts);
        }
        if self.place == Place::Behind {
            push_part(rest, false, parts);
        }
    }

    /// No text follows.
    pub fn finish(&mut self, parts: &mut Vec<Part>) {
        let is_reasoning = match self.place {
            Place::Start => self.kind == ReasoningParserKind::DeepSeekR1,
            Place::Inside => true,
            Place::Behind => false,
        };
        push_part(&std::mem::take(&mut self.held), is_reasoning, parts);
        self.place = Place::Behind;
    }

    /// Looks for the first tag; the rest of the text is not for here.
    fn push_start<'a>(&mut self, text: &'a str, parts: &mut Vec<Part>) -> &'a str {
        for (place, character) in text.char_indices() {
            self.held.push(character);
            let tag = self.held.trim_start();
            let blanks = self.held.len() - tag.len();
            if tag == START {
                push_part(self.held.get(..blanks).unwrap_or_default(), true, parts);
                self.held.clear();
                self.place = Place::Inside;
                return text.get(place + character.len_utf8()..).unwrap_or_default();
            }
            if !START.starts_with(tag) || blanks > BLANKS_MAX {
                // The character may begin the tag that ends a text that began inside.
                self.held.pop();
                let is_reasoning = self.kind == ReasoningParserKind::DeepSeekR1;
                self.place = if is_reasoning { Place::Inside } else { Place::Behind };
                if !is_reasoning || !END.starts_with(self.held.trim_start()) {
                    push_part(&std::mem::take(&mut self.held), is_reasoning, parts);
                } else {
                    let blanks = self.held.len() - self.held.trim_start().len();
                    push_part(self.held.get(..blanks).unwrap_or_default(), true, parts);
                    self.held.drain(..blanks);
                }
                return text.get(place..).unwrap_or_default();
            }
        }
        ""
    }

    /// Looks for the tag at the end; the rest of the text is behind it.
    fn push_inside<'a>(&mut self, text: &'a str, parts: &mut Vec<Part>) -> &'a str {
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            if self.held.is_empty() && character != '<' {
                let (reasoning, left) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
                push_part(reasoning, true, parts);
                rest = left;
                continue;
            }
            // Only the first character of the tag is a `<`: where the tag breaks off, at most this one begins another.
            if !END.get(self.held.len()..).is_some_and(|left| left.starts_with(character)) {
                push_part(&std::mem::take(&mut self.held), true, parts);
                continue;
            }
            self.held.push(character);
            rest = rest.get(character.len_utf8()..).unwrap_or_default();
            if self.held == END {
                self.held.clear();
                self.place = Place::Behind;
                return rest;
            }
        }
        ""
    }
}

fn push_part(text: &str, is_reasoning: bool, parts: &mut Vec<Part>) {
    match (parts.last_mut(), is_reasoning) {
        _ if text.is_empty() => {}
        (Some(Part::Reasoning(last)), true) | (Some(Part::Content(last)), false) => last.push_str(text),
        (_, true) => parts.push(Part::Reasoning(text.into())),
        (_, false) => parts.push(Part::Content(text.into())),
    }
}

/// Reads a whole answer: its reasoning, if it has any, and what follows it.
pub fn whole(kind: ReasoningParserKind, text: &str) -> (Option<String>, String) {
    let mut parser = ReasoningParser::new(kind);
    let mut parts = Vec::new();
    parser.push(text, &mut parts);
    parser.finish(&mut parts);
    let (mut reasoning, mut content) = (None, String::new());
    for part in parts {
        match part {
            Part::Reasoning(text) => reasoning = Some(text),
            Part::Content(text) => content = text,
        }
    }
    (reasoning, content)
}
