//! Groups of routes and RPCs that are served only to requests with a secret (contract/http.md section 2,
//! contract/grpc.md section 3).

use super::error;
use super::routes::Category;
use nereid_memory::Pool;
use nereid_protocol::grpc::Code;
use nereid_protocol::http1::{self, Response};
use nereid_protocol::http2::Headers;
use nereid_protocol::service::GrpcStatus;

/// Before the key of a `--grpc-restricted-protocol` in the metadata.
const METADATA_PREFIX: &str = "triton-grpc-protocol-";

/// The header that a group demands, and its value.
#[derive(Clone, PartialEq, Eq)]
struct Demand {
    header: Box<str>,
    value: Box<[u8]>,
}

/// The required header of each group.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Restrictions {
    demands: [Option<Demand>; Category::ALL.len()],
    /// There is a demand.
    demanding: bool,
}

impl std::fmt::Debug for Restrictions {
    /// The values are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let demands = Category::ALL.iter().zip(&self.demands);
        f.debug_map().entries(demands.filter_map(|((_, name), demand)| Some((name, &demand.as_ref()?.header)))).finish()
    }
}

impl Restrictions {
    /// `--http-restricted-api`: groups by name, each with its header and value. Unknown groups were refused before.
    pub fn http<'a>(given: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> Restrictions {
        Restrictions::with_prefix("", given)
    }

    /// `--grpc-restricted-protocol`, likewise.
    pub fn grpc<'a>(given: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> Restrictions {
        Restrictions::with_prefix(METADATA_PREFIX, given)
    }

    fn with_prefix<'a>(prefix: &str, given: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> Restrictions {
        let mut restrictions = Restrictions::default();
        for (group, key, value) in given {
            let place = Category::ALL.iter().position(|(_, name)| *name == group);
            if let Some(place) = place.and_then(|place| restrictions.demands.get_mut(place)) {
                restrictions.demanding = true;
                *place = Some(Demand { header: format!("{prefix}{key}").into(), value: value.as_bytes().into() });
            }
        }
        restrictions
    }

    /// Everybody may do everything.
    pub fn is_empty(&self) -> bool {
        !self.demanding
    }

    /// The header that is missing, or has another value. `find` returns a header.
    fn unmet<'h>(&self, category: Category, find: impl FnOnce(&str) -> Option<&'h [u8]>) -> Option<&str> {
        let demand = self.demands.get(category as usize)?.as_ref()?;
        let is_met = find(&demand.header).is_some_and(|given| is_equal(given, &demand.value));
        (!is_met).then_some(&*demand.header)
    }

    /// Whether a request with `head` may use routes of this group; if not, the refusal.
    pub(super) fn allow_http(&self, category: Category, head: &http1::Head, pool: &Pool) -> Result<(), Box<Response>> {
        match self.unmet(category, |name| head.header(name)) {
            None => Ok(()),
            Some(header) => {
                let text = format!("This API is restricted, expecting header '{header}'");
                // Without a label (contract/http.md section 1).
                Err(Box::new(error::error_body(pool, 403, &text, None)))
            }
        }
    }

    /// The same for a call.
    pub(super) fn allow_grpc(&self, category: Category, headers: &Headers) -> Result<(), GrpcStatus> {
        let find = |name: &str| {
            let named = |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
            headers.iter().find(named).map(|(_, value)| value)
        };
        match self.unmet(category, find) {
            None => Ok(()),
            Some(header) => {
                let text = format!("This protocol is restricted, expecting header '{header}'");
                Err(GrpcStatus::new(Code::Unavailable, text))
            }
        }
    }
}

/// Compares in constant time: the value is a secret.
fn is_equal(given: &[u8], wanted: &[u8]) -> bool {
    let differing = given.iter().zip(wanted).fold(0, |differing, (a, b)| std::hint::black_box(differing | (a ^ b)));
    given.len() == wanted.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_demands_its_own_header_with_its_own_value() {
        let given = [("health", "admin", "secret"), ("inference", "infer-key", "other"), ("trace", "admin", "secret")];
        let restrictions = Restrictions::http(given.into_iter());
        for (category, name) in Category::ALL {
            let demand = given.iter().find(|(group, ..)| *group == name);
            let asked = |value: Option<&'static [u8]>| {
                restrictions.unmet(category, |header| {
                    assert_eq!(Some(header), demand.map(|(_, key, _)| *key));
                    value
                })
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
    fn metadata_has_a_prefix_and_secrets_are_not_shown() {
        let restrictions = Restrictions::grpc([("model-repository", "admin", "hush")].into_iter());
        let demanded = restrictions.unmet(Category::ModelRepository, |_| None);
        assert_eq!(demanded, Some("triton-grpc-protocol-admin"));
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
