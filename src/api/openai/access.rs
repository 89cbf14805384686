//! Who may use OpenAI's interface: restricted groups of routes, API keys, and the rate of each key
//! (contract/openai.md sections 1.1 and 5).

use std::sync::Arc;

use super::limits::Bucket;
use crate::api::access::is_equal;
use nereid_protocol::http1::Head;

/// The groups of `--openai-restricted-api`, and the beginnings of their paths.
pub const GROUPS: [(&str, &[(&str, &str)]); 4] = [
    (
        "inference",
        &[
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1/responses"),
            ("POST", "/v1/rerank"),
            ("POST", "/v2/rerank"),
            ("POST", "/rerank"),
            ("POST", "/v1/score"),
            ("POST", "/score"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
        ],
    ),
    ("model-repository", &[("GET", "/v1/models"), ("POST", "/v1/models/")]),
    ("metrics", &[("GET", "/metrics")]),
    ("health", &[("GET", "/health"), ("GET", "/ping"), ("GET", "/live")]),
];

/// One `--openai-restricted-api`.
#[derive(Clone, PartialEq, Eq)]
pub struct RestrictedGroups {
    pub groups: Vec<String>,
    pub header: String,
    pub value: String,
}

impl std::fmt::Debug for RestrictedGroups {
    /// The value is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RestrictedGroups({}: {})", self.groups.join(","), self.header)
    }
}

/// A key of clients, and how often it may be used.
pub struct ApiKey {
    pub value: String,
    pub bucket: Option<Arc<Bucket>>,
}

/// What lets requests in.
#[derive(Default)]
pub struct Gate {
    pub restricted: Vec<RestrictedGroups>,
    /// None: no key is needed.
    pub keys: Vec<ApiKey>,
    /// Without keys: of all requests together.
    pub bucket: Option<Arc<Bucket>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("restricted", &self.restricted).field("keys", &self.keys.len()).finish()
    }
}

/// Why a request is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// It lacks this header.
    Restricted(String),
    NoKey,
    WrongKey,
}

impl Gate {
    /// Whether a request may use its path, by its head alone.
    pub fn check(&self, head: &Head) -> Result<(), Closed> {
        let (method, path) = (head.method_name(), head.path());
        let is_in = |group: &String| {
            let paths = GROUPS.iter().find(|(name, _)| name == group).map_or(&[][..], |(_, paths)| paths);
            paths.iter().any(|(of, beginning)| *of == method && path.starts_with(beginning))
        };
        if let Some(found) = self.restricted.iter().find(|one| one.groups.iter().any(is_in)) {
            let given = head.header(&found.header).unwrap_or_default();
            if found.value.is_empty() || !is_equal(given, found.value.as_bytes()) {
                return Err(Closed::Restricted(found.header.clone()));
            }
        }
        // Browsers ask by OPTIONS without a key whether they may send one.
        match self.keys.is_empty() || is_probe(path) || method == "OPTIONS" {
            true => Ok(()),
            false => self.key(head).map(drop),
        }
    }

    /// The key of a request.
    fn key(&self, head: &Head) -> Result<&ApiKey, Closed> {
        let given = head.header("Authorization").ok_or(Closed::NoKey)?;
        let given = given.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
        let (_, given) = given.ok_or(Closed::NoKey)?;
        // Every key is compared, so that the time says nothing about them.
        let matching = self.keys.iter().filter(|key| is_equal(given.trim_ascii(), key.value.as_bytes()));
        matching.fold(None, |_, key| Some(key)).ok_or(Closed::WrongKey)
    }

    /// Takes one request of the rate of its key; Err: the seconds after which there is room again.
    pub fn take(&self, head: &Head, now_ns: u64) -> Result<(), u64> {
        let of_key = self.key(head).ok().and_then(|key| key.bucket.as_ref());
        of_key.or(self.bucket.as_ref()).map_or(Ok(()), |bucket| bucket.take(now_ns))
    }
}

/// Probes need no key.
fn is_probe(path: &str) -> bool {
    matches!(path, "/health" | "/health/ready" | "/health/live" | "/live" | "/ping")
}
