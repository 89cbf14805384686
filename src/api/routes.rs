//! The paths of the HTTP port, in Triton's order of dispatch (http.md section 1).
//!
//! A path is matched whole and byte by byte: case counts, nothing is percent-decoded, and the query is already gone.

use smallvec::SmallVec;

/// A model, and a version where the path names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    pub model: &'a [u8],
    pub version: Option<&'a [u8]>,
}

/// What a path asks for. The method is checked afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route<'a> {
    ServerMetadata,
    Live,
    Ready,
    ModelMetadata(Target<'a>),
    ModelReady(Target<'a>),
    Infer(Target<'a>),
    ModelConfig(Target<'a>),
    ModelStatistics(Target<'a>),
    AllStatistics,
    RepositoryIndex,
    /// Repository, perhaps empty, and model.
    Load(&'a [u8], &'a [u8]),
    Unload(&'a [u8], &'a [u8]),
    Logging,
    /// A route of Triton's that this build does not serve: the feature's name, and the methods it answers to.
    Unbuilt(&'static str, &'static [Method]),
}

/// The methods that routes tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Other,
}

impl Route<'_> {
    /// The methods that the route answers to; any other is 405.
    pub fn methods(&self) -> &'static [Method] {
        match self {
            Route::ServerMetadata
            | Route::Live
            | Route::Ready
            | Route::ModelMetadata(_)
            | Route::ModelReady(_)
            | Route::ModelConfig(_)
            | Route::ModelStatistics(_)
            | Route::AllStatistics => &[Method::Get],
            Route::Infer(_) | Route::RepositoryIndex | Route::Load(..) | Route::Unload(..) => &[Method::Post],
            Route::Logging => GET_POST,
            Route::Unbuilt(_, methods) => methods,
        }
    }
}

/// Segments of the longest route, and one more to see that a path is longer.
const SEGMENTS_MAX: usize = 8;
const GET_POST: &[Method] = &[Method::Get, Method::Post];
const POST: &[Method] = &[Method::Post];

/// The route of `path`, or `None`: 404.
pub fn route(path: &[u8]) -> Option<Route<'_>> {
    let rest = path.strip_prefix(b"/v2")?;
    if rest.is_empty() {
        return Some(Route::ServerMetadata);
    }
    let segments: SmallVec<[&[u8]; SEGMENTS_MAX]> =
        rest.strip_prefix(b"/")?.split(|&byte| byte == b'/').take(SEGMENTS_MAX).collect();
    let route = match &segments[..] {
        [b"models", b"stats"] => Route::AllStatistics,
        [b"logging"] => Route::Logging,
        [b"models", model, b"versions", version, action @ ..] if is_version(version) => {
            return model_route(model, Some(version), action);
        }
        [b"models", model, action @ ..] => return model_route(model, None, action),
        [b"health", b"live"] => Route::Live,
        [b"health", b"ready"] => Route::Ready,
        [b"systemsharedmemory", action @ ..] => return shared_memory("system shared memory", action),
        [b"cudasharedmemory", action @ ..] => return shared_memory("CUDA shared memory", action),
        [b"repository", b"index"] => Route::RepositoryIndex,
        [b"repository", repository, b"index"] if !repository.is_empty() => Route::RepositoryIndex,
        [b"repository", b"models", model, action] => return repository_route(b"", model, action),
        [b"repository", repository, b"models", model, action] if !repository.is_empty() => {
            return repository_route(repository, model, action);
        }
        [b"trace", b"setting"] => Route::Unbuilt("trace setting", GET_POST),
        _ => return None,
    };
    Some(route)
}

fn is_version(segment: &[u8]) -> bool {
    !segment.is_empty() && segment.iter().all(u8::is_ascii_digit)
}

fn model_route<'a>(model: &'a [u8], version: Option<&'a [u8]>, action: &[&[u8]]) -> Option<Route<'a>> {
    let target = Target { model, version };
    match action {
        _ if model.is_empty() => None,
        [] => Some(Route::ModelMetadata(target)),
        [b"ready"] => Some(Route::ModelReady(target)),
        [b"infer"] => Some(Route::Infer(target)),
        [b"config"] => Some(Route::ModelConfig(target)),
        [b"stats"] => Some(Route::ModelStatistics(target)),
        [b"generate"] => Some(Route::Unbuilt("generate", POST)),
        [b"generate_stream"] => Some(Route::Unbuilt("generate_stream", POST)),
        [b"trace", b"setting"] if version.is_none() => Some(Route::Unbuilt("trace setting", GET_POST)),
        _ => None,
    }
}

fn repository_route<'a>(repository: &'a [u8], model: &'a [u8], action: &[u8]) -> Option<Route<'a>> {
    match action {
        _ if model.is_empty() => None,
        b"load" => Some(Route::Load(repository, model)),
        b"unload" => Some(Route::Unload(repository, model)),
        _ => None,
    }
}

fn shared_memory(feature: &'static str, action: &[&[u8]]) -> Option<Route<'static>> {
    match action {
        [b"status"] => Some(Route::Unbuilt(feature, &[Method::Get])),
        [b"unregister"] => Some(Route::Unbuilt(feature, POST)),
        [b"region", region, b"status"] if !region.is_empty() => Some(Route::Unbuilt(feature, &[Method::Get])),
        [b"region", region, b"register" | b"unregister"] if !region.is_empty() => Some(Route::Unbuilt(feature, POST)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_whole() {
        let model = |model: &'static str, version: Option<&'static str>| Target {
            model: model.as_bytes(),
            version: version.map(str::as_bytes),
        };
        let table: &[(&str, Option<Route>)] = &[
            ("/v2", Some(Route::ServerMetadata)),
            ("/v2/", None),
            ("/v2/health/live", Some(Route::Live)),
            ("/v2/health/ready", Some(Route::Ready)),
            ("/v2/health/ready/", None),
            ("/V2/health/ready", None),
            ("/v2/models/m", Some(Route::ModelMetadata(model("m", None)))),
            ("/v2/models/", None),
            ("/v2/models//infer", None),
            ("/v2/models/m/", None),
            ("/v2/models/stats", Some(Route::AllStatistics)),
            ("/v2/models/stats/infer", Some(Route::Infer(model("stats", None)))),
            ("/v2/models/m/versions/3", Some(Route::ModelMetadata(model("m", Some("3"))))),
            ("/v2/models/m/versions/3/infer", Some(Route::Infer(model("m", Some("3"))))),
            ("/v2/models/m/versions/-3/infer", None),
            ("/v2/models/m/versions//infer", None),
            ("/v2/models/m/infer/x", None),
            ("/v2/models/m/config", Some(Route::ModelConfig(model("m", None)))),
            ("/v2/models/m/trace/setting", Some(Route::Unbuilt("trace setting", GET_POST))),
            ("/v2/models/m/versions/1/trace/setting", None),
            ("/v2/logging", Some(Route::Logging)),
            ("/v2/logging/", None),
            ("/v2/repository/index", Some(Route::RepositoryIndex)),
            ("/v2/repository/any/index", Some(Route::RepositoryIndex)),
            ("/v2/repository//index", None),
            ("/v2/repository//models/m/load", None),
            ("/v2/repository/models//load", None),
            ("/v2/repository/models/m/load", Some(Route::Load(b"", b"m"))),
            ("/v2/repository/any/models/m/unload", Some(Route::Unload(b"any", b"m"))),
            ("/v2/systemsharedmemory/region/r/register", Some(Route::Unbuilt("system shared memory", POST))),
            ("/v2/systemsharedmemory/register", None),
            ("/", None),
            ("", None),
            ("/v2/a/b/c/d/e/f/g/h/i/j", None),
        ];
        for (path, expected) in table {
            assert_eq!(route(path.as_bytes()), *expected, "{path}");
        }
    }
}
