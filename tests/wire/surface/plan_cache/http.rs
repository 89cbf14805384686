//! Clients of HTTP: JSON and binary tensors, pipelined, with repeated or similar heads.

use std::fmt::Write;

use super::models::{self, Input};
use super::{Both, KEY, Traffic};
use nereid_test_support::http::Peer;
use nereid_test_support::random::Random;

/// Kinds that a client has at a time.
const KINDS: usize = 6;
/// Requests that a client sends before it reads their answers.
const PIPELINED: usize = 12;

/// Where the id stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Id {
    None,
    First,
    Last,
}

#[derive(Clone, Debug)]
struct Tensor {
    input: Input,
    is_binary: bool,
}

/// What requests of a kind have in common.
#[derive(Clone, Debug)]
struct Kind {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    /// The place of the lengths among the headers, and how they are spelt.
    lengths_at: usize,
    length_name: &'static str,
    json_length_name: &'static str,
    is_chunked: bool,
    id: Id,
    tensors: Vec<Tensor>,
    /// JSON of the requested outputs, and of the parameters; empty for none.
    outputs: String,
    parameters: Vec<(&'static str, &'static str)>,
    /// JSON in front of everything else, which few clients send.
    extra: &'static str,
    /// The body is the one tensor, without JSON.
    is_raw: bool,
}

const OUTPUTS: [&str; 10] = [
    "",
    "",
    r#"{"name":"OUTPUT0"}"#,
    r#"{"name":"OUTPUT0","parameters":{"binary_data":true}}"#,
    r#"{"name":"OUTPUT0","parameters":{"binary_data":false}}"#,
    r#"{"name":"OUTPUT1","parameters":{"binary_data":true}}"#,
    r#"{"name":"OUTPUT1"},{"name":"OUTPUT0","parameters":{"binary_data":true}}"#,
    r#"{"name":"OUTPUT0","parameters":{"classification":2}}"#,
    r#"{"name":"OUTPUT0","parameters":{"classification":2,"binary_data":true}}"#,
    r#"{"name":"OUTPUT9"}"#,
];

const PARAMETERS: [(&str, &str); 26] = [
    ("binary_data_output", "true"),
    ("binary_data_output", "true"),
    ("binary_data_output", "false"),
    ("priority", "1"),
    ("priority", "18446744073709551615"),
    ("priority", "-1"),
    ("timeout", "0"),
    ("timeout", "5000000"),
    ("timeout", "1.5"),
    ("sequence_id", "7"),
    ("sequence_id", "\"seven\""),
    ("sequence_id", "\"\""),
    ("sequence_start", "true"),
    ("sequence_end", "true"),
    ("sequence_end", "1"),
    ("report", "true"),
    ("report", "true"),
    ("fail", "\"as asked\""),
    ("mine", "1"),
    ("mine", "\"text\""),
    ("mine", "true"),
    ("mine", "-5"),
    ("mine", "2.25"),
    ("other", "\"\\u00e9\\n\""),
    ("triton_enable_empty_final_response", "true"),
    ("headers", "{}"),
];

const HEADERS: [(&str, &str); 20] = [
    ("Accept", "*/*"),
    ("Accept", "application/json"),
    ("accept", "*/*"),
    ("User-Agent", "a"),
    ("User-Agent", "b"),
    ("Content-Type", "application/json"),
    ("Content-Type", "application/octet-stream"),
    ("Accept-Encoding", "gzip"),
    ("Accept-Encoding", "deflate"),
    ("Accept-Encoding", "identity"),
    ("Content-Encoding", "identity"),
    ("Content-Encoding", "unknown"),
    ("Connection", "keep-alive"),
    ("x-key", "open"),
    ("X-Key", "shut"),
    ("fwd-a", "1"),
    ("fwd-a", "2"),
    ("Fwd-B", "x"),
    ("x-request-timing", "true"),
    ("Expect", ""),
];

/// Those that change answers.
const TELLING_HEADERS: [(&str, &str); 4] = [
    ("Accept-Encoding", "gzip"),
    ("Accept-Encoding", "deflate"),
    ("x-request-timing", "true"),
    ("Content-Encoding", "gzip"),
];

impl Kind {
    fn new(random: &mut Random, traffic: &Traffic<'_>, client: usize) -> Kind {
        let (model, inputs) = models::model(random, client, traffic.echoes);
        let is_binary = random.below(3) > 0;
        let tensors = inputs.into_iter().map(|input| Tensor { input, is_binary }).collect();
        let mut kind = Kind {
            method: "POST",
            path: path(random, &model),
            headers: vec![("Host".into(), "test".into()), (KEY.0.into(), KEY.1.into())],
            lengths_at: 1,
            length_name: "Content-Length",
            json_length_name: "Inference-Header-Content-Length",
            is_chunked: false,
            id: [Id::None, Id::First, Id::Last][random.below(3)],
            tensors,
            outputs: String::new(),
            parameters: Vec::new(),
            extra: "",
            is_raw: false,
        };
        if is_binary && random.below(2) == 0 {
            kind.parameters.push(("binary_data_output", "true"));
        }
        if kind.path.contains("/echo/") && random.below(3) > 0 {
            kind.parameters.push(("report", "true"));
            let forwarded = [("fwd-a", "1"), ("fwd-a", "2"), ("Fwd-B", "x")][random.below(3)];
            kind.headers.push((forwarded.0.into(), forwarded.1.into()));
        }
        for _ in 0..random.below(6).saturating_sub(3) {
            kind.change(random, traffic, client);
        }
        kind
    }

    /// Nothing special, for the client's own model.
    fn usual(client: usize) -> Kind {
        let input = Input { name: "INPUT0".into(), datatype: "INT32", shape: vec![2] };
        Kind {
            method: "POST",
            path: format!("/v2/models/{}/infer", models::own(client)),
            headers: vec![("Host".into(), "test".into()), (KEY.0.into(), KEY.1.into())],
            lengths_at: 1,
            length_name: "Content-Length",
            json_length_name: "Inference-Header-Content-Length",
            is_chunked: false,
            id: Id::First,
            tensors: vec![Tensor { input, is_binary: true }],
            outputs: String::new(),
            parameters: Vec::new(),
            extra: "",
            is_raw: false,
        }
    }

    /// One thing becomes different.
    fn change(&mut self, random: &mut Random, traffic: &Traffic<'_>, client: usize) {
        match random.below(20) {
            0 => {
                let (model, _) = models::model(random, client, traffic.echoes);
                self.path = path(random, &model);
            }
            1 => {
                let model = self.path.split('/').nth(3).unwrap_or_default().to_owned();
                self.path = path(random, &model);
            }
            2..=5 => {
                let mut inputs: Vec<Input> = self.tensors.iter().map(|tensor| tensor.input.clone()).collect();
                models::change_inputs(random, &mut inputs);
                let is_binary = self.tensors.first().is_some_and(|tensor| tensor.is_binary);
                self.tensors = inputs.into_iter().map(|input| Tensor { input, is_binary }).collect();
            }
            6 => {
                let at = random.below(self.tensors.len().max(1));
                if let Some(tensor) = self.tensors.get_mut(at) {
                    tensor.is_binary ^= true;
                }
            }
            7 | 8 => self.outputs = OUTPUTS[random.below(OUTPUTS.len())].into(),
            9 | 10 => self.parameters.push(PARAMETERS[random.below(PARAMETERS.len())]),
            11 => drop(self.parameters.pop()),
            12 | 13 => {
                let headers = if random.below(2) == 0 { &HEADERS[..] } else { &TELLING_HEADERS };
                let (name, value) = headers[random.below(headers.len())];
                self.headers.push((name.into(), value.into()));
            }
            14 => {
                let at = random.below(self.headers.len());
                drop(self.headers.remove(at));
                if self.headers.is_empty() {
                    self.headers.push(("Host".into(), "other".into()));
                }
            }
            15 => self.id = [Id::None, Id::First, Id::Last][random.below(3)],
            16 => {
                self.length_name = ["Content-Length", "content-length", "CONTENT-LENGTH"][random.below(3)];
                self.json_length_name =
                    ["Inference-Header-Content-Length", "inference-header-content-length"][random.below(2)];
            }
            17 => self.lengths_at = random.below(self.headers.len() + 1),
            18 => match random.below(3) {
                0 => self.is_chunked ^= true,
                1 => self.is_raw ^= true,
                _ => self.method = ["POST", "POST", "PUT", "GET"][random.below(4)],
            },
            _ => {
                self.extra = ["", "", r#""unknown":[1,{"id":"x"}],"#, r#""id":"twice","#, " ", r#""outputs":[],"#]
                    [random.below(6)]
            }
        }
    }

    /// A request of the kind, and what it does to its connection.
    fn request(&self, random: &mut Random) -> Vec<u8> {
        let mut tail = Vec::new();
        let mut json = Vec::new();
        json.extend_from_slice(b"{");
        json.extend_from_slice(self.extra.as_bytes());
        if self.id == Id::First {
            put_id(random, &mut json);
            json.extend_from_slice(b",");
        }
        json.extend_from_slice(b"\"inputs\":[");
        for (at, tensor) in self.tensors.iter().enumerate() {
            if at > 0 {
                json.push(b',');
            }
            let mut tensor = tensor.clone();
            // Requests with one head are longer than a server takes in JSON and as a tensor, in JSON only, or not.
            if tensor.input.shape == [models::LONG] {
                tensor.input.shape = vec![[models::LONG, 370, 7][random.below(3)]];
            }
            if tensor.input.shape == [2, 2] {
                tensor.input.shape = [vec![2, 2], vec![1, 4], vec![4, 1]][random.below(3)].clone();
            }
            put_tensor(random, &tensor, &mut json, &mut tail);
        }
        json.push(b']');
        if !self.outputs.is_empty() {
            json.extend_from_slice(format!(",\"outputs\":[{}]", self.outputs).as_bytes());
        }
        if !self.parameters.is_empty() {
            let members: Vec<String> =
                self.parameters.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            json.extend_from_slice(format!(",\"parameters\":{{{}}}", members.join(",")).as_bytes());
        }
        if self.id == Id::Last {
            json.push(b',');
            put_id(random, &mut json);
        }
        json.push(b'}');
        if self.is_raw {
            json.clear();
        }
        let mut json_length = json.len().to_string();
        let mut has_json_length = !tail.is_empty() || self.is_raw;
        if random.below(12) == 0 {
            wound(random, &mut json, &mut tail, &mut json_length, &mut has_json_length);
        }
        let body = [json, tail].concat();
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for at in 0..=self.headers.len() {
            if at == self.lengths_at.min(self.headers.len()) {
                if has_json_length {
                    let _ = write!(head, "{}: {json_length}\r\n", self.json_length_name);
                }
                let _ = match self.is_chunked {
                    true => write!(head, "Transfer-Encoding: chunked\r\n"),
                    false => write!(head, "{}: {}\r\n", self.length_name, body.len()),
                };
            }
            if let Some((name, value)) = self.headers.get(at) {
                let _ = write!(head, "{name}: {value}\r\n");
            }
        }
        head.push_str("\r\n");
        let mut request = head.into_bytes();
        if !self.is_chunked {
            request.extend_from_slice(&body);
            return request;
        }
        for chunk in body.chunks(1 + random.below(400)) {
            request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            request.extend_from_slice(chunk);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        request
    }
}

fn path(random: &mut Random, model: &str) -> String {
    let version = models::version(random);
    let version = if version.is_empty() { String::new() } else { format!("/versions/{version}") };
    let query = ["", "", "", "?a=1"][random.below(4)];
    format!("/v2/models/{model}{version}/infer{query}")
}

fn put_id(random: &mut Random, json: &mut Vec<u8>) {
    json.extend_from_slice(b"\"id\":\"");
    match random.below(16) {
        0 => {}
        1 => json.extend_from_slice("é".as_bytes()),
        2 => json.extend_from_slice(&[b'x'; 300]),
        3 => json.extend_from_slice(b"\\u0041\\n"),
        4 => json.push([1, 0x7f, 0x80, 0xff, b'"', b'\\'][random.below(6)]),
        5 => json.extend_from_slice(br#"x","id":"y"#),
        _ => json.extend_from_slice(random.below(100_000).to_string().as_bytes()),
    }
    json.push(b'"');
}

fn put_tensor(random: &mut Random, tensor: &Tensor, json: &mut Vec<u8>, tail: &mut Vec<u8>) {
    let Input { name, datatype, shape } = &tensor.input;
    json.extend_from_slice(
        format!("{{\"name\":\"{name}\",\"datatype\":\"{datatype}\",\"shape\":{shape:?},").as_bytes(),
    );
    if tensor.is_binary {
        let contents = models::contents(random, &tensor.input);
        json.extend_from_slice(format!("\"parameters\":{{\"binary_data_size\":{}}}}}", contents.len()).as_bytes());
        return tail.extend_from_slice(&contents);
    }
    let count = models::elements(shape);
    let element = |random: &mut Random| match (random.below(60), *datatype) {
        (0, _) => ["1e400", "300", "-1", "1.5", "\"x\"", "true", "null", "[1]", "nan"][random.below(9)].to_owned(),
        (_, "BOOL") => ["true", "false"][random.below(2)].to_owned(),
        (_, "BYTES") => format!("\"{}\"", random.below(1000)),
        (_, "FP64") => format!("{}.{:09}", random.below(100), random.below(1_000_000_000)),
        (_, "FP16" | "FP32") => format!("{}.{}", random.below(100), random.below(100)),
        _ => random.below(200).to_string(),
    };
    let elements: Vec<String> = (0..count).map(|_| element(random)).collect();
    json.extend_from_slice(format!("\"data\":[{}]}}", elements.join(",")).as_bytes());
}

/// Something is wrong with this one.
fn wound(
    random: &mut Random,
    json: &mut Vec<u8>,
    tail: &mut Vec<u8>,
    json_length: &mut String,
    has_json_length: &mut bool,
) {
    match random.below(12) {
        0 => tail.push(0),
        1 | 2 => drop(tail.pop()),
        3 => tail.clear(),
        4 => *has_json_length ^= true,
        5 => *json_length = format!("00{json_length}"),
        6 => json.push([b'}', b' ', b'x', 0][random.below(4)]),
        7 => {
            let at = random.below(json.len().max(1));
            json.truncate(at);
        }
        8 => {
            let at = random.below(json.len().max(1));
            if let Some(byte) = json.get_mut(at) {
                *byte = random.byte();
            }
        }
        _ => {
            *has_json_length = true;
            let len = json.len();
            *json_length = [
                "0".into(),
                "-1".into(),
                "x".into(),
                String::new(),
                "123456789".into(),
                "99999999999".into(),
                (len + 1).to_string(),
                len.saturating_sub(1).to_string(),
                format!("+{len}"),
                format!("{len}, {len}"),
            ][random.below(10)]
            .clone();
        }
    }
}

/// An answer, but for times.
#[derive(Clone, PartialEq)]
struct Answered {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl std::fmt::Debug for Answered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, self.body.escape_ascii())
    }
}

fn answer(peer: &mut Peer) -> Result<Answered, String> {
    let answer = peer.try_answer()?;
    let mut headers = answer.headers;
    for (name, value) in &mut headers {
        if name.eq_ignore_ascii_case("server-timing") {
            value.retain(|letter| !letter.is_ascii_digit());
        }
    }
    Ok(Answered { status: answer.status, headers, body: answer.body })
}

impl Answered {
    fn closes(&self) -> bool {
        let is_close = |value: &str| value.eq_ignore_ascii_case("close");
        self.headers.iter().any(|(name, value)| name.eq_ignore_ascii_case("connection") && is_close(value))
    }
}

/// Sends that many requests to both servers and compares what comes.
pub fn run(traffic: &Traffic<'_>, client: usize, requests: usize) {
    let mut random = traffic.random(client);
    let connect = || {
        Both::of(|is_cached| {
            Peer::connect(if is_cached { traffic.servers.cached.http } else { traffic.servers.plain.http })
        })
    };
    let mut peers = connect();
    let mut kinds: Vec<Kind> = (0..KINDS).map(|_| Kind::new(&mut random, traffic, client)).collect();
    let (mut sent, mut current) = (0, 0);
    let mut is_traced = false;
    assert!(models::trace_own(traffic, client, is_traced));
    for step in 0.. {
        if sent >= requests {
            break;
        }
        // What chance seldom brings: a known head and text for a model that is then traced.
        match step {
            3 | 6 => assert!(models::trace_own(traffic, client, step == 3)),
            _ => {}
        }
        if step < 6 {
            (kinds[0], current) = (Kind::usual(client), 0);
        }
        // One client of the protocol does: while it does, nobody's requests are recognised.
        if client == 0 && random.below(if is_traced { 3 } else { 30 }) == 0 {
            is_traced ^= models::trace_own(traffic, client, !is_traced);
            current = kinds.iter().position(|kind| kind.path.contains("/own_")).unwrap_or(current);
        }
        match random.below(120) {
            0..=3 => models::reload(traffic, &mut random, client),
            7..=9 => peers = connect(),
            4..=6 if client == 0 => models::switch_tracing(traffic, &mut random),
            _ => {}
        }
        let mut batch = Vec::new();
        for _ in 0..1 + random.below(PIPELINED) {
            match random.below(80) {
                _ if step < 6 => {}
                0..=2 => kinds[current] = Kind::new(&mut random, traffic, client),
                // Nearly the same as before.
                3..=5 => {
                    let mut next = kinds[current].clone();
                    next.change(&mut random, traffic, client);
                    current = random.below(KINDS);
                    kinds[current] = next;
                }
                6..=18 => current = random.below(KINDS),
                _ => {}
            }
            batch.push(kinds[current].request(&mut random));
        }
        let bytes = batch.concat();
        let cut = random.below(3 * bytes.len()).min(bytes.len());
        peers.each(|peer| {
            // A connection that has ended says so when its answers are read.
            let _ = peer.try_send(&bytes[..cut]) && (cut == bytes.len() || peer.try_send(&bytes[cut..]));
        });
        for (at, request) in batch.iter().enumerate() {
            let answers = peers.each(answer);
            let number = sent;
            sent += 1;
            let about = || {
                let before: Vec<String> =
                    batch[..at].iter().map(|request| request.escape_ascii().to_string()).collect();
                format!(
                    "seed {}, client {client}, HTTP request {number}: {}\nbefore it: {before:#?}",
                    traffic.seed,
                    request.escape_ascii()
                )
            };
            match answers.same(about) {
                Ok(answer) => {
                    traffic.note(answer.status == 200);
                    if !answer.closes() {
                        continue;
                    }
                }
                Err(_) => traffic.note(false),
            }
            peers = connect();
            break;
        }
    }
}
