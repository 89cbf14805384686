//! Asks every model once, before and after the chaos.

use serde_json::{Value, json};

use super::models::{STEADY, VOLATILE};
use super::site::Site;
use super::tally::{Tally, count};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::server::Server;

pub fn post(server: &Server, path: &str, body: &Value) -> Answer {
    Peer::connect(server.http).post(path, &[], body.to_string().as_bytes())
}

/// Loads a model; whether that worked.
pub fn load(server: &Server, model: &str) -> bool {
    post(server, &format!("/v2/repository/models/{model}/load"), &json!({})).status == 200
}

pub fn unload(server: &Server, model: &str) {
    post(server, &format!("/v2/repository/models/{model}/unload"), &json!({}));
}

/// Waits until every model gives the right answer. What was asked is counted, because the server counts it, too.
pub fn wait_until_all_serve(site: &Site, tally: &mut Tally) {
    for model in STEADY.into_iter().chain(VOLATILE) {
        let mut last = String::new();
        let started = std::time::Instant::now();
        while !serves(site, model, tally, &mut last) {
            let is_late = started.elapsed() > nereid_test_support::server::PATIENCE;
            assert!(!is_late, "'{model}' does not serve after the chaos: {last}\n{}", site.log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn serves(site: &Site, model: &str, tally: &mut Tally, last: &mut String) -> bool {
    let values = [7, -8, 9];
    let tensor = |name: &str, datatype: &str, shape: Value, data: Value| json!({ "name": name, "datatype": datatype, "shape": shape, "data": data });
    let vector = |shape: Value| json!({ "inputs": [tensor("INPUT0", "INT32", shape, json!(values))] });
    let (path, body) = match model {
        "repeat" => ("generate", json!({ "IN": 7, "DELAY": 0, "WAIT": 0 })),
        "burst" => ("generate", json!({ "INPUT0": 7 })),
        "batched" | "slow" => ("infer", vector(json!([1, 3]))),
        "sums" => {
            let mut body = vector(json!([3]));
            body["parameters"] = json!({ "sequence_id": 1u64 << 62, "sequence_start": true, "sequence_end": true });
            ("infer", body)
        }
        _ => ("infer", vector(json!([3]))),
    };
    let answer = post(&site.server, &format!("/v2/models/{model}/{path}"), &body);
    count(&mut tally.asked, model, 1);
    *last = format!("{} {}", answer.status, answer.text());
    if answer.status != 200 {
        count(tally.refused.entry(model.to_owned()).or_default(), "after the chaos", 1);
        if VOLATILE.contains(&model) {
            load(&site.server, model);
        }
        return false;
    }
    let answer = answer.json();
    let outputs = answer["outputs"].as_array().into_iter().flatten();
    let given = outputs.filter(|output| output["name"] == "OUTPUT0").map(|output| output["data"].clone()).next();
    let is_right = match model {
        "repeat" => answer["OUT"] == 7,
        "burst" => answer["OUTPUT0"] == 7,
        _ => given == Some(json!(values)),
    };
    assert!(is_right, "'{model}' answers wrongly after the chaos: {answer}");
    count(&mut tally.right, model, 1);
    true
}
