//! The models to which clients send requests, those that they reload, and the parts of such requests.

use super::{Both, Traffic};
use nereid_test_support::http::Peer;
use nereid_test_support::random::Random;
use nereid_test_support::repository::{Pair, Repository};

/// An input of a request, as the model wants it or otherwise.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: String,
    pub datatype: &'static str,
    pub shape: Vec<i64>,
}

/// A model as clients know it: its name and inputs with the shapes that they send.
struct Known {
    name: &'static str,
    inputs: &'static [(&'static str, &'static [i64])],
}

/// Elements of a tensor that is longer in JSON than some servers take.
pub const LONG: i64 = 700;

const MODELS: [Known; 10] = [
    Known { name: "plain", inputs: &[("INT32", &[2])] },
    Known { name: "twin", inputs: &[("FP32", &[2])] },
    Known { name: "pair", inputs: &[("INT32", &[1]), ("INT32", &[1])] },
    Known { name: "batch", inputs: &[("FP32", &[1, 4])] },
    Known { name: "text", inputs: &[("BYTES", &[2])] },
    Known { name: "small", inputs: &[("UINT8", &[3]), ("BOOL", &[2]), ("FP16", &[1])] },
    Known { name: "label", inputs: &[("FP32", &[4])] },
    Known { name: "shaped", inputs: &[("INT64", &[2, 2])] },
    Known { name: "large", inputs: &[("FP64", &[LONG])] },
    Known { name: "echo", inputs: &[("INT32", &[1])] },
];

pub const DATATYPES: [&str; 9] = ["INT32", "FP32", "INT64", "UINT8", "BOOL", "FP16", "FP64", "BYTES", "UINT32"];
const ALL_VERSIONS: &str = "version_policy { all { } }";
/// What a reloaded model becomes.
const RELOADED: [&str; 6] = ["INT32", "INT32", "INT32", "FP32", "UINT8", "INT64"];

pub fn repository(clients: usize, echoes: bool) -> Repository {
    let repository = Repository::new();
    let one = |datatype, dims| [Pair::new(datatype, dims)];
    repository.identity("plain", 0, &one("INT32", "-1"));
    repository
        .identity_of("identity", "twin", 0, &one("FP32", "-1"), ALL_VERSIONS)
        .version("twin", "2")
        .version("twin", "3");
    repository.identity("pair", 0, &[Pair::new("INT32", "1"), Pair::new("INT32", "1").optional()]);
    repository.identity("batch", 8, &one("FP32", "4"));
    repository.identity("text", 0, &one("BYTES", "-1"));
    repository.identity("small", 0, &[Pair::new("UINT8", "-1"), Pair::new("BOOL", "-1"), Pair::new("FP16", "-1")]);
    repository.identity("label", 0, &[Pair::new("FP32", "4").labels()]).file("label/labels.txt", "a\nb\nc\nd\n");
    repository.identity("shaped", 0, &one("INT64", "-1, -1"));
    repository.identity("large", 0, &one("FP64", "-1"));
    if echoes {
        repository.identity_of("copycat", "echo", 0, &one("INT32", "1"), "");
    }
    for client in 0..clients {
        repository.identity_of("identity", &own(client), 0, &one("INT32", "-1"), ALL_VERSIONS);
    }
    repository
}

/// The model that only this client changes.
pub fn own(client: usize) -> String {
    format!("own_{client}")
}

pub fn is_own(name: &str) -> bool {
    name.starts_with("own_")
}

/// A model's name and inputs that it may like.
pub fn model(random: &mut Random, client: usize, echoes: bool) -> (String, Vec<Input>) {
    let choice = random.below(MODELS.len() + 4);
    let (name, inputs): (String, Vec<(&'static str, Vec<i64>)>) = match MODELS.get(choice) {
        Some(known) if known.name != "echo" || echoes => {
            (known.name.into(), known.inputs.iter().map(|(datatype, shape)| (*datatype, shape.to_vec())).collect())
        }
        _ if choice == MODELS.len() && random.below(3) == 0 => ("absent".into(), vec![("INT32", vec![1])]),
        _ => (own(client), vec![(RELOADED[random.below(RELOADED.len())], vec![2])]),
    };
    let named = inputs.into_iter().enumerate();
    let inputs = named.map(|(at, (datatype, shape))| Input { name: format!("INPUT{at}"), datatype, shape });
    (name, inputs.collect())
}

/// A version as requests name it, empty for none.
pub fn version(random: &mut Random) -> &'static str {
    ["2", "3", "4", "01", "x"].get(random.below(60)).copied().unwrap_or(["", "1"][random.below(2)])
}

/// Bytes of an element of fixed size.
pub fn element_size(datatype: &str) -> usize {
    match datatype {
        "UINT8" | "BOOL" => 1,
        "FP16" => 2,
        "INT32" | "FP32" | "UINT32" => 4,
        _ => 8,
    }
}

/// Elements of a shape; a wrong one has none.
pub fn elements(shape: &[i64]) -> usize {
    let product = shape.iter().try_fold(1usize, |product, dim| {
        usize::try_from(*dim).ok().and_then(|dim| product.checked_mul(dim)).filter(|product| *product <= 4096)
    });
    product.unwrap_or(0)
}

/// Contents of a tensor.
pub fn contents(random: &mut Random, input: &Input) -> Vec<u8> {
    let count = elements(&input.shape);
    match input.datatype {
        "BYTES" => {
            let mut bytes = Vec::new();
            for _ in 0..count {
                let len = [4, 4, 4, 0, 9][random.below(5)];
                bytes.extend([len, 0, 0, 0]);
                bytes.extend((0..len).map(|_| b'a' + random.byte() % 26));
            }
            bytes
        }
        "BOOL" => (0..count).map(|_| random.byte() & 1).collect(),
        // No NaN: numbers come back in JSON too.
        "FP16" | "FP32" | "FP64" => vec![random.byte() & 0x3f; count * element_size(input.datatype)],
        datatype => random.bytes(count * element_size(datatype)),
    }
}

/// One thing about the inputs becomes different.
pub fn change_inputs(random: &mut Random, inputs: &mut Vec<Input>) {
    let at = random.below(inputs.len().max(1));
    let Some(input) = inputs.get_mut(at) else {
        return inputs.push(Input { name: "INPUT0".into(), datatype: "INT32", shape: vec![1] });
    };
    match random.below(8) {
        0 => input.datatype = DATATYPES[random.below(DATATYPES.len())],
        1 => input.shape.push(1),
        2 => drop(input.shape.pop()),
        3 => input.name = ["INPUT0", "INPUT1", "INPUT2", "INPUT00", "", "é"][random.below(6)].into(),
        4 => drop(inputs.remove(at)),
        5 => {
            let copy = input.clone();
            inputs.push(Input { name: ["INPUT0", "INPUT1"][random.below(2)].into(), ..copy });
        }
        _ => {
            let value = [0, 1, 2, 3, 5, -1, 20][random.below(7)];
            if let Some(dim) = input.shape.first_mut() {
                *dim = value;
            }
        }
    }
}

/// Gives the client's own model a second version.
pub fn add_version(traffic: &Traffic<'_>, client: usize) {
    traffic.repository.version(&own(client), "2");
    post(traffic, &format!("/v2/repository/models/{}/load", own(client)), b"");
}

/// Reloads, unloads or gives another version to the client's own model on both servers.
pub fn reload(traffic: &Traffic<'_>, random: &mut Random, client: usize) {
    let name = own(client);
    let action = match random.below(12) {
        0 => "unload",
        1..=3 => {
            traffic.repository.version(&name, "2");
            "load"
        }
        4 | 5 => {
            let _ = std::fs::remove_dir(traffic.repository.path().join(&name).join("2"));
            "load"
        }
        _ => {
            let datatype = RELOADED[random.below(RELOADED.len())];
            let pair = [Pair::new(datatype, ["-1", "-1", "2", "3"][random.below(4)])];
            // With all of its versions, the first one stays where a second becomes the one that serves by default.
            let policy = ["", ALL_VERSIONS, ALL_VERSIONS][random.below(3)];
            traffic.repository.identity_of("identity", &name, 0, &pair, policy);
            "load"
        }
    };
    post(traffic, &format!("/v2/repository/models/{name}/{action}"), b"");
}

/// Has every request for the client's own model traced on both servers, or none. False if that model is not loaded.
pub fn trace_own(traffic: &Traffic<'_>, client: usize, is_on: bool) -> bool {
    let level = if is_on { "TIMESTAMPS" } else { "OFF" };
    let setting = format!("{{\"trace_level\":[\"{level}\"],\"trace_rate\":\"1\"}}");
    let path = format!("/v2/models/{}/trace/setting", own(client));
    let Both { cached, plain } = traffic.servers;
    let statuses = [cached, plain].map(|server| Peer::connect(server.http).post(&path, &[], setting.as_bytes()).status);
    assert_eq!(statuses[0], statuses[1], "{path}");
    statuses[0] == 200
}

/// Turns tracing on or off for all models of both servers but those of clients.
pub fn switch_tracing(traffic: &Traffic<'_>, random: &mut Random) {
    let level = if random.below(6) == 0 { "TIMESTAMPS" } else { "OFF" };
    post(traffic, "/v2/trace/setting", format!("{{\"trace_level\":[\"{level}\"]}}").as_bytes());
}

fn post(traffic: &Traffic<'_>, path: &str, body: &[u8]) {
    let Both { cached, plain } = traffic.servers;
    for server in [cached, plain] {
        let answer = Peer::connect(server.http).post(path, &[], body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
}
