//! Options of OpenAI's interface (contract/openai.md section 2).

use std::path::PathBuf;

use super::Listen;
pub use crate::api::{RateLimit, RestrictedGroups};
pub use nereid_openai::error::Compat;
pub use nereid_openai::form::Form;
pub use nereid_openai::reasoning::ReasoningParserKind;
pub use nereid_openai::tools::ToolParserKind;

/// The port of the interface.
pub const PORT: i32 = 9000;

/// Where the interface is served, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenAiOptions {
    pub listen: Listen,
    /// Models may switch it on, since `--allow-openai` is not given.
    pub is_on_by_models: bool,
    /// `--openai-on-http`: the HTTP port serves the routes as well.
    pub on_http_port: bool,
    pub compat: Compat,
    /// `--backend`.
    pub form: Option<Form>,
    pub language: LanguageOptions,
    pub tools: ToolOptions,
    pub access: OpenAiAccess,
    /// Empty: adapters cannot be named.
    pub lora_separator: String,
    pub default_max_tokens: i64,
    /// Prompts are counted where the model reports no counts.
    pub counts_tokens: bool,
    pub threads: u32,
    /// How long a stream may be silent before a comment is sent; 0: for ever.
    pub keep_alive_secs: u64,
}

/// Tokenizers and templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanguageOptions {
    /// A folder.
    pub tokenizer: Option<PathBuf>,
    /// A file that replaces the template of the tokenizer.
    pub chat_template: Option<PathBuf>,
    /// Bytes of the prefixes that each tokenizer keeps.
    pub cache_bytes_max: usize,
}

/// What is read out of the text of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOptions {
    pub parser: Option<ToolParserKind>,
    pub parse_bytes_max: usize,
    pub reasoning_parser: Option<ReasoningParserKind>,
}

/// Who may use the interface.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpenAiAccess {
    pub restricted: Vec<RestrictedGroups>,
    /// `--openai-api-key`.
    pub keys: Vec<Secret>,
    /// `--openai-api-key-file`.
    pub key_file: Option<PathBuf>,
    pub rate_limit: Option<RateLimit>,
}

/// Is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl OpenAiOptions {
    /// The interface is served somewhere.
    pub fn is_on(&self) -> bool {
        self.listen.allowed || self.on_http_port
    }
}

impl Default for OpenAiOptions {
    fn default() -> OpenAiOptions {
        OpenAiOptions {
            listen: Listen { allowed: false, ..Listen::at(PORT) },
            is_on_by_models: true,
            on_http_port: false,
            compat: Compat::OpenAi,
            form: None,
            language: LanguageOptions { tokenizer: None, chat_template: None, cache_bytes_max: 64 << 20 },
            tools: ToolOptions { parser: None, parse_bytes_max: 128 << 10, reasoning_parser: None },
            access: OpenAiAccess::default(),
            lora_separator: String::new(),
            default_max_tokens: 16,
            counts_tokens: false,
            threads: 2,
            keep_alive_secs: 15,
        }
    }
}
