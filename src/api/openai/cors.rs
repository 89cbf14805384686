//! Requests of web pages of other origins (contract/openai.md section 1).

use nereid_memory::{Gather, Pool};
use nereid_protocol::http1::{Head, Response, ResponseHead};

/// The one origin whose pages may read answers.
const ORIGIN: &[u8] = b"http://localhost";
const METHODS: &str = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT";

/// The answer to a preflight request, if it is one.
pub fn preflight(head: &Head, pool: &Pool) -> Option<Response> {
    let origin = head.header("Origin")?;
    if head.method_name() != "OPTIONS" {
        return None;
    }
    head.header("Access-Control-Request-Method")?;
    let is_allowed = origin == ORIGIN;
    let mut reply = ResponseHead::new(if is_allowed { 200 } else { 400 })
        .content_type("text/plain; charset=utf-8")
        .header("vary", "Origin")
        .header("access-control-allow-methods", METHODS)
        .header("access-control-max-age", "600")
        .header("access-control-allow-credentials", "true");
    if is_allowed {
        reply = reply.header("access-control-allow-origin", "http://localhost");
    }
    if let Some(headers) = head.header("Access-Control-Request-Headers") {
        let headers = String::from_utf8_lossy(headers);
        // What cannot stand in a header field is not repeated.
        if headers.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            reply = reply.header("access-control-allow-headers", headers.into_owned());
        }
    }
    let mut body = Gather::new();
    body.put(pool, if is_allowed { b"OK" } else { b"Disallowed CORS origin" });
    Some(Response::new(reply, body))
}

/// What the answer to a request has beside its own fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    #[default]
    None,
    Allowed,
    Other,
}

impl Origin {
    pub fn of(head: &Head) -> Origin {
        match head.header("Origin") {
            None => Origin::None,
            Some(ORIGIN) => Origin::Allowed,
            Some(_) => Origin::Other,
        }
    }

    pub fn add_to(self, head: ResponseHead) -> ResponseHead {
        match self {
            Origin::None => head,
            Origin::Other => head.header("access-control-allow-credentials", "true"),
            Origin::Allowed => head
                .header("access-control-allow-credentials", "true")
                .header("access-control-allow-origin", "http://localhost")
                .header("vary", "Origin"),
        }
    }
}
