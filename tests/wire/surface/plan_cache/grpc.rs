//! Clients of gRPC: calls and streams with repeated or similar heads and messages, frame by frame.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use nereid_protocol::hpack::{Decoder, Field};
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use prost::Message;

use super::models::{self, Input};
use super::{Both, GRPC_KEY, HTTP_CLIENTS, KEY, Traffic};
use nereid_test_support::grpc::{SERVICE, frame_bytes};
use nereid_test_support::http2::{END_HEADERS, END_STREAM, RawPeer, fields, frame, kind};
use nereid_test_support::random::Random;

const KINDS: usize = 6;
/// Calls that a client opens before it reads their answers, and requests of a stream.
const CALLS: usize = 10;
const MESSAGES: usize = 12;
const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;
/// An indexed field of HPACK's dynamic table: of what was put there last.
const LAST_INDEXED: u8 = 0x80 | 62;
/// Fields of the table that clients name.
const INDEXED_MAX: usize = 4;

/// What calls of a kind have in common.
#[derive(Clone, Debug)]
struct Kind {
    metadata: Vec<(&'static str, &'static str)>,
    /// This one goes through the table that header blocks share.
    indexed: Option<(&'static str, &'static str)>,
    model: String,
    version: &'static str,
    has_id: bool,
    inputs: Vec<Input>,
    outputs: Vec<(&'static str, i64)>,
    parameters: Vec<(&'static str, ParameterChoice)>,
    /// Contents stand in the inputs.
    is_typed: bool,
    is_packed: bool,
    /// Fields in another order than that of their numbers.
    is_shuffled: bool,
}

const METADATA: [(&str, &str); 12] = [
    ("user-agent", "a"),
    ("user-agent", "b"),
    ("grpc-accept-encoding", "gzip"),
    ("grpc-accept-encoding", "identity,deflate"),
    ("grpc-timeout", "100S"),
    ("grpc-timeout", "wrong"),
    ("fwd-a", "1"),
    ("fwd-a", "2"),
    ("fwd-b", "x"),
    ("x-request-timing", "true"),
    (GRPC_KEY, "shut"),
    ("content-type", "text/plain"),
];

fn parameter(random: &mut Random) -> (&'static str, ParameterChoice) {
    use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param};
    let all = [
        ("priority", Int64Param(1)),
        ("priority", Uint64Param(1)),
        ("priority", StringParam("1".into())),
        ("timeout", Int64Param(5_000_000)),
        ("timeout", Int64Param(-1)),
        ("sequence_id", Int64Param(7)),
        ("sequence_id", StringParam("seven".into())),
        ("sequence_start", BoolParam(true)),
        ("sequence_end", BoolParam(true)),
        ("sequence_end", Int64Param(1)),
        ("report", BoolParam(true)),
        ("report", BoolParam(true)),
        ("fail", StringParam("as asked".into())),
        ("mine", Int64Param(1)),
        ("mine", StringParam("text".into())),
        ("mine", DoubleParam(2.25)),
        ("triton_enable_empty_final_response", BoolParam(true)),
        ("triton_unknown", BoolParam(true)),
        ("headers", StringParam("x".into())),
        ("nereid_timing", BoolParam(true)),
    ];
    all[random.below(all.len())].clone()
}

impl Kind {
    fn new(random: &mut Random, traffic: &Traffic<'_>, client: usize) -> Kind {
        let (model, inputs) = models::model(random, client, traffic.echoes);
        let mut kind = Kind {
            metadata: vec![(GRPC_KEY, KEY.1)],
            indexed: [Some(("fwd-c", "c")), Some(("fwd-c", "d"))].get(random.below(6)).copied().flatten(),
            model,
            version: models::version(random),
            has_id: random.below(3) > 0,
            inputs,
            outputs: Vec::new(),
            parameters: Vec::new(),
            is_typed: false,
            is_packed: false,
            is_shuffled: false,
        };
        if kind.model == "echo" && random.below(3) > 0 {
            kind.parameters.push(("report", ParameterChoice::BoolParam(true)));
            kind.metadata.push([("fwd-a", "1"), ("fwd-a", "2"), ("fwd-b", "x")][random.below(3)]);
        }
        if random.below(4) == 0 {
            kind.metadata.push(("grpc-accept-encoding", "gzip"));
        }
        for _ in 0..random.below(6).saturating_sub(3) {
            kind.change(random, traffic, client);
        }
        kind
    }

    /// Nothing special, for the client's own model.
    fn usual(client: usize) -> Kind {
        Kind {
            metadata: vec![(GRPC_KEY, KEY.1)],
            indexed: None,
            model: models::own(client),
            version: "",
            has_id: true,
            inputs: vec![Input { name: "INPUT0".into(), datatype: "INT32", shape: vec![2] }],
            outputs: Vec::new(),
            parameters: Vec::new(),
            is_typed: false,
            is_packed: false,
            is_shuffled: false,
        }
    }

    /// One thing becomes different.
    fn change(&mut self, random: &mut Random, traffic: &Traffic<'_>, client: usize) {
        match random.below(20) {
            0 | 1 => self.model = models::model(random, client, traffic.echoes).0,
            2 | 3 => self.version = models::version(random),
            4..=7 => models::change_inputs(random, &mut self.inputs),
            8 => self.outputs.push((["OUTPUT0", "OUTPUT0", "OUTPUT1", "OUTPUT9"][random.below(4)], 0)),
            9 => self.outputs.push(("OUTPUT0", 2)),
            10 => drop(self.outputs.pop()),
            11 | 12 => self.parameters.push(parameter(random)),
            13 => drop(self.parameters.pop()),
            14 => self.metadata.push(METADATA[random.below(METADATA.len())]),
            15 => drop(self.metadata.pop()),
            16 => {
                let (key, fwd) = ((GRPC_KEY, KEY.1), ("fwd-c", "c"));
                self.indexed =
                    [None, Some(key), Some((GRPC_KEY, "shut")), Some(fwd), Some(("fwd-c", "d"))][random.below(5)];
            }
            17 => self.is_typed ^= true,
            18 => self.has_id ^= true,
            _ => match random.below(2) {
                0 => self.is_packed ^= true,
                _ => self.is_shuffled ^= true,
            },
        }
    }

    /// The header block of a call. `indexed`: what stands in the connection's table, the last one first.
    fn block(&self, random: &mut Random, path: &str, indexed: &mut Vec<(&'static str, &'static str)>) -> Vec<u8> {
        let mut block = Vec::new();
        if random.below(60) == 0 {
            // The table is emptied.
            block.extend([0x20, 0x3f, 0xe1, 0x1f]);
            indexed.clear();
        }
        let mut all = vec![(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "t")];
        if self.metadata.iter().all(|(name, _)| *name != "content-type") {
            all.push(("content-type", "application/grpc"));
        }
        all.push(("te", "trailers"));
        if self.is_packed {
            all.push(("grpc-encoding", "gzip"));
        }
        all.extend(&self.metadata);
        block.extend(fields(&all));
        if let Some((name, value)) = self.indexed {
            let known = indexed.iter().take(INDEXED_MAX).rposition(|field| *field == (name, value));
            if let Some(at) = known.filter(|_| random.below(4) > 0) {
                block.push(LAST_INDEXED + at as u8);
            } else {
                block.extend([0x40, name.len() as u8]);
                block.extend(name.as_bytes());
                block.push(value.len() as u8);
                block.extend(value.as_bytes());
                indexed.insert(0, (name, value));
            }
        }
        block
    }

    /// A message with its prefix.
    fn message(&self, random: &mut Random) -> Bytes {
        let parameters = |list: &[(&str, ParameterChoice)]| -> BTreeMap<String, InferParameter> {
            let of = |(name, choice): &(&str, ParameterChoice)| {
                ((*name).to_owned(), InferParameter { parameter_choice: Some(choice.clone()) })
            };
            list.iter().map(of).collect()
        };
        let mut request = ModelInferRequest {
            model_name: self.model.clone(),
            model_version: self.version.to_owned(),
            id: if self.has_id { id(random) } else { String::new() },
            parameters: parameters(&self.parameters),
            ..Default::default()
        };
        for input in &self.inputs {
            let contents = models::contents(random, input);
            let mut tensor = InferInputTensor {
                name: input.name.clone(),
                datatype: input.datatype.to_owned(),
                shape: input.shape.clone(),
                ..Default::default()
            };
            match self.is_typed {
                true => tensor.contents = Some(typed(input.datatype, &contents)),
                false => request.raw_input_contents.push(contents.into()),
            }
            request.inputs.push(tensor);
        }
        let outputs = self.outputs.iter().map(|(name, classes)| InferRequestedOutputTensor {
            name: (*name).to_owned(),
            parameters: match *classes {
                0 => BTreeMap::new(),
                classes => parameters(&[("classification", ParameterChoice::Int64Param(classes))]),
            },
        });
        request.outputs = outputs.collect();
        let mut flag = 0;
        if random.below(12) == 0 {
            wound(random, &mut request);
        }
        let mut bytes = match self.is_shuffled {
            true => {
                let raw = std::mem::take(&mut request.raw_input_contents);
                let raw = ModelInferRequest { raw_input_contents: raw, ..Default::default() };
                [raw.encode_to_vec(), request.encode_to_vec()].concat()
            }
            false => request.encode_to_vec(),
        };
        match random.below(150) {
            0 => drop(bytes.pop()),
            // A field that nobody knows, and one that is given twice.
            1 => bytes.extend([0x50, 1]),
            2 => bytes.extend(b"\x0a\x05plain"),
            3 => {
                if let Some(at) = bytes.windows(2).position(|pair| pair == b"\x1a\x03") {
                    bytes[at + 2] = 0xff;
                }
            }
            _ => {}
        }
        if self.is_packed && random.below(4) > 0 {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&bytes).expect("pack");
            bytes = encoder.finish().expect("pack");
            flag = 1;
        }
        frame_bytes(flag, &bytes)
    }
}

fn id(random: &mut Random) -> String {
    match random.below(12) {
        0 => "é\"\\\n".to_owned(),
        1 => "x".repeat(300),
        2 => String::new(),
        _ => random.below(1000).to_string(),
    }
}

/// Contents as numbers, where the protocol has a field for them.
fn typed(datatype: &str, contents: &[u8]) -> InferTensorContents {
    let mut typed = InferTensorContents::default();
    let fours = || contents.as_chunks::<4>().0.iter().copied();
    let eights = || contents.as_chunks::<8>().0.iter().copied();
    match datatype {
        "BOOL" => typed.bool_contents = contents.iter().map(|byte| *byte != 0).collect(),
        "INT32" => typed.int_contents = fours().map(i32::from_le_bytes).collect(),
        "INT64" => typed.int64_contents = eights().map(i64::from_le_bytes).collect(),
        "UINT8" => typed.uint_contents = contents.iter().map(|byte| u32::from(*byte)).collect(),
        "UINT32" => typed.uint_contents = fours().map(u32::from_le_bytes).collect(),
        "FP32" => typed.fp32_contents = fours().map(f32::from_le_bytes).collect(),
        "FP64" => typed.fp64_contents = eights().map(f64::from_le_bytes).collect(),
        _ => typed.bytes_contents = contents.chunks(8).map(Bytes::copy_from_slice).collect(),
    }
    typed
}

/// Something is wrong with this one.
fn wound(random: &mut Random, request: &mut ModelInferRequest) {
    let raw = &mut request.raw_input_contents;
    match random.below(6) {
        0 => drop(raw.pop()),
        1 => raw.push(Bytes::from_static(b"more")),
        2 => raw.clear(),
        3 => raw.reverse(),
        4 => {
            let numbers = InferTensorContents { int_contents: vec![1], ..Default::default() };
            request.inputs.iter_mut().for_each(|input| input.contents = Some(numbers.clone()));
        }
        _ => {
            if let Some(last) = raw.last_mut() {
                let len = last.len();
                *last =
                    if random.below(2) == 0 { last.slice(..len.saturating_sub(1)) } else { vec![1; len + 1].into() };
            }
        }
    }
}

/// What came for a call: each list of headers, the data, and the code of a reset.
#[derive(Clone, Default, PartialEq)]
struct Answered {
    heads: Vec<Vec<(String, String)>>,
    data: Vec<u8>,
    reset: Option<u32>,
}

impl std::fmt::Debug for Answered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {} {:?}", self.heads, self.data.escape_ascii(), self.reset)
    }
}

impl Answered {
    fn went_well(&self) -> bool {
        self.heads.last().is_some_and(|head| head.iter().any(|field| *field == ("grpc-status".into(), "0".into())))
    }
}

impl Answered {
    /// The stream of a broken message ends at once: which answers left before that is a matter of time.
    fn without_race(mut self) -> Answered {
        if !self.went_well() {
            self.data.clear();
            self.heads.drain(..self.heads.len().saturating_sub(1));
            self.heads.iter_mut().for_each(|head| head.retain(|(name, _)| name.starts_with("grpc-")));
        }
        self
    }
}

/// One connection, with what its two ends share.
struct Connection {
    peer: RawPeer,
    decoder: Decoder,
}

impl Connection {
    fn open(traffic: &Traffic<'_>, is_cached: bool) -> Connection {
        let servers = traffic.servers;
        let server = if is_cached { &servers.cached } else { &servers.plain };
        let mut peer = RawPeer::greet(server.grpc, &[(SETTINGS_INITIAL_WINDOW_SIZE, 8 << 20)]);
        peer.send(&frame(kind::WINDOW_UPDATE, 0, 0, &0x7000_0000u32.to_be_bytes()));
        Connection { peer, decoder: Decoder::new() }
    }

    /// Reads until all of these streams have ended, or the connection has.
    fn answers(&mut self, streams: &[u32]) -> (Vec<Answered>, bool) {
        let mut answers: HashMap<u32, Answered> = HashMap::new();
        let mut ended = HashSet::new();
        while ended.len() < streams.len() {
            let Some(frame) = self.peer.next() else { break };
            if !streams.contains(&frame.stream) {
                // What is left of a stream that was reset still changes the table.
                if frame.kind == kind::HEADERS {
                    self.head(&frame.payload);
                }
                continue;
            }
            let mut ends = frame.has(END_STREAM);
            match frame.kind {
                kind::HEADERS => {
                    assert!(frame.has(END_HEADERS), "a head in pieces");
                    let head = self.head(&frame.payload);
                    answers.entry(frame.stream).or_default().heads.push(head);
                }
                kind::DATA => answers.entry(frame.stream).or_default().data.extend(&frame.payload),
                kind::RST_STREAM => {
                    // One behind the end says that the rest of the request is not wanted.
                    let answer = answers.entry(frame.stream).or_default();
                    ends = !ended.contains(&frame.stream);
                    answer.reset = ends.then(|| frame.number(0));
                }
                _ => ends = false,
            }
            if ends {
                ended.insert(frame.stream);
            }
        }
        (streams.iter().map(|stream| answers.remove(stream).unwrap_or_default()).collect(), ended.len() < streams.len())
    }

    fn head(&mut self, block: &[u8]) -> Vec<(String, String)> {
        let mut head = Vec::new();
        let mut take = |field: Field<'_>| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (name, mut value) = (text(field.name), text(field.value));
            if name == "server-timing" {
                value.retain(|letter| !letter.is_ascii_digit());
            }
            head.push((name, value));
        };
        self.decoder.decode(block, &mut take).expect("a header block of the server");
        head
    }
}

/// What a client sends for one call.
struct Asked {
    text: String,
    requests: usize,
    is_stream: bool,
}

/// Sends that many requests to both servers and compares what comes.
pub fn run(traffic: &Traffic<'_>, client: usize, requests: usize) {
    let mut random = traffic.random(client);
    let mut connections = Both::of(|is_cached| Connection::open(traffic, is_cached));
    let (mut stream, mut indexed) = (1, Vec::new());
    let mut kinds: Vec<Kind> = (0..KINDS).map(|_| Kind::new(&mut random, traffic, client)).collect();
    let (mut sent, mut current) = (0, 0);
    let mut reconnects = false;
    let mut is_traced = false;
    assert!(models::trace_own(traffic, client, is_traced));
    for step in 0.. {
        if sent >= requests {
            break;
        }
        // What chance seldom brings: a known form of a model that gets another version by default, then is traced.
        match step {
            3 => models::add_version(traffic, client),
            6 | 9 => assert!(models::trace_own(traffic, client, step == 6)),
            _ => {}
        }
        if step < 9 {
            (kinds[0], current) = (Kind::usual(client), 0);
        }
        // One client of the protocol does: while it does, nobody's requests are recognised.
        if client == HTTP_CLIENTS && random.below(if is_traced { 3 } else { 30 }) == 0 {
            is_traced ^= models::trace_own(traffic, client, !is_traced);
            current = kinds.iter().position(|kind| models::is_own(&kind.model)).unwrap_or(current);
        }
        match random.below(120) {
            0..=3 => models::reload(traffic, &mut random, client),
            4..=6 => reconnects = true,
            _ => {}
        }
        if std::mem::take(&mut reconnects) {
            connections = Both::of(|is_cached| Connection::open(traffic, is_cached));
            (stream, indexed) = (1, Vec::new());
        }
        let (mut bytes, mut asked, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..1 + random.below(CALLS) {
            let mut next = |random: &mut Random| {
                match random.below(80) {
                    _ if step < 9 => {}
                    0..=2 => kinds[current] = Kind::new(random, traffic, client),
                    3..=5 => {
                        let mut next = kinds[current].clone();
                        next.change(random, traffic, client);
                        current = random.below(KINDS);
                        kinds[current] = next;
                    }
                    6..=18 => current = random.below(KINDS),
                    _ => {}
                }
                kinds[current].clone()
            };
            let kind = next(&mut random);
            let is_stream = step >= 9 && random.below(8) == 0;
            let (rpc, count) = if is_stream { ("ModelStreamInfer", random.below(MESSAGES)) } else { ("ModelInfer", 1) };
            let path = format!("{SERVICE}{rpc}");
            bytes.extend(frame(kind::HEADERS, END_HEADERS, stream, &kind.block(&mut random, &path, &mut indexed)));
            let mut text = format!("{path} {:?} {:?}", kind.metadata, kind.indexed);
            let mut messages = Vec::new();
            for at in 0..count {
                // Whether messages are packed stands in the head of the call.
                let kind = if at == 0 { kind.clone() } else { Kind { is_packed: kind.is_packed, ..next(&mut random) } };
                messages.extend(kind.message(&mut random));
                text += &format!("\n    {kind:?}");
            }
            put_data(&mut random, stream, &messages, &mut bytes);
            asked.push(Asked { text, requests: count, is_stream });
            streams.push(stream);
            stream += 2;
        }
        connections.each(|connection| connection.peer.try_send(&bytes));
        let Both { cached, plain } = connections.each(|connection| connection.answers(&streams));
        let ended = Both { cached: cached.1, plain: plain.1 };
        let pairs = cached.0.into_iter().zip(plain.0);
        for ((cached, plain), asked) in pairs.zip(&asked) {
            let about = || format!("seed {}, client {client}, gRPC request {sent}: {}", traffic.seed, asked.text);
            let mut both = Both { cached, plain };
            if asked.is_stream {
                both = both.each(|answered| std::mem::take(answered).without_race());
            }
            let answered = both.same(about);
            (0..asked.requests).for_each(|_| traffic.note(answered.went_well()));
            sent += asked.requests;
        }
        reconnects = ended.same(|| "whether the connection ended".to_owned());
    }
}

/// The messages of a call in one frame or several, and the end of its request.
fn put_data(random: &mut Random, stream: u32, messages: &[u8], bytes: &mut Vec<u8>) {
    let (mut rest, cuts) = (messages, [1, 2].get(random.below(10)).copied().unwrap_or(0));
    for _ in 0..cuts {
        let (piece, behind) = rest.split_at(random.below(rest.len() + 1));
        bytes.extend(frame(kind::DATA, 0, stream, piece));
        rest = behind;
    }
    if random.below(6) == 0 {
        bytes.extend(frame(kind::DATA, 0, stream, rest));
        rest = b"";
    }
    bytes.extend(frame(kind::DATA, END_STREAM, stream, rest));
}
