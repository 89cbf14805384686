//! The schemas of rerankings and scores, in the forms that vLLM takes (contract/openai.md section 5). Unknown members
//! are passed over, since the forms of Cohere and Jina have more than these.

use super::errors::{Errors, Step};
use super::fields::{self, Fields};
use super::scalars::{COUNT, boolean, integer, text};
use crate::json::Json;
use crate::request::{Rerank, Score};

pub fn rerank(body: &Json, errors: &mut Errors) -> Option<Rerank> {
    let fields = &mut Fields::of(body, errors)?;
    let model = fields.required("model", errors, text);
    let query = fields.required("query", errors, text);
    let documents = fields.required("documents", errors, |value, errors| {
        let documents = fields::list(value, errors, document)?;
        if documents.is_empty() {
            fields::too_short("List", value, errors);
        }
        Some(documents)
    });
    let top_n = fields.optional("top_n", errors, |value, errors| integer(value, COUNT, errors));
    let return_documents = fields.optional("return_documents", errors, boolean).unwrap_or(true);
    Some(Rerank {
        model: model?,
        query: query?,
        documents: documents?,
        // For vLLM 0 is all of them.
        top_n: top_n.filter(|count| *count > 0),
        return_documents,
    })
}

/// A string, or an object with it.
fn document(value: &Json, errors: &mut Errors) -> Option<String> {
    match value {
        Json::Object(_) => Fields::of(value, errors)?.required("text", errors, text),
        value => text(value, errors),
    }
}

pub fn score(body: &Json, errors: &mut Errors) -> Option<Score> {
    let fields = &mut Fields::of(body, errors)?;
    let model = fields.required("model", errors, text);
    let left = side(["text_1", "queries"], fields, errors);
    let right = side(["text_2", "documents"], fields, errors);
    let (left, right) = (left?, right?);
    if left.len() != 1 && left.len() != right.len() {
        let msg = "Value error, Input lengths must be either 1:1, 1:N or N:N";
        errors.add("value_error", msg, body);
        return None;
    }
    Some(Score { model: model?, left, right })
}

/// Texts by one of two names; who gives neither is told of the first.
fn side(names: [&'static str; 2], fields: &mut Fields<'_>, errors: &mut Errors) -> Option<Vec<String>> {
    let [first, second] = names;
    let name = if fields.get(first).is_none() && fields.get(second).is_some() { second } else { first };
    fields.required(name, errors, |value, errors| {
        let texts = match value {
            Json::List(_) => errors.within(Step::Name("list[str]"), |errors| fields::list(value, errors, document))?,
            value => vec![document(value, errors)?],
        };
        if texts.is_empty() {
            fields::too_short("List", value, errors);
            return None;
        }
        Some(texts)
    })
}
