//! The pages that describe the interface: its OpenAPI description, and one for people.

use nereid_memory::{Gather, Pool};
use nereid_protocol::http1::{Response, ResponseHead};

const DESCRIPTION: &str = include_str!("openapi.json");
/// Without anything from elsewhere.
const DOCS: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>OpenAI API</title></head>\
                    <body><h1>OpenAI API</h1><p>The routes of this server are described in \
                    <a href=\"/openapi.json\">openapi.json</a>.</p></body></html>\n";

pub fn description(head: ResponseHead, pool: &Pool) -> Response {
    page(head, DESCRIPTION, pool)
}

pub fn docs(head: ResponseHead, pool: &Pool) -> Response {
    page(head, DOCS, pool)
}

fn page(head: ResponseHead, text: &str, pool: &Pool) -> Response {
    let mut body = Gather::new();
    body.put(pool, text.as_bytes());
    Response::new(head, body)
}
