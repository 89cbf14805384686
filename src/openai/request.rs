//! Requests whose bodies fit the schema (contract/openai.md section 1.3), as data.

use crate::json::Json;

/// The operation that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Chat,
    Completions,
    Embeddings,
    Responses,
    Rerank,
    Score,
    Tokenize,
    Detokenize,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Chat(Box<Chat>),
    Completions(Box<Completions>),
    Embeddings(Box<Embeddings>),
    /// The Responses API: what of it maps onto chat.
    Responses(Box<Responses>),
    Rerank(Box<Rerank>),
    Score(Box<Score>),
    Tokenize(Box<Tokenize>),
    Detokenize(Box<Detokenize>),
}

/// The members that chat and completions share. `None` is "not given, or null" unless noted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sampling {
    pub max_tokens: Option<i64>,
    /// Chat only; wins over `max_tokens`.
    pub max_completion_tokens: Option<i64>,
    pub min_tokens: Option<i64>,
    pub ignore_eos: bool,
    /// With its default where it is not given; `None` where it is null. As are those below it.
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub seed: Option<i64>,
    /// A single string is a list of one. `None`: not given, or null.
    pub stop: Option<Vec<String>>,
    pub stream: bool,
    pub stream_options: Option<StreamOptions>,
    pub n: i64,
    /// Given and not null.
    pub has_logit_bias: bool,
    pub user: Option<String>,
    /// Extensions that engines know and OpenAI does not (contract/openai.md section 5), where they are let through:
    /// `top_k`, `min_p`, `repetition_penalty`, ... in the order of the request, for `sampling_parameters`.
    pub extra: Vec<(String, Json)>,
    /// The priority of the request, an extension of vLLM.
    pub priority: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamOptions {
    pub include_usage: bool,
    /// Extension: usage in every chunk.
    pub continuous_usage_stats: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    pub model: String,
    pub messages: Vec<Message>,
    pub sampling: Sampling,
    pub logprobs: bool,
    pub top_logprobs: Option<i64>,
    pub tools: Option<Vec<Tool>>,
    pub tool_choice: Option<ToolChoice>,
    pub response_format: Option<ResponseFormat>,
    /// Extensions for templates: `chat_template_kwargs`.
    pub template_arguments: Vec<(String, Json)>,
    pub reasoning_effort: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    System {
        content: String,
    },
    /// Unless `--openai-compat=triton`.
    Developer {
        content: String,
    },
    User {
        content: Content,
        name: Option<String>,
    },
    Assistant {
        content: Option<String>,
        tool_calls: Vec<ToolCall>,
    },
    Tool {
        content: String,
        tool_call_id: String,
    },
    Function {
        content: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(String),
    ImageUrl { url: String },
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub id: String,
    pub kind: String,
    pub name: String,
    /// Text that should be JSON.
    pub arguments: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub kind: String,
    pub name: String,
    pub description: Option<String>,
    pub parameters: Option<Json>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum ResponseFormat {
    Text,
    JsonObject,
    /// Not in `--openai-compat=triton`: the schema goes to the engine.
    JsonSchema {
        name: String,
        schema: Option<Json>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Completions {
    pub model: String,
    pub prompt: Prompt,
    pub sampling: Sampling,
    pub logprobs: Option<i64>,
    /// `None`: not given or null.
    pub echo: Option<bool>,
    pub has_suffix: bool,
    /// `Some(None)`: null.
    pub best_of: Option<Option<i64>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    Text(String),
    /// Of any kind; `true`: it has no elements.
    List {
        is_empty: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    pub model: String,
    pub input: EmbeddingInput,
    pub dimensions: Option<i64>,
    pub base64: bool,
    pub user: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum EmbeddingInput {
    Text(String),
    Tokens(Vec<i64>),
    /// Not in `--openai-compat=triton`.
    Texts(Vec<String>),
    TokenLists(Vec<Vec<i64>>),
}

/// The Responses API as far as it is a chat.
#[derive(Debug, Clone, PartialEq)]
pub struct Responses {
    pub chat: Chat,
    /// Members that the answer repeats, in the order of the answer.
    pub instructions: Option<String>,
    pub metadata: Option<Json>,
    pub max_output_tokens: Option<i64>,
    pub tools: Json,
    pub tool_choice: Json,
    pub text: Option<Json>,
    pub parallel_tool_calls: bool,
    pub store: bool,
    pub previous_response_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rerank {
    pub model: String,
    pub query: String,
    pub documents: Vec<String>,
    pub top_n: Option<i64>,
    pub return_documents: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    pub model: String,
    /// As many as `right`, or one for all of them.
    pub left: Vec<String>,
    pub right: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tokenize {
    pub model: Option<String>,
    pub source: TokenizeSource,
    pub add_special_tokens: Option<bool>,
    pub return_token_strs: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeSource {
    Prompt(String),
    Chat { messages: Vec<Message>, tools: Option<Vec<Tool>>, add_generation_prompt: bool },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Detokenize {
    pub model: Option<String>,
    pub tokens: Vec<i64>,
}
