//! Tokens of texts and texts of tokens, in the form of vLLM's server; no model is asked.

use serde_json::to_string;

use super::render::Dialogue;
use super::{Context, Failure, Language, Model};
use crate::error::Refusal;
use crate::request::{Detokenize, Tokenize, TokenizeSource};
use crate::tokenizer::{Tokenizer, TokenizerError};

pub(super) fn tokenize(context: &Context<'_>, tokenize: &Tokenize) -> Result<String, Failure> {
    let model = model(context, tokenize.model.as_deref())?;
    let (language, tokenizer) = language(context, model.as_ref())?;
    let (text, add_special_tokens) = match &tokenize.source {
        TokenizeSource::Prompt(text) => (text.clone(), tokenize.add_special_tokens.unwrap_or(true)),
        TokenizeSource::Chat { messages, tools, add_generation_prompt } => {
            let dialogue = Dialogue {
                messages,
                tools: tools.as_deref(),
                add_generation_prompt: *add_generation_prompt,
                arguments: &[],
            };
            // The template has written the special tokens.
            (context.render(language, &dialogue)?, tokenize.add_special_tokens.unwrap_or(false))
        }
    };
    context.admit(&[&text])?;
    let tokens = tokenizer.encode(&text, add_special_tokens).map_err(|error| refused(&error))?;
    let texts: Option<Vec<String>> = tokenize
        .return_token_strs
        .then(|| tokens.iter().map(|&token| tokenizer.token_text(token).unwrap_or_default()).collect());
    let json = |result: serde_json::Result<String>| result.map_err(|error| Refusal::server(error.to_string()));
    let (count, longest) = (tokens.len(), json(to_string(&tokenizer.model_max_length()))?);
    let (tokens, texts) = (json(to_string(&tokens))?, json(to_string(&texts))?);
    Ok(format!("{{\"count\":{count},\"max_model_len\":{longest},\"tokens\":{tokens},\"token_strs\":{texts}}}"))
}

pub(super) fn detokenize(context: &Context<'_>, detokenize: &Detokenize) -> Result<String, Failure> {
    let model = model(context, detokenize.model.as_deref())?;
    let (_, tokenizer) = language(context, model.as_ref())?;
    if context.inline.is_some_and(|bounds| detokenize.tokens.len() > bounds.bytes_max) {
        return Err(Failure::Deferred);
    }
    let tokens = detokenize.tokens.iter().map(|&token| {
        u32::try_from(token).map_err(|_| Refusal::client(format!("`tokens` has {token}, which is no token's number")))
    });
    let tokens = tokens.collect::<Result<Vec<u32>, Refusal>>()?;
    let text = tokenizer.decode(&tokens, false).map_err(|error| refused(&error))?;
    let text = to_string(&text).map_err(|error| Refusal::server(error.to_string()))?;
    Ok(format!("{{\"prompt\":{text}}}"))
}

fn model(context: &Context<'_>, name: Option<&str>) -> Result<Option<Model>, Refusal> {
    name.map(|name| Ok(context.target(name)?.model)).transpose()
}

fn language<'a>(context: &'a Context<'_>, model: Option<&'a Model>) -> Result<(&'a Language, &'a Tokenizer), Refusal> {
    let language = match model {
        Some(model) => context.language(model),
        None => context.settings.language.as_deref(),
    };
    let found = language.and_then(|language| Some((language, language.tokenizer.as_ref()?)));
    found.ok_or_else(|| Refusal::server("Unknown tokenizer"))
}

fn refused(error: &TokenizerError) -> Refusal {
    Refusal::client(error.to_string())
}
