//! The files of a tokenizer that templates are read from (contract/openai.md section 3.5). Any of them may be absent.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use minijinja::value::Value;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{DEFAULT, LoadError};

const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// The largest templates that models have are 30 kB.
const TEMPLATE_BYTES_MAX: u64 = 4 << 20;
/// The names of templates that one folder may have.
const TEMPLATES_MAX: usize = 64;

/// What a folder has.
pub(super) struct Found {
    /// With their names.
    pub(super) templates: Vec<(String, String)>,
    /// A mapping.
    pub(super) special_tokens: Value,
}

#[derive(Deserialize, Default)]
struct Config {
    chat_template: Option<ConfiguredTemplates>,
    #[serde(flatten)]
    tokens: SpecialTokens,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ConfiguredTemplates {
    One(String),
    Named(Vec<NamedTemplate>),
    ByName(BTreeMap<String, String>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize, Default)]
struct SpecialTokens {
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    unk_token: Option<Token>,
    sep_token: Option<Token>,
    pad_token: Option<Token>,
    cls_token: Option<Token>,
    mask_token: Option<Token>,
    additional_special_tokens: Option<Vec<Token>>,
    /// Tokens that only this model has, by the names of their variables; later versions write a list.
    extra_special_tokens: Option<ExtraTokens>,
}

/// A token as its text, or with the rules by which it is found in text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ExtraTokens {
    Named(BTreeMap<String, Option<Token>>),
    List(Vec<Token>),
}

pub(super) fn read(folder: &Path) -> Result<Found, LoadError> {
    let config: Config = parse(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    // Older tokenizers have their tokens in a file of their own.
    let map: SpecialTokens = parse(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let special_tokens = Value::from_pairs(variables(config.tokens, map));
    Ok(Found { templates: templates(folder, config.chat_template)?, special_tokens })
}

fn templates(folder: &Path, configured: Option<ConfiguredTemplates>) -> Result<Vec<(String, String)>, LoadError> {
    let mut templates = BTreeMap::new();
    match configured {
        None => {}
        Some(ConfiguredTemplates::One(template)) => drop(templates.insert(DEFAULT.to_owned(), template)),
        Some(ConfiguredTemplates::Named(list)) => {
            templates.extend(list.into_iter().map(|named| (named.name, named.template)));
        }
        Some(ConfiguredTemplates::ByName(named)) => templates.extend(named),
    }
    // Files take the place of all that is configured.
    let mut files = BTreeMap::new();
    if let Some(text) = text(&folder.join("chat_template.jinja"), TEMPLATE_BYTES_MAX)? {
        files.insert(DEFAULT.to_owned(), text);
    }
    for entry in fs::read_dir(folder.join("additional_chat_templates")).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "jinja") && files.len() < TEMPLATES_MAX {
            files.extend(text(&path, TEMPLATE_BYTES_MAX)?.map(|text| (name.to_owned(), text)));
        }
    }
    let chosen = if files.is_empty() { templates } else { files };
    Ok(chosen.into_iter().take(TEMPLATES_MAX).collect())
}

fn variables(tokens: SpecialTokens, map: SpecialTokens) -> Vec<(String, Value)> {
    let single = [
        ("bos_token", tokens.bos_token.or(map.bos_token)),
        ("eos_token", tokens.eos_token.or(map.eos_token)),
        ("unk_token", tokens.unk_token.or(map.unk_token)),
        ("sep_token", tokens.sep_token.or(map.sep_token)),
        ("pad_token", tokens.pad_token.or(map.pad_token)),
        ("cls_token", tokens.cls_token.or(map.cls_token)),
        ("mask_token", tokens.mask_token.or(map.mask_token)),
    ];
    let mut variables: Vec<_> =
        single.into_iter().filter_map(|(name, token)| Some((name.to_owned(), value(token?)))).collect();
    if let Some(tokens) = tokens.additional_special_tokens.or(map.additional_special_tokens) {
        variables.push(("additional_special_tokens".to_owned(), tokens.into_iter().map(value).collect()));
    }
    match tokens.extra_special_tokens.or(map.extra_special_tokens) {
        None => {}
        Some(ExtraTokens::Named(tokens)) => {
            variables.extend(tokens.into_iter().filter_map(|(name, token)| Some((name, value(token?)))));
        }
        Some(ExtraTokens::List(tokens)) => {
            variables.push(("extra_special_tokens".to_owned(), tokens.into_iter().map(value).collect()));
        }
    }
    variables
}

fn value(token: Token) -> Value {
    match token {
        Token::Text(text) | Token::Added { content: text } => Value::from(text),
    }
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    let Some(text) = text(path, CONFIG_BYTES_MAX)? else { return Ok(None) };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| LoadError(format!("{} cannot be understood: {error}", path.display())))
}

/// None: there is no such file.
fn text(path: &Path, bytes_max: u64) -> Result<Option<String>, LoadError> {
    let failed = |error: std::io::Error| LoadError(format!("{} cannot be read: {error}", path.display()));
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut text = String::new();
    file.take(bytes_max.saturating_add(1)).read_to_string(&mut text).map_err(failed)?;
    match u64::try_from(text.len()) {
        Ok(length) if length <= bytes_max => Ok(Some(text)),
        _ => Err(LoadError(format!("{} has more than {bytes_max} bytes", path.display()))),
    }
}
