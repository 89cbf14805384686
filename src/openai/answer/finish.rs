//! Why a model's text ended (contract/openai.md section 1.5).
//!
//! Triton's front end says `stop` of every text without calls of tools, also of one that was cut. OpenAI's clients
//! expect `length` of the latter: the model's word counts, and without it the number of tokens.

use crate::error::Compat;
use crate::plan::Plan;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

impl Finish {
    /// As an output `finish_reason` says it. `None`: it says that there is more to come.
    pub fn reported(text: &[u8]) -> Option<Finish> {
        match text {
            b"" | b"None" | b"null" => None,
            b"length" => Some(Finish::Length),
            b"content_filter" => Some(Finish::ContentFilter),
            _ => Some(Finish::Stop),
        }
    }

    pub fn of(plan: &Plan, reported: Option<Finish>, completion_tokens: Option<u64>, has_calls: bool) -> Finish {
        if plan.compat == Compat::OpenAi {
            let is_full = || plan.max_tokens.zip(completion_tokens).is_some_and(|(most, tokens)| tokens >= most);
            match reported {
                Some(cut @ (Finish::Length | Finish::ContentFilter)) => return cut,
                None if is_full() => return Finish::Length,
                _ => {}
            }
        }
        if has_calls { Finish::ToolCalls } else { Finish::Stop }
    }

    /// The text, as a value of JSON.
    pub fn json(self) -> &'static str {
        match self {
            Finish::Stop => "\"stop\"",
            Finish::Length => "\"length\"",
            Finish::ToolCalls => "\"tool_calls\"",
            Finish::ContentFilter => "\"content_filter\"",
        }
    }
}
