//! The paths of the HTTP port, in Triton's order of dispatch (contract/http.md section 1).
//!
//! A path is matched whole and byte by byte: case counts, nothing is percent-decoded, and the query is already gone.

use smallvec::SmallVec;

use super::error;
use crate::repository::traffic::is_label;
use nereid_protocol::http1;

/// A model, and a version where the path names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    pub model: &'a [u8],
    pub version: Option<&'a [u8]>,
}

/// The meaning of a path. The method is checked afterwards.
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
    Generate(Target<'a>),
    GenerateStream(Target<'a>),
    /// The trace settings of one model, or of the server.
    TraceSetting(Option<&'a [u8]>),
    /// The traffic rule of a model.
    Traffic(&'a [u8], TrafficAction),
    /// The generations of a model.
    Generations(&'a [u8]),
    /// A model, and the generation of it that is to serve.
    Activate(&'a [u8], &'a [u8]),
    /// The region that the path names, if any.
    SharedMemory(MemoryKind, RegionAction, Option<&'a [u8]>),
    /// With `--http-metrics`: the page of the metrics port, and readiness as probes of other servers ask for it.
    Metrics,
    Health,
}

/// What lies in a region of shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    System,
    Cuda,
}

/// What is done with a traffic rule: with `Rule`, it is shown, or with a body changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficAction {
    Rule,
    Promote,
    RollBack,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionAction {
    Status,
    Register,
    Unregister,
}

/// The groups of `--http-restricted-api` and `--grpc-restricted-protocol` (contract/cli.md section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
}

impl Category {
    /// As the flags name them, in their order.
    pub const ALL: [(Category, &'static str); 9] = [
        (Category::Health, "health"),
        (Category::Metadata, "metadata"),
        (Category::Inference, "inference"),
        (Category::SharedMemory, "shared-memory"),
        (Category::ModelConfig, "model-config"),
        (Category::ModelRepository, "model-repository"),
        (Category::Statistics, "statistics"),
        (Category::Trace, "trace"),
        (Category::Logging, "logging"),
    ];
}

/// The methods that routes distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Other,
}

impl From<http1::Method> for Method {
    fn from(method: http1::Method) -> Method {
        match method {
            http1::Method::Get => Method::Get,
            http1::Method::Head => Method::Head,
            http1::Method::Post => Method::Post,
            _ => Method::Other,
        }
    }
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
            | Route::AllStatistics
            | Route::Generations(_)
            | Route::Health => &[Method::Get],
            Route::Metrics => &[Method::Get, Method::Head],
            Route::Infer(_)
            | Route::Generate(_)
            | Route::GenerateStream(_)
            | Route::RepositoryIndex
            | Route::Load(..)
            | Route::Unload(..) => &[Method::Post],
            Route::Logging | Route::TraceSetting(_) | Route::Traffic(_, TrafficAction::Rule) => {
                &[Method::Get, Method::Post]
            }
            Route::Traffic(..) | Route::Activate(..) => &[Method::Post],
            Route::SharedMemory(_, RegionAction::Status, _) => &[Method::Get],
            Route::SharedMemory(..) => &[Method::Post],
        }
    }

    /// The label of error bodies of this route (contract/http.md section 1).
    pub fn content_type(&self) -> Option<&'static str> {
        match self {
            Route::Live | Route::Ready | Route::ModelReady(_) | Route::Infer(_) | Route::Metrics | Route::Health => {
                None
            }
            _ => error::JSON,
        }
    }

    /// The group by which the route can be restricted (contract/http.md section 1).
    pub fn category(&self) -> Category {
        match self {
            Route::Live | Route::Ready | Route::ModelReady(_) | Route::Health => Category::Health,
            Route::ServerMetadata | Route::ModelMetadata(_) => Category::Metadata,
            Route::Infer(_) | Route::Generate(_) | Route::GenerateStream(_) => Category::Inference,
            Route::ModelConfig(_) => Category::ModelConfig,
            Route::ModelStatistics(_) | Route::AllStatistics | Route::Metrics => Category::Statistics,
            Route::TraceSetting(_) => Category::Trace,
            Route::Logging => Category::Logging,
            Route::RepositoryIndex
            | Route::Load(..)
            | Route::Unload(..)
            | Route::Traffic(..)
            | Route::Generations(_)
            | Route::Activate(..) => Category::ModelRepository,
            Route::SharedMemory(..) => Category::SharedMemory,
        }
    }
}

/// Segments of the longest route, and one more to see that a path is longer.
const SEGMENTS_MAX: usize = 8;

/// The routes of `--http-metrics`.
pub fn route_of_probes(path: &[u8]) -> Option<Route<'_>> {
    match path {
        b"/metrics" => Some(Route::Metrics),
        b"/health" => Some(Route::Health),
        _ => None,
    }
}

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
        [b"systemsharedmemory", action @ ..] => return shared_memory(MemoryKind::System, action),
        [b"cudasharedmemory", action @ ..] => return shared_memory(MemoryKind::Cuda, action),
        [b"repository", b"index"] => Route::RepositoryIndex,
        [b"repository", repository, b"index"] if !repository.is_empty() => Route::RepositoryIndex,
        [b"repository", b"models", model, action] => return repository_route(b"", model, action),
        [b"repository", repository, b"models", model, action] if !repository.is_empty() => {
            return repository_route(repository, model, action);
        }
        [b"trace", b"setting"] => Route::TraceSetting(None),
        _ => return None,
    };
    Some(route)
}

/// The route of a path in which a label stands where a version does; which labels a model has is not checked here.
pub fn labelled_route(path: &[u8]) -> Option<Route<'_>> {
    let mut segments = path.strip_prefix(b"/v2/models/")?.split(|&byte| byte == b'/');
    let (model, versions, label) = (segments.next()?, segments.next()?, segments.next()?);
    let action: SmallVec<[&[u8]; SEGMENTS_MAX]> = segments.take(SEGMENTS_MAX).collect();
    if versions != b"versions" || !is_label(label) {
        return None;
    }
    model_route(model, Some(label), &action)
}

fn is_version(segment: &[u8]) -> bool {
    !segment.is_empty() && segment.iter().all(u8::is_ascii_digit)
}

fn model_route<'a>(model: &'a [u8], version: Option<&'a [u8]>, action: &[&'a [u8]]) -> Option<Route<'a>> {
    let target = Target { model, version };
    match action {
        _ if model.is_empty() => None,
        [] => Some(Route::ModelMetadata(target)),
        [b"ready"] => Some(Route::ModelReady(target)),
        [b"infer"] => Some(Route::Infer(target)),
        [b"config"] => Some(Route::ModelConfig(target)),
        [b"stats"] => Some(Route::ModelStatistics(target)),
        [b"generate"] => Some(Route::Generate(target)),
        [b"generate_stream"] => Some(Route::GenerateStream(target)),
        [b"trace", b"setting"] if version.is_none() => Some(Route::TraceSetting(Some(model))),
        [b"traffic"] if version.is_none() => Some(Route::Traffic(model, TrafficAction::Rule)),
        [b"traffic", b"promote"] if version.is_none() => Some(Route::Traffic(model, TrafficAction::Promote)),
        [b"traffic", b"rollback"] if version.is_none() => Some(Route::Traffic(model, TrafficAction::RollBack)),
        [b"generations"] if version.is_none() => Some(Route::Generations(model)),
        [b"generations", id, b"activate"] if version.is_none() && !id.is_empty() => Some(Route::Activate(model, id)),
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

fn shared_memory<'a>(kind: MemoryKind, action: &[&'a [u8]]) -> Option<Route<'a>> {
    use RegionAction::{Register, Status, Unregister};
    let (action, region) = match action {
        [b"status"] => (Status, None),
        // Answered with what is missing.
        [b"register"] => (Register, None),
        [b"unregister"] => (Unregister, None),
        [b"region", region, b"status"] => (Status, Some(*region)),
        [b"region", region, b"register"] => (Register, Some(*region)),
        [b"region", region, b"unregister"] => (Unregister, Some(*region)),
        _ => return None,
    };
    region.is_none_or(|region| !region.is_empty()).then_some(Route::SharedMemory(kind, action, region))
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
            ("/v2/models/m/trace/setting", Some(Route::TraceSetting(Some(b"m")))),
            ("/v2/models/m/versions/1/trace/setting", None),
            ("/v2/models/m/traffic", Some(Route::Traffic(b"m", TrafficAction::Rule))),
            ("/v2/models/m/traffic/promote", Some(Route::Traffic(b"m", TrafficAction::Promote))),
            ("/v2/models/m/traffic/rollback", Some(Route::Traffic(b"m", TrafficAction::RollBack))),
            ("/v2/models/m/traffic/", None),
            ("/v2/models/m/generations", Some(Route::Generations(b"m"))),
            ("/v2/models/m/generations/0a-1/activate", Some(Route::Activate(b"m", b"0a-1"))),
            ("/v2/models/m/generations/0a-1", None),
            ("/v2/models/m/generations//activate", None),
            ("/v2/models/m/versions/1/generations", None),
            ("/v2/models/m/versions/1/traffic", None),
            ("/v2/models/m/versions/canary/infer", None),
            ("/v2/logging", Some(Route::Logging)),
            ("/v2/logging/", None),
            ("/v2/repository/index", Some(Route::RepositoryIndex)),
            ("/v2/repository/any/index", Some(Route::RepositoryIndex)),
            ("/v2/repository//index", None),
            ("/v2/repository//models/m/load", None),
            ("/v2/repository/models//load", None),
            ("/v2/repository/models/m/load", Some(Route::Load(b"", b"m"))),
            ("/v2/repository/any/models/m/unload", Some(Route::Unload(b"any", b"m"))),
            (
                "/v2/systemsharedmemory/region/r/register",
                Some(Route::SharedMemory(MemoryKind::System, RegionAction::Register, Some(b"r"))),
            ),
            (
                "/v2/systemsharedmemory/register",
                Some(Route::SharedMemory(MemoryKind::System, RegionAction::Register, None)),
            ),
            ("/v2/systemsharedmemory/region//register", None),
            ("/", None),
            ("", None),
            ("/v2/a/b/c/d/e/f/g/h/i/j", None),
        ];
        for (path, expected) in table {
            assert_eq!(route(path.as_bytes()), *expected, "{path}");
        }
    }

    #[test]
    fn a_label_stands_where_a_version_does() {
        let target = Target { model: b"m", version: Some(b"canary") };
        for (path, expected) in [
            ("/v2/models/m/versions/canary/infer", Some(Route::Infer(target))),
            ("/v2/models/m/versions/canary/stats", Some(Route::ModelStatistics(target))),
            ("/v2/models/m/versions/canary/ready", Some(Route::ModelReady(target))),
            ("/v2/models/m/versions/canary", Some(Route::ModelMetadata(target))),
            ("/v2/models/m/versions/canary/traffic", None),
            ("/v2/models/m/versions/canary/", None),
            ("/v2/models/m/versions/1/infer", None),
            ("/v2/models/m/versions/-x/infer", None),
            ("/v2/models//versions/canary/infer", None),
            ("/v2/models/m/infer", None),
        ] {
            assert_eq!(labelled_route(path.as_bytes()), expected, "{path}");
        }
    }
}
