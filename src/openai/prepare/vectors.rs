//! Embeddings, and the scores of documents: requests without a template.

use super::{Context, Failure, Target};
use crate::error::Refusal;
use crate::form::Form;
use crate::json::Json;
use crate::plan::{Input, Plan, Prepared};
use crate::request::{EmbeddingInput, Embeddings, Operation, Rerank, Score};

/// The most texts of one request, as OpenAI has it for embeddings: each is a request of its own for the model.
const TEXTS_MAX: usize = 2048;

pub(super) fn prepare_embeddings(context: &Context<'_>, embeddings: &Embeddings) -> Result<Prepared, Failure> {
    // Adapters have no part in it.
    let target = context.target(&embeddings.model)?;
    let facts = &target.model.facts;
    if facts.backend().is_empty() {
        return Err(Refusal::server("Unknown backend").into());
    }
    let is_native = facts.embedding_input("").is_some() && (context.is_openai() || facts.is_stated_embedding());
    let mut plan = context.plan(Operation::Embeddings, &embeddings.model, facts);
    plan.base64 = embeddings.base64;
    let requests = if is_native {
        let texts = native_texts(&target, embeddings)?;
        plan.prompt_tokens = context.count(&target.model, &texts, true)?;
        texts.iter().filter_map(|text| facts.embedding_input(text)).collect::<Result<_, _>>()?
    } else if facts.form(context.settings.form) == Form::Vllm {
        plan.output_name = None;
        let inputs = vllm_inputs(&embeddings.input)?;
        let requests = inputs.into_iter().map(|input| facts.embedding_request(input, embeddings.dimensions));
        requests.collect::<Result<_, _>>()?
    } else {
        let text = "TRT-LLM backend and Python backend do not support embedding requests";
        return Err(Refusal::client(text).into());
    };
    Ok(prepared(&target, requests, plan))
}

/// Texts for a model that takes a text each.
fn native_texts<'a>(target: &Target, embeddings: &'a Embeddings) -> Result<Vec<&'a str>, Refusal> {
    let model = &target.model.name;
    let length = target.model.facts.embedding_length();
    if let Some(dimensions) = embeddings.dimensions.filter(|&dimensions| length != Some(dimensions)) {
        let has = length.map_or_else(String::new, |length| format!(": its embeddings have {length} elements"));
        return Err(Refusal::client(format!(
            "`dimensions` is {dimensions}, but model '{model}' cannot shorten its embeddings{has}"
        )));
    }
    let texts: Vec<&str> = match &embeddings.input {
        EmbeddingInput::Text(text) => vec![text],
        EmbeddingInput::Texts(texts) => texts.iter().map(String::as_str).collect(),
        EmbeddingInput::Tokens(_) | EmbeddingInput::TokenLists(_) => {
            let text = format!("model '{model}' embeds texts, not tokens: send `input` as a string or strings");
            return Err(Refusal::client(text));
        }
    };
    check_count("input", texts.len())?;
    Ok(texts)
}

fn vllm_inputs(input: &EmbeddingInput) -> Result<Vec<Json>, Refusal> {
    let tokens = |tokens: &[i64]| Json::List(tokens.iter().map(|&token| Json::Int(i128::from(token))).collect());
    let inputs: Vec<Json> = match input {
        EmbeddingInput::Text(text) => vec![Json::Text(text.clone())],
        EmbeddingInput::Tokens(list) => vec![tokens(list)],
        EmbeddingInput::Texts(texts) => texts.iter().cloned().map(Json::Text).collect(),
        EmbeddingInput::TokenLists(lists) => lists.iter().map(|list| tokens(list)).collect(),
    };
    check_count("input", inputs.len())?;
    Ok(inputs)
}

pub(super) fn prepare_rerank(context: &Context<'_>, rerank: &Rerank) -> Result<Prepared, Failure> {
    let target = context.target(&rerank.model)?;
    check_ranks(&target)?;
    check_count("documents", rerank.documents.len())?;
    let pairs: Vec<(&str, &str)> =
        rerank.documents.iter().map(|document| (rerank.query.as_str(), document.as_str())).collect();
    score_pairs(context, &target, &pairs, context.plan(Operation::Rerank, &rerank.model, &target.model.facts))
}

pub(super) fn prepare_score(context: &Context<'_>, score: &Score) -> Result<Prepared, Failure> {
    let target = context.target(&score.model)?;
    check_ranks(&target)?;
    check_count("text_2", score.right.len())?;
    let (lefts, rights) = (score.left.len(), score.right.len());
    let pairs: Vec<(&str, &str)> = match &score.left[..] {
        [left] => score.right.iter().map(|right| (left.as_str(), right.as_str())).collect(),
        left if lefts == rights => {
            left.iter().zip(&score.right).map(|(left, right)| (left.as_str(), right.as_str())).collect()
        }
        _ => {
            let text = format!("`text_1` has {lefts} texts and `text_2` has {rights}: send one or as many as `text_2`");
            return Err(Refusal::client(text).into());
        }
    };
    score_pairs(context, &target, &pairs, context.plan(Operation::Score, &score.model, &target.model.facts))
}

/// Bytes of all pairs of a query and a document.
const PAIRS_BYTES_MAX: usize = 64 << 20;

fn score_pairs(
    context: &Context<'_>,
    target: &Target,
    pairs: &[(&str, &str)],
    mut plan: Plan,
) -> Result<Prepared, Failure> {
    // The text of the query is in each of them.
    let bytes = pairs
        .iter()
        .fold(0usize, |bytes, (query, document)| bytes.saturating_add(query.len()).saturating_add(document.len()));
    if bytes > PAIRS_BYTES_MAX {
        let text = format!(
            "the pairs of texts have {bytes} bytes, more than {PAIRS_BYTES_MAX}: send fewer documents at a time"
        );
        return Err(Refusal::client(text).into());
    }
    let facts = &target.model.facts;
    let requests = pairs.iter().filter_map(|(query, document)| facts.rerank_input(query, document));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let texts: Vec<&str> = pairs.iter().flat_map(|&(query, document)| [query, document]).collect();
    plan.prompt_tokens = context.count(&target.model, &texts, true)?;
    Ok(prepared(target, requests, plan))
}

fn check_ranks(target: &Target) -> Result<(), Refusal> {
    if target.model.facts.is_rerank() {
        return Ok(());
    }
    Err(Refusal::client(format!(
        "Model '{}' does not score documents: it needs the inputs 'query' and 'document' and an output of FP32 with \
         one element, or the parameter 'openai_form' in its configuration",
        target.model.name
    )))
}

fn check_count(member: &str, count: usize) -> Result<(), Refusal> {
    match count {
        0 => Err(Refusal::client(format!("`{member}` must have at least one text"))),
        1..=TEXTS_MAX => Ok(()),
        _ => Err(Refusal::client(format!(
            "`{member}` has {count} texts, but a request may have {TEXTS_MAX}; send several requests"
        ))),
    }
}

fn prepared(target: &Target, requests: Vec<Vec<Input>>, plan: Plan) -> Prepared {
    Prepared { model: target.model.name.clone(), requests, lora_sent: None, priority: None, plan }
}
