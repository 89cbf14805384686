//! Tool calls in the text of models (contract/openai.md section 1.6).
//!
//! One parser serves streams and whole answers: it takes the text in pieces, reads every character once, or twice where
//! a tag proves to be none, and gives out what is certain. So the arguments of a stream are those of the whole answer,
//! wherever the text is cut. Text that may still become a call is held, and is content when it does not.

mod call;
mod ids;
mod python;
mod string;
#[cfg(test)]
mod tests;
mod value;

use call::{CallReader, CallStep};
pub use ids::IdSource;
use python::{PythonReader, is_of_name};

use crate::python_json::Escapes;

/// The formats that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolParserKind {
    /// `{"name": .., "parameters": {..}}`, several with `; ` between them.
    Llama3,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}]`; of newer models `[TOOL_CALLS]name[ARGS]{..}`.
    Mistral,
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as of Qwen.
    Hermes,
    /// `[name(key="value")]`, as of Llama 3.2 and 4.
    Pythonic,
}

/// A part of an assistant's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    Content(String),
    Reasoning(String),
    CallStarted {
        index: usize,
        id: String,
        name: String,
    },
    /// A fragment of the JSON text of the arguments; a call's fragments make one JSON object.
    Arguments {
        index: usize,
        fragment: String,
    },
}

/// A call of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// The JSON text of an object.
    pub arguments: String,
}

const PYTHON_TAG: &str = "<|python_tag|>";
/// The models of TensorRT-LLM go on behind their calls with another turn, which begins so.
const NEXT_TURN: &str = "assistant\n\n";
const TOOL_CALLS: &str = "[TOOL_CALLS]";
/// Between name and arguments.
const ARGS: &str = "[ARGS]";
/// Between name and id; the id is not taken.
const CALL_ID: &str = "[CALL_ID]";
const PYTHON_START: &str = "<|python_start|>";
const PYTHON_END: &str = "<|python_end|>";
const TOOL_CALL: &str = "<tool_call>";
const TOOL_CALL_END: &str = "</tool_call>";

/// Where in the text the parser is, outside of the objects of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    /// In content that a call may follow.
    Text,
    /// Behind a tag that opens a call.
    Opened,
    /// In a list of calls; behind an object a comma or the end is next.
    List {
        is_behind_object: bool,
    },
    /// In a name, behind the tag.
    Name,
    /// In an id, behind a name.
    Id,
    /// Behind a name: its arguments are next.
    Arguments,
    AfterCall,
    /// Behind a tag that closes a call.
    Closed,
    /// In content that no call follows.
    Plain,
    /// In text that is left out.
    Cut,
}

/// Reads one call.
#[derive(Debug)]
enum Reader {
    Json(CallReader),
    Python(PythonReader),
}

impl Reader {
    fn push(&mut self, character: char) -> CallStep {
        match self {
            Reader::Json(call) => call.push(character),
            Reader::Python(python) => python.push(character),
        }
    }

    fn call(&mut self) -> &mut CallReader {
        match self {
            Reader::Json(call) => call,
            Reader::Python(python) => python.call(),
        }
    }
}

/// Reads the text of one answer as it comes.
#[derive(Debug)]
pub struct ToolParser {
    kind: ToolParserKind,
    is_vllm: bool,
    ids: IdSource,
    place: Place,
    /// What may be part of a call: a tag, blanks, or an object that is not known to be a call.
    held: String,
    /// The end of `held` that may become a tag.
    tag: String,
    /// The name in front of the arguments.
    name: String,
    call: Option<Box<Reader>>,
    is_in_list: bool,
    /// The text began with a bracket: a list of calls may follow at any place.
    began_with_bracket: bool,
    calls: usize,
    is_broken: bool,
}

impl ToolParser {
    pub fn new(kind: ToolParserKind, is_vllm: bool, ids: IdSource) -> ToolParser {
        ToolParser {
            kind,
            is_vllm,
            ids,
            place: if kind == ToolParserKind::Hermes { Place::Text } else { Place::Start },
            held: String::new(),
            tag: String::new(),
            name: String::new(),
            call: None,
            is_in_list: false,
            began_with_bracket: false,
            calls: 0,
            is_broken: false,
        }
    }

    /// Takes more text in; what is certain by it goes to `deltas`.
    pub fn push(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            if self.call.is_none() && self.held.is_empty() {
                let content = match self.place {
                    Place::Cut => return,
                    Place::Plain => rest.len(),
                    Place::Text => {
                        let opening = if self.kind == ToolParserKind::Mistral { '[' } else { '<' };
                        rest.find(opening).unwrap_or(rest.len())
                    }
                    _ => 0,
                };
                if content > 0 {
                    let (content, left) = rest.split_at(content);
                    push_content(content, deltas);
                    rest = left;
                    continue;
                }
            }
            rest = rest.get(character.len_utf8()..).unwrap_or_default();
            if self.call.is_some() {
                self.take_in_call(character, deltas);
            } else {
                self.take_between(character, deltas);
            }
        }
        self.flush(deltas);
    }

    /// No text follows. True if there was a call.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) -> bool {
        self.flush(deltas);
        self.is_broken |= self.call.take().is_some_and(|mut call| call.call().is_announced());
        let is_behind = matches!(self.place, Place::AfterCall | Place::Closed | Place::List { .. }) && self.calls > 0;
        if !(is_behind && self.held.chars().all(|character| matches!(character, ' ' | '\t' | '\n' | '\r' | ';' | ',')))
        {
            push_content(&self.held, deltas);
        }
        self.held.clear();
        self.tag.clear();
        self.place = Place::Cut;
        self.calls > 0
    }

    /// True if a call that was announced did not become whole: its arguments are a beginning of JSON. Known once
    /// [`ToolParser::finish`] was called.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn take_in_call(&mut self, character: char, deltas: &mut Vec<Delta>) {
        let Some(call) = &mut self.call else { return };
        let step = call.push(character);
        if step == CallStep::Broken {
            self.flush(deltas);
            self.is_broken |= self.call.take().is_some_and(|mut call| call.call().is_announced());
            return self.release(character, deltas);
        }
        let call = call.call();
        if !call.is_announced() {
            self.held.push(character);
            if let Some(name) = call.take_name() {
                let id = self.ids.call_id(self.kind);
                deltas.push(Delta::CallStarted { index: self.calls, id, name });
                self.calls += 1;
                self.held.clear();
            }
        }
        if step == CallStep::Done {
            self.flush(deltas);
            let was_announced = self.call.take().is_some_and(|mut call| call.call().is_announced());
            self.place = if self.is_in_list { Place::List { is_behind_object: true } } else { Place::AfterCall };
            if !was_announced {
                self.leave(deltas);
            }
        }
    }

    fn take_between(&mut self, character: char, deltas: &mut Vec<Delta>) {
        let tags = self.tags();
        if !self.tag.is_empty() || tags.iter().any(|tag| tag.starts_with(character)) {
            self.tag.push(character);
            if let Some(tag) = tags.iter().find(|tag| **tag == self.tag) {
                self.held.push(character);
                return self.take_tag(tag);
            }
            if tags.iter().any(|tag| tag.starts_with(&self.tag)) {
                self.began_with_bracket |= self.place == Place::Start && self.kind == ToolParserKind::Mistral;
                self.held.push(character);
                return;
            }
            self.tag.pop();
            if !self.tag_may_be_list() {
                return self.release(character, deltas);
            }
            self.tag.clear();
            self.is_in_list = true;
            self.place = Place::List { is_behind_object: false };
        }
        self.take_beside_tags(character, deltas);
    }

    /// True if what might have been a tag may open a list of calls.
    fn tag_may_be_list(&self) -> bool {
        let may_open = match self.place {
            Place::Start | Place::Opened => true,
            Place::Text | Place::AfterCall => self.began_with_bracket,
            _ => false,
        };
        self.kind == ToolParserKind::Mistral && self.tag == "[" && may_open
    }

    fn take_beside_tags(&mut self, character: char, deltas: &mut Vec<Delta>) {
        match (self.kind, self.place, character) {
            (ToolParserKind::Pythonic, Place::Start | Place::Opened, '[') => {
                self.held.push(character);
                self.is_in_list = true;
                self.place = Place::List { is_behind_object: false };
            }
            (ToolParserKind::Pythonic, Place::List { is_behind_object: false }, _) if is_of_name(character, true) => {
                self.begin_call(Reader::Python(PythonReader::new()), character);
            }
            (ToolParserKind::Mistral, Place::Name | Place::Arguments, '{') => {
                let name = std::mem::take(&mut self.name);
                self.begin_call(Reader::Json(CallReader::of_arguments(name, Escapes::Kept)), character);
            }
            (ToolParserKind::Mistral, Place::Opened | Place::Name, _) if is_of_tool(character) => {
                self.held.push(character);
                self.name.push(character);
                self.place = Place::Name;
            }
            (_, Place::Id, _) if character.is_ascii_alphanumeric() => self.held.push(character),
            (ToolParserKind::Llama3, Place::Start | Place::Opened | Place::AfterCall, '{') => {
                self.begin_call(Reader::Json(CallReader::new(Escapes::Ascii)), character);
            }
            (ToolParserKind::Llama3, Place::AfterCall, ';') => self.held.push(character),
            (
                ToolParserKind::Mistral | ToolParserKind::Hermes,
                Place::Opened | Place::List { is_behind_object: false },
                '{',
            ) => self.begin_call(Reader::Json(CallReader::new(Escapes::Kept)), character),
            (_, Place::List { is_behind_object: true }, ',') => {
                self.held.push(character);
                self.place = Place::List { is_behind_object: false };
            }
            (_, Place::List { is_behind_object: true }, ']') => {
                self.held.clear();
                self.is_in_list = false;
                self.place = Place::AfterCall;
            }
            (
                _,
                Place::Opened | Place::List { .. } | Place::Arguments | Place::AfterCall | Place::Closed,
                ' ' | '\t' | '\n' | '\r',
            ) => self.held.push(character),
            _ => self.release(character, deltas),
        }
    }

    /// The tags that may be next. Where one breaks off, none begins within what is held: each has its first character
    /// only once, save `NEXT_TURN`, behind whose beginning no tag follows.
    fn tags(&self) -> &'static [&'static str] {
        match (self.kind, self.place) {
            (ToolParserKind::Llama3, Place::Start) => &[PYTHON_TAG],
            (ToolParserKind::Llama3, Place::AfterCall) if self.is_vllm => &[PYTHON_TAG],
            (ToolParserKind::Llama3, Place::AfterCall) => &[PYTHON_TAG, NEXT_TURN],
            (ToolParserKind::Mistral, Place::Start | Place::Text | Place::Opened | Place::AfterCall) => &[TOOL_CALLS],
            (ToolParserKind::Mistral, Place::Name) => &[ARGS, CALL_ID],
            (ToolParserKind::Mistral, Place::Id) => &[ARGS],
            (ToolParserKind::Pythonic, Place::Start) => &[PYTHON_START],
            (ToolParserKind::Pythonic, Place::AfterCall) => &[PYTHON_END],
            (ToolParserKind::Hermes, Place::Text | Place::Closed) => &[TOOL_CALL],
            (ToolParserKind::Hermes, Place::AfterCall) => &[TOOL_CALL_END, TOOL_CALL],
            _ => &[],
        }
    }

    fn take_tag(&mut self, tag: &str) {
        self.tag.clear();
        self.place = match tag {
            NEXT_TURN => Place::Cut,
            TOOL_CALL_END | PYTHON_END => Place::Closed,
            ARGS => Place::Arguments,
            CALL_ID => Place::Id,
            _ => Place::Opened,
        };
        match self.place {
            Place::Cut | Place::Closed => self.held.clear(),
            Place::Opened => self.name.clear(),
            _ => {}
        }
    }

    fn begin_call(&mut self, reader: Reader, character: char) {
        let mut call = Box::new(reader);
        call.push(character);
        self.call = Some(call);
        self.held.push(character);
    }

    /// What is held was no call, or the call has ended, and `character` is read as content, or as the begin of a tag.
    fn release(&mut self, character: char, deltas: &mut Vec<Delta>) {
        self.leave(deltas);
        if self.tags().iter().any(|tag| tag.starts_with(character)) {
            self.held.push(character);
            self.tag.push(character);
        } else {
            push_content(character.encode_utf8(&mut [0; 4]), deltas);
        }
    }

    /// What is held is content, and so is what follows.
    fn leave(&mut self, deltas: &mut Vec<Delta>) {
        push_content(&self.held, deltas);
        self.held.clear();
        self.tag.clear();
        self.is_in_list = false;
        self.place = match self.kind {
            ToolParserKind::Llama3 | ToolParserKind::Pythonic => Place::Plain,
            ToolParserKind::Mistral | ToolParserKind::Hermes => Place::Text,
        };
    }

    /// Gives out the arguments that have been read.
    fn flush(&mut self, deltas: &mut Vec<Delta>) {
        let Some(call) = self.call.as_mut().map(|call| call.call()).filter(|call| call.is_announced()) else { return };
        let fragment = call.take_fragment();
        if !fragment.is_empty() {
            deltas.push(Delta::Arguments { index: self.calls.saturating_sub(1), fragment });
        }
    }
}

/// True if the name of a tool may have this character.
fn is_of_tool(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.')
}

fn push_content(text: &str, deltas: &mut Vec<Delta>) {
    match deltas.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Content(content)) => content.push_str(text),
        _ => deltas.push(Delta::Content(text.into())),
    }
}

/// Reads a whole answer: its calls, and the text beside them. Where a call is not whole, the text is no calls but
/// content, all of it.
pub fn whole(kind: ToolParserKind, is_vllm: bool, ids: IdSource, text: &str) -> (Option<Vec<Call>>, String) {
    let mut parser = ToolParser::new(kind, is_vllm, ids);
    let mut deltas = Vec::new();
    parser.push(text, &mut deltas);
    let has_calls = parser.finish(&mut deltas);
    if parser.is_broken() || !has_calls {
        return (None, text.into());
    }
    let (mut calls, mut content) = (Vec::<Call>::new(), String::new());
    for delta in deltas {
        match delta {
            Delta::Content(text) => content.push_str(&text),
            Delta::CallStarted { id, name, .. } => calls.push(Call { id, name, arguments: String::new() }),
            Delta::Arguments { index, fragment } => {
                if let Some(call) = calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
            Delta::Reasoning(_) => {}
        }
    }
    (Some(calls), content)
}
