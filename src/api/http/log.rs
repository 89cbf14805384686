//! Log lines of HTTP requests.

use nereid_observe::log::verbose;
use nereid_protocol::http1;

/// How Triton's log shows a method (contract/cli.md section 5).
pub fn method_number(method: http1::Method) -> u8 {
    match method {
        http1::Method::Get => 0,
        http1::Method::Head => 1,
        http1::Method::Post => 2,
        http1::Method::Put => 3,
        http1::Method::Delete => 4,
        _ => 5,
    }
}

/// Logs the request, at verbosity 1.
pub fn log_request(head: &http1::Head) {
    verbose!(1, "HTTP request: {} {}", method_number(head.method()), head.path());
}
