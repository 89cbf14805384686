//! The paths of OpenAI's interface (contract/openai.md section 1).

use crate::api::audit::Audited;
use crate::api::routes::Category;
use nereid_openai::error::Compat;
use nereid_openai::request::Operation;
use nereid_protocol::http1::{Head, Method};
use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Operation(Operation),
    Models,
    Model(String),
    Load(String),
    Unload(String),
    Ready,
    Live,
    Version,
    Metrics,
    Description,
    Docs,
}

impl Route {
    /// The group of `--http-restricted-api` that holds for the route where the HTTP port serves it.
    pub fn category(&self) -> Category {
        match self {
            Route::Operation(_) => Category::Inference,
            Route::Models | Route::Model(_) | Route::Load(_) | Route::Unload(_) => Category::ModelRepository,
            Route::Ready | Route::Live => Category::Health,
            Route::Metrics => Category::Statistics,
            Route::Version | Route::Description | Route::Docs => Category::Metadata,
        }
    }

    /// The one method that the route answers to.
    pub fn method(&self) -> &'static str {
        match self {
            Route::Operation(_) | Route::Load(_) | Route::Unload(_) => "POST",
            _ => "GET",
        }
    }
}

/// The change that a request asks for, if it is one.
pub fn audited(head: &Head) -> Option<Audited> {
    let (action, subject) = match model_route(head.path())? {
        Route::Load(model) => ("load", model),
        Route::Unload(model) => ("unload", model),
        _ => return None,
    };
    (head.method() == Method::Post).then_some(Audited { category: Category::ModelRepository, action, subject })
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Route(Route),
    /// The path without its last slash is a route.
    Redirect,
    Nothing,
}

/// The meaning of a path, which is compared as it was sent; only the name of a model is decoded.
pub fn find(path: &str, compat: Compat) -> Found {
    if let Some(route) = route(path, compat) {
        return Found::Route(route);
    }
    match path.strip_suffix('/').and_then(|path| route(path, compat)) {
        Some(_) => Found::Redirect,
        None => Found::Nothing,
    }
}

fn route(path: &str, compat: Compat) -> Option<Route> {
    let found = match path {
        "/v1/chat/completions" => Route::Operation(Operation::Chat),
        "/v1/completions" => Route::Operation(Operation::Completions),
        "/v1/embeddings" => Route::Operation(Operation::Embeddings),
        "/v1/models" => Route::Models,
        "/health/ready" => Route::Ready,
        "/metrics" => Route::Metrics,
        "/openapi.json" => Route::Description,
        "/docs" | "/redoc" | "/docs/oauth2-redirect" => Route::Docs,
        _ => return model_route(path).or_else(|| own_route(path).filter(|_| compat == Compat::OpenAi)),
    };
    Some(found)
}

/// The routes that other servers have and Triton's front end has not.
fn own_route(path: &str) -> Option<Route> {
    Some(match path {
        "/v1/responses" => Route::Operation(Operation::Responses),
        "/rerank" | "/v1/rerank" | "/v2/rerank" => Route::Operation(Operation::Rerank),
        "/score" | "/v1/score" => Route::Operation(Operation::Score),
        "/tokenize" => Route::Operation(Operation::Tokenize),
        "/detokenize" => Route::Operation(Operation::Detokenize),
        "/health" | "/ping" => Route::Ready,
        "/health/live" | "/live" => Route::Live,
        "/version" => Route::Version,
        _ => return None,
    })
}

fn model_route(path: &str) -> Option<Route> {
    let rest = path.strip_prefix("/v1/models/")?;
    let (name, action) = match rest.split_once('/') {
        None => (rest, None),
        Some((name, action)) => (name, Some(action)),
    };
    let name = percent_decode_str(name).decode_utf8_lossy().into_owned();
    if name.is_empty() || name.contains('/') {
        return None;
    }
    match action {
        None => Some(Route::Model(name)),
        Some("load") => Some(Route::Load(name)),
        Some("unload") => Some(Route::Unload(name)),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_what_they_mean() {
        let model = |name: &str| Found::Route(Route::Model(name.to_owned()));
        let table = [
            ("/v1/chat/completions", Found::Route(Route::Operation(Operation::Chat))),
            ("/v1/chat/completions/", Found::Redirect),
            ("/v1/models/", Found::Redirect),
            ("/v1/models", Found::Route(Route::Models)),
            ("/v1/models/a", model("a")),
            ("/v1/models/a/", Found::Redirect),
            ("/v1/models/..", model("..")),
            ("/v1/models/%20%20", model("  ")),
            ("/v1/models/a%2Fb", Found::Nothing),
            ("/v1/models/a/load", Found::Route(Route::Load("a".to_owned()))),
            ("/v1/models/../load", Found::Route(Route::Load("..".to_owned()))),
            ("/v1/models/a/unload", Found::Route(Route::Unload("a".to_owned()))),
            ("/v1/models/a/other", Found::Nothing),
            ("/v1/models//load", Found::Nothing),
            ("/V1/models", Found::Nothing),
            ("/", Found::Nothing),
            ("", Found::Nothing),
        ];
        for (path, expected) in table {
            assert_eq!(find(path, Compat::Triton), expected, "{path}");
            assert_eq!(find(path, Compat::OpenAi), expected, "{path}");
        }
        for path in
            ["/v1/responses", "/rerank", "/v1/score", "/tokenize", "/detokenize", "/health", "/live", "/version"]
        {
            assert!(matches!(find(path, Compat::OpenAi), Found::Route(_)), "{path}");
            assert_eq!(find(path, Compat::Triton), Found::Nothing, "{path}");
        }
    }
}
