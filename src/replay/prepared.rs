//! A recorded request as it is sent again, over its protocol or the other one.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::plan::Plan;
use nereid_recording::{Protocol, REDACTED, Record};

/// Of what a path is made without escapes.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Contents that are sent as JSON, where each number takes many times its bytes before it is text.
const JSON_CONTENTS_BYTES_MAX: usize = 64 << 20;

/// Headers that belong to the recorded connection or to a form of the answer that is not read here.
const LEFT_OUT: [&str; 15] = [
    "host",
    "connection",
    "keep-alive",
    "expect",
    "upgrade",
    "te",
    "trailer",
    "accept-encoding",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "inference-header-content-length",
    "user-agent",
    "traceparent",
    "tracestate",
];

/// What goes to the server.
#[derive(Debug, PartialEq)]
pub enum Prepared {
    Http { target: String, headers: Vec<(String, String)>, body: Vec<u8> },
    Grpc { metadata: Vec<(String, String)>, message: Vec<u8> },
}

/// The request again, or why it cannot be sent.
pub fn prepare(record: &Record, number: u64, plan: &Plan) -> Result<Prepared, String> {
    let head = &record.head;
    let protocol = plan.protocol.unwrap_or(head.protocol);
    record.check_resend().map_err(|error| error.to_string())?;
    let model = plan.model(&head.model);
    let is_same = protocol == head.protocol;
    let headers = kept(record, protocol);
    if let (true, Some(body)) = (is_same, &record.request_body) {
        if protocol == Protocol::Http {
            return Ok(http(record, model, headers, body.clone(), record.json_len()));
        }
        if model == head.model {
            return Ok(Prepared::Grpc { metadata: headers, message: body.clone() });
        }
    }
    let mut infer = record.infer(number, plan.contents).map_err(|error| error.to_string())?;
    model.clone_into(&mut infer.model);
    match protocol {
        Protocol::Grpc => {
            let message = infer.to_grpc().map_err(|error| error.to_string())?;
            Ok(Prepared::Grpc { metadata: headers, message })
        }
        Protocol::Http => {
            // JSON where the recorded request had it.
            let bytes: usize = infer.inputs.iter().filter_map(|input| input.contents.as_ref()).map(Vec::len).sum();
            let was_binary = head.request.inputs.iter().any(|input| input.byte_size.is_some());
            let has_binary = was_binary || bytes > JSON_CONTENTS_BYTES_MAX;
            let (body, json_len) = infer.to_http(has_binary).map_err(|error| error.to_string())?;
            Ok(http(record, model, headers, body, json_len))
        }
    }
}

fn http(
    record: &Record,
    model: &str,
    mut headers: Vec<(String, String)>,
    body: Vec<u8>,
    json_len: Option<usize>,
) -> Prepared {
    let head = &record.head;
    let target = match model == head.model && is_of_inference(&head.request.path) {
        true => head.request.path.clone(),
        false => {
            let escaped = |text: &str| utf8_percent_encode(text, SEGMENT).to_string();
            let version = match head.version.is_empty() {
                true => String::new(),
                false => format!("/versions/{}", escaped(&head.version)),
            };
            format!("/v2/models/{}{version}/infer", escaped(model))
        }
    };
    if let Some(json_len) = json_len {
        headers.push(("Inference-Header-Content-Length".to_owned(), json_len.to_string()));
    }
    Prepared::Http { target, headers, body }
}

/// Whether a recorded path is sent as it is. A file may hold anything: a blank or a line feed would begin another
/// request, and another route would be called with the key that `--header` gives.
fn is_of_inference(path: &str) -> bool {
    let is_plain = |byte: u8| (b'!'..=b'~').contains(&byte) && byte != b'?' && byte != b'#';
    path.starts_with('/') && path.ends_with("/infer") && path.bytes().all(is_plain)
}

/// Recorded headers that are sent again. Where the protocol is another one, none.
fn kept(record: &Record, protocol: Protocol) -> Vec<(String, String)> {
    if protocol != record.head.protocol {
        return Vec::new();
    }
    let is_plain = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_kept = |name: &str, value: &str| {
        let lower = name.to_ascii_lowercase();
        let of_grpc = protocol == Protocol::Grpc && (lower == "content-type" || lower.starts_with("grpc-"));
        // A file may hold anything.
        let fits = !lower.is_empty() && lower.bytes().all(is_token) && value.bytes().all(is_plain);
        fits && value != REDACTED && !of_grpc && !LEFT_OUT.contains(&&*lower)
    };
    let headers = &record.head.request.headers;
    headers.iter().filter(|(name, value)| is_kept(name, value)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Server, Speed};
    use nereid_client::Endpoint;
    use nereid_recording::{Contents, Infer, RecordHead, RequestFacts, TensorFacts};

    fn plan() -> Plan {
        let endpoint = Endpoint::Tcp { host: "h".to_owned(), port: 1 };
        let patience = Duration::from_secs(1);
        Plan {
            server: Server { http: endpoint.clone(), grpc: endpoint, tls: None, headers: Vec::new(), patience },
            protocol: None,
            speed: Speed::Max,
            concurrency_max: 1,
            compares: true,
            tolerance: 0.0,
            renames: vec![("a".to_owned(), "b c".to_owned())],
            contents: Contents::Zero,
        }
    }

    fn record(model: &str, body: Option<&[u8]>) -> Record {
        let input = TensorFacts {
            name: "x".to_owned(),
            datatype: "INT8".to_owned(),
            shape: vec![2],
            byte_size: body.is_none().then_some(2),
            shared_memory: false,
        };
        let headers = [("Host", "h"), ("X-A", "b"), ("Authorization", REDACTED), ("X-B", "a\r\nb"), ("", "x")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let path = format!("/v2/models/{model}/infer");
        let request = RequestFacts { inputs: vec![input], headers, path, ..RequestFacts::default() };
        let (model, version) = (model.to_owned(), "2".to_owned());
        let head = RecordHead { at_ns: 0, took_ns: 0, protocol: Protocol::Http, model, version, request, answer: None };
        Record { head, request_body: body.map(<[u8]>::to_vec), answer_body: None }
    }

    #[test]
    fn a_request_goes_as_it_came_unless_its_model_has_another_name() {
        let Ok(Prepared::Http { target, headers, body }) = prepare(&record("m", Some(b"{}")), 1, &plan()) else {
            panic!("not over HTTP");
        };
        assert_eq!((&*target, &*body), ("/v2/models/m/infer", &b"{}"[..]));
        assert_eq!(headers, [("X-A".to_owned(), "b".to_owned())]);
        let Ok(Prepared::Http { target, .. }) = prepare(&record("a", Some(b"{}")), 1, &plan()) else {
            panic!("not over HTTP");
        };
        assert_eq!(target, "/v2/models/b%20c/versions/2/infer");
    }

    #[test]
    fn a_path_that_is_not_of_inference_is_not_sent() {
        let target = |path: &str| {
            let mut record = record("m", Some(b"{}"));
            record.head.request.path = path.to_owned();
            match prepare(&record, 1, &plan()) {
                Ok(Prepared::Http { target, .. }) => target,
                other => panic!("not over HTTP: {other:?}"),
            }
        };
        for kept in ["/v2/models/m/infer", "/v2/models/a%20b/versions/3/infer"] {
            assert_eq!(target(kept), kept);
        }
        for wrong in [
            "",
            "v2/models/m/infer",
            "/v2/repository/models/m/unload",
            "/v2/repository/models/m/unload?/infer",
            "/v2/repository/models/m/unload#/infer",
            "/ HTTP/1.1\r\nHost: h\r\n\r\nPOST /infer",
            "/v2/models/m /infer",
            "/v2/models/m\u{e9}/infer",
        ] {
            assert_eq!(target(wrong), "/v2/models/m/versions/2/infer", "{wrong:?}");
        }
    }

    #[test]
    fn made_contents_are_bounded_together() {
        let mut large = record("m", None);
        let mut input = large.head.request.inputs[0].clone();
        (input.shape, input.byte_size) = (vec![0], Some(0));
        large.head.request.inputs = vec![input; 3];
        large.head.request.inputs[0].shape = vec![1 << 20];
        large.head.request.inputs[1].shape = vec![(1 << 30) - (1 << 20) + 1];
        assert!(prepare(&large, 1, &plan()).unwrap_err().contains("cannot be made"));
        large.head.request.inputs[1].shape = vec![1 << 20];
        assert!(prepare(&large, 1, &plan()).is_ok());
    }

    #[test]
    fn contents_are_made_and_protocols_change() {
        let over_grpc = Plan { protocol: Some(Protocol::Grpc), ..plan() };
        let Ok(Prepared::Grpc { metadata, message }) = prepare(&record("a", None), 1, &over_grpc) else {
            panic!("not over gRPC");
        };
        assert!(metadata.is_empty());
        let infer = Infer::from_grpc(message.into()).unwrap();
        assert_eq!((&*infer.model, &*infer.version), ("b c", "2"));
        assert_eq!(infer.inputs[0].contents.as_deref(), Some(&[0, 0][..]));
        let Ok(Prepared::Http { headers, body, .. }) = prepare(&record("m", None), 1, &plan()) else {
            panic!("not over HTTP");
        };
        assert!(headers.iter().any(|(name, _)| name == "Inference-Header-Content-Length"));
        assert!(body.ends_with(&[0, 0]));
    }

    #[test]
    fn what_cannot_be_sent_says_why() {
        let mut shared = record("m", Some(b"{}"));
        shared.head.request.inputs[0].shared_memory = true;
        assert!(prepare(&shared, 1, &plan()).unwrap_err().contains("shared memory"));
        let mut open = record("m", None);
        open.head.request.inputs[0].shape = vec![-1];
        assert!(prepare(&open, 1, &plan()).unwrap_err().contains("cannot be made"));
        open.head.request.inputs.clear();
        assert!(prepare(&open, 1, &plan()).unwrap_err().contains("nor its inputs"));
        let over_grpc = Plan { protocol: Some(Protocol::Grpc), ..plan() };
        assert!(prepare(&record("m", Some(b"[")), 1, &over_grpc).unwrap_err().contains("JSON"));
    }
}
