//! Groups of routes and RPCs that are served only to requests with a secret (contract/http.md section 2,
//! contract/grpc.md section 3).

use std::sync::Arc;

use super::error;
use super::routes::Category;
use nereid_memory::Pool;
use nereid_protocol::grpc::Code;
use nereid_protocol::http1::{self, Response};
use nereid_protocol::http2::Headers;
use nereid_protocol::service::GrpcStatus;

/// Before the key of a `--grpc-restricted-protocol` in the metadata.
const METADATA_PREFIX: &str = "triton-grpc-protocol-";

/// A key of a group, as flags and key files give it.
#[derive(Debug, Clone, Copy)]
pub struct GivenKey<'a> {
    pub group: &'a str,
    pub header: &'a str,
    pub value: &'a str,
    /// What the audit log calls it.
    pub name: &'a str,
}

/// A header and its value, which together let requests in.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    header: Box<str>,
    value: Box<[u8]>,
    name: Arc<str>,
}

/// The keys of each group; a group without any is open.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Restrictions {
    keys: [Vec<Key>; Category::ALL.len()],
    /// There is a key.
    demanding: bool,
}

/// What holds for requests at a time. Each shard has the present one, and gets a new one by mail when a file of keys
/// has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    pub http: Restrictions,
    pub grpc: Restrictions,
    /// Which of the server's it is: decisions that were made by another one do not hold any more.
    pub number: u64,
    /// Others may follow.
    pub changes: bool,
}

/// The name of the key that let a request in; `None`: its group needs none.
pub(super) type KeyName = Option<Arc<str>>;

impl Restrictions {
    /// Whether the value of that header may be a key.
    pub fn is_key_header(&self, name: &str) -> bool {
        self.keys.iter().flatten().any(|key| key.header.eq_ignore_ascii_case(name))
    }
}

impl std::fmt::Debug for Restrictions {
    /// The values are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let groups = Category::ALL.iter().zip(&self.keys).filter(|(_, keys)| !keys.is_empty());
        let shown = groups.map(|((_, name), keys)| (name, keys.iter().map(|key| &key.header).collect::<Vec<_>>()));
        f.debug_map().entries(shown).finish()
    }
}

impl Restrictions {
    /// Keys of HTTP. Unknown groups were refused before.
    pub fn http<'a>(given: impl Iterator<Item = GivenKey<'a>>) -> Restrictions {
        Restrictions::with_prefix("", given)
    }

    /// Keys of gRPC.
    pub fn grpc<'a>(given: impl Iterator<Item = GivenKey<'a>>) -> Restrictions {
        Restrictions::with_prefix(METADATA_PREFIX, given)
    }

    fn with_prefix<'a>(prefix: &str, given: impl Iterator<Item = GivenKey<'a>>) -> Restrictions {
        let mut restrictions = Restrictions::default();
        for GivenKey { group, header, value, name } in given {
            let place = Category::ALL.iter().position(|(_, name)| *name == group);
            if let Some(keys) = place.and_then(|place| restrictions.keys.get_mut(place)) {
                restrictions.demanding = true;
                let header = format!("{prefix}{header}").into();
                keys.push(Key { header, value: value.as_bytes().into(), name: name.into() });
            }
        }
        restrictions
    }

    /// Everybody may do everything.
    pub fn is_empty(&self) -> bool {
        !self.demanding
    }

    /// The key that lets a request in, or else the header that it should have. `find` returns a header.
    fn check<'h>(&self, category: Category, find: impl Fn(&str) -> Option<&'h [u8]>) -> Result<KeyName, &str> {
        let keys = self.keys.get(category as usize).map_or(&[][..], Vec::as_slice);
        let Some(first) = keys.first() else { return Ok(None) };
        let met = keys.iter().find(|key| find(&key.header).is_some_and(|given| is_equal(given, &key.value)));
        met.map(|key| Some(Arc::clone(&key.name))).ok_or(&first.header)
    }

    /// Whether a request with `head` may use routes of this group; if not, the refusal.
    pub(super) fn allow_http(
        &self,
        category: Category,
        head: &http1::Head,
        pool: &Pool,
    ) -> Result<KeyName, Box<Response>> {
        self.check(category, |name| head.header(name)).map_err(|header| {
            let text = format!("This API is restricted, expecting header '{header}'");
            // Without a label (contract/http.md section 1).
            Box::new(error::error_body(pool, 403, &text, None))
        })
    }

    /// The header that requests of a group need; none: the group is open.
    pub(super) fn header_of(&self, category: Category) -> Option<&str> {
        self.keys.get(category as usize)?.first().map(|key| &*key.header)
    }

    pub(super) fn lets_in(&self, category: Category, head: &http1::Head) -> bool {
        self.check(category, |name| head.header(name)).is_ok()
    }

    /// The name of the key by which a request with `head` was let in.
    pub(super) fn key_of(&self, category: Category, head: &http1::Head) -> KeyName {
        self.check(category, |name| head.header(name)).unwrap_or_default()
    }

    /// The same for a call.
    pub(super) fn allow_grpc(&self, category: Category, headers: &Headers) -> Result<KeyName, GrpcStatus> {
        let find = |name: &str| {
            let named = |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
            headers.iter().find(named).map(|(_, value)| value)
        };
        self.check(category, find).map_err(|header| {
            let text = format!("This protocol is restricted, expecting header '{header}'");
            GrpcStatus::new(Code::Unavailable, text)
        })
    }
}

/// Compares in constant time: the value is a secret.
pub(super) fn is_equal(given: &[u8], wanted: &[u8]) -> bool {
    let differing = given.iter().zip(wanted).fold(0, |differing, (a, b)| std::hint::black_box(differing | (a ^ b)));
    given.len() == wanted.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key((group, header, value): (&'static str, &'static str, &'static str)) -> GivenKey<'static> {
        GivenKey { group, header, value, name: header }
    }

    #[test]
    fn a_group_demands_its_own_header_with_its_own_value() {
        let given = [("health", "admin", "secret"), ("inference", "infer-key", "other"), ("trace", "admin", "secret")];
        let restrictions = Restrictions::http(given.into_iter().map(key));
        for (category, name) in Category::ALL {
            let demand = given.iter().find(|(group, ..)| *group == name);
            let asked = |value: Option<&'static [u8]>| {
                let checked = restrictions.check(category, |header| {
                    assert_eq!(Some(header), demand.map(|(_, key, _)| *key));
                    value
                });
                checked.err()
            };
            let Some((_, key, value)) = demand else {
                assert_eq!(asked(None), None, "{name}");
                continue;
            };
            assert_eq!(asked(Some(value.as_bytes())), None, "{name}");
            let near_misses: [&[u8]; 6] = [b"", b"secre", b"secret ", b"secrets", b"Secret", b"othe"];
            for wrong in near_misses {
                assert_eq!(asked(Some(wrong)), Some(*key), "{name} with {}", wrong.escape_ascii());
            }
            assert_eq!(asked(None), Some(*key), "{name}");
        }
    }

    #[test]
    fn any_of_several_keys_lets_in_and_is_named() {
        let keys = [("old", "admin", "one"), ("new", "admin", "two"), ("other", "token", "three")];
        let given = keys.map(|(name, header, value)| GivenKey { group: "trace", header, value, name });
        let restrictions = Restrictions::http(given.into_iter());
        for (name, header, value) in keys {
            let met = restrictions.check(Category::Trace, |asked| (asked == header).then_some(value.as_bytes()));
            assert_eq!(met, Ok(Some(name.into())));
        }
        assert_eq!(restrictions.check(Category::Trace, |_| Some(b"four")), Err("admin"));
        assert_eq!(restrictions.check(Category::Logging, |_| None), Ok(None));
    }

    #[test]
    fn metadata_has_a_prefix_and_secrets_are_not_shown() {
        let restrictions = Restrictions::grpc([("model-repository", "admin", "hush")].into_iter().map(key));
        let demanded = restrictions.check(Category::ModelRepository, |_| None);
        assert_eq!(demanded, Err("triton-grpc-protocol-admin"));
        let shown = format!("{restrictions:?}");
        assert!(shown.contains("model-repository") && !shown.contains("hush"), "{shown}");
    }

    #[test]
    fn categories_stand_at_their_own_places() {
        for (at, (category, _)) in Category::ALL.iter().enumerate() {
            assert_eq!(*category as usize, at);
        }
    }
}
