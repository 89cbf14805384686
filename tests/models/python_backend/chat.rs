//! The language model of examples/chat, trained and served: what clients of engines ask for, and that answers of many
//! at once are those of one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::quickstarted::Quickstart;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::prepared::{fingerprint, prepared, source, step};
use nereid_test_support::python::Python;
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

const WHAT: &str = "<|begin|><|user|>What is Nereid?<|end|><|assistant|>";
const ANSWER: &str = "Nereid is an inference server. It runs models and answers requests over HTTP and gRPC, and it \
                      replaces NVIDIA Triton Inference Server.";

/// The environment and the repository, trained once for each state of the example.
fn trained() -> Option<(Python, PathBuf)> {
    static MADE: OnceLock<Option<Result<(Python, PathBuf), String>>> = OnceLock::new();
    // An environment that cannot be had has said so.
    let made = MADE.get_or_init(|| Some(make(Python::with("chat.txt")?)));
    match made.as_ref()? {
        Ok(made) => Some(made.clone()),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn make(python: Python) -> Result<(Python, PathBuf), String> {
    let example = source("examples/chat");
    let mut sources = files(&example);
    sources.sort();
    let contents: Vec<Vec<u8>> = sources.iter().flat_map(fs::read).collect();
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let made = prepared(&format!("chat-models-{}", fingerprint(&contents)), |root| {
        let mut script = Command::new(python.interpreter());
        script.arg("-B").arg(example.join("make_chat.py")).arg("--into").arg(root.join("models"));
        // Not for want of anything: this must work.
        step(&mut script).unwrap_or_else(|error| panic!("the model cannot be trained: {error}"));
        Ok(())
    })?;
    Ok((python, made.join("models")))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn serve() -> Option<Server> {
    let (python, repository) = trained()?;
    let interpreter = format!("--backend-config=python,interpreter={}", python.interpreter().display());
    Some(Server::start(usual(), &repository, &[&interpreter]))
}

fn body(prompt: &str, stream: bool, sampling: &Value) -> Vec<u8> {
    let mut body = json!({
        "text_input": prompt, "stream": stream, "sampling_parameters": sampling.to_string(),
        "exclude_input_in_output": true,
    });
    for output in ["finish_reason", "logprobs", "num_input_tokens", "num_output_tokens"] {
        body[format!("return_{output}")] = true.into();
    }
    body.to_string().into_bytes()
}

/// The answer to a prompt, in one response.
fn whole(server: &Server, prompt: &str, sampling: &Value) -> Value {
    let answer = Peer::connect(server.http).post("/v2/models/chat/generate", &[], &body(prompt, false, sampling));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The responses of a stream.
fn pieces(server: &Server, prompt: &str, sampling: &Value) -> Vec<Value> {
    let path = "/v2/models/chat/generate_stream";
    let answer = Peer::connect(server.http).post(path, &[], &body(prompt, true, sampling));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    events.map(|event| serde_json::from_str(event).expect("JSON")).collect()
}

#[test]
fn the_network_is_what_was_trained() {
    let Some(python) = Python::with("chat.txt") else { return };
    let said = python.run("chat_network.py", &[&source("examples/chat").display().to_string()]);
    assert!(said.contains("are right"), "{said}");
}

#[test]
fn answers_obey_the_parameters_of_their_requests() {
    let Some(server) = serve() else { return };
    let best = json!({"temperature": 0, "max_tokens": 100});
    let answer = whole(&server, WHAT, &best);
    assert_eq!((&answer["text_output"], &answer["finish_reason"]), (&ANSWER.into(), &"stop".into()), "{answer}");

    let pieces = pieces(&server, WHAT, &best);
    let texts: String = pieces.iter().filter_map(|piece| piece["text_output"].as_str()).collect();
    assert_eq!(texts, ANSWER);
    assert_eq!(answer["num_output_tokens"], pieces.len(), "one response for each token");
    let (last, others) = pieces.split_last().expect("responses");
    assert_eq!(last["finish_reason"], "stop");
    assert!(others.iter().all(|piece| piece["finish_reason"] == "None" && piece["num_output_tokens"] == 1));

    let few = whole(&server, WHAT, &json!({"temperature": 0, "max_tokens": 3, "logprobs": 2}));
    assert_eq!((&few["num_output_tokens"], &few["finish_reason"]), (&3.into(), &"length".into()));
    let logprobs: Vec<Value> = serde_json::from_str(few["logprobs"].as_str().expect("a text")).expect("JSON");
    // With a temperature of 0 the likeliest token is chosen; the ids of others may come first in an object.
    let is_first = |one: &&Value| one["rank"] == 1;
    let chosen = logprobs.iter().map(|one| one.as_object().expect("an object").values().find(is_first));
    let chosen: String = chosen.map(|one| one.expect("a first")["decoded_token"].as_str().expect("a text")).collect();
    assert_eq!(few["text_output"], chosen);
    let stopped = whole(&server, WHAT, &json!({"temperature": 0, "max_tokens": 100, "stop": ["requests over"]}));
    assert_eq!(stopped["text_output"], "Nereid is an inference server. It runs models and answers ");
    for more in [json!({"ignore_eos": true}), json!({"min_tokens": 60})] {
        let mut sampling = json!({"temperature": 0, "max_tokens": 60});
        sampling.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        assert_eq!(whole(&server, WHAT, &sampling)["num_output_tokens"], 60, "{sampling}");
    }
    let [one, same, other] = [1, 1, 2].map(|seed| {
        whole(&server, "A story", &json!({"temperature": 1.5, "seed": seed, "max_tokens": 30}))["text_output"].clone()
    });
    assert!(one == same && one != other, "{one} {same} {other}");

    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}});
    let guide = json!({"json": schema.to_string()}).to_string();
    let guided = whole(&server, WHAT, &json!({"max_tokens": 100, "structured_outputs": guide}));
    let document: Value = serde_json::from_str(guided["text_output"].as_str().expect("a text")).expect("JSON");
    assert!(
        document["city"].is_string() && ["C", "F"].contains(&document["unit"].as_str().unwrap_or("")),
        "{document}"
    );
    server.stop();
}

#[test]
fn what_cannot_be_answered_is_refused_and_harms_no_other() {
    let Some(server) = serve() else { return };
    let mut peer = Peer::connect(server.http);
    for (prompt, sampling, error) in [
        ("a", json!({"temperature": -1}), "temperature is -1, which is no number of at least 0"),
        ("a", json!({"top_p": 2}), "top_p is 2, which is no number from 0 to 1"),
        ("a", json!({"n": 2}), "n is 2; this model gives one answer to a request"),
        ("a", json!({"lora_name": "x"}), "LoRA x is not supported: this model has no adapters"),
        (&*"word ".repeat(2000), json!({}), "this model takes fewer than 1024, the answer included"),
    ] {
        let answer = peer.post("/v2/models/chat/generate", &[], &body(prompt, false, &sampling));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.error().contains(error), "{}", answer.text());
    }
    // Clients that leave, while forty others are answered.
    let endless = body("a", true, &json!({"max_tokens": 1000, "ignore_eos": true}));
    for _ in 0..4 {
        Peer::connect(server.http).send(&request("POST", "/v2/models/chat/generate_stream", &[], &endless)).head();
    }
    let best = json!({"temperature": 0, "max_tokens": 100});
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..40).map(|_| scope.spawn(|| whole(&server, WHAT, &best))).collect();
        for client in clients {
            assert_eq!(client.join().expect("an answer")["text_output"], ANSWER);
        }
    });
    server.stop();
}

#[test]
fn quickstart_trains_the_model_and_serves_it_to_clients_of_openai() {
    let (Some(_), Some(python)) = (trained(), Python::get()) else { return };
    // Its environment is kept from run to run, as a user's is.
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quickstart-chat");
    let mut quickstart = Quickstart::start("chat", &data, &python);
    if !quickstart.is_ready() {
        let (_, text) = quickstart.end();
        assert!(text.contains("cannot be downloaded"), "{text}");
        skip(&text);
        return;
    }
    let body = json!({"model": "chat", "temperature": 0, "max_tokens": 100,
        "messages": [{"role": "user", "content": "What is Nereid?"}]});
    let mut peer = Peer::connect(([127, 0, 0, 1], quickstart.openai).into());
    let headers = [("content-type", "application/json")];
    let answer = peer.post("/v1/chat/completions", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], ANSWER, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    drop(peer);
    let openai = quickstart.openai;
    let (code, text) = quickstart.end();
    assert_eq!(code, Some(0), "{text}");
    let command = format!("curl -sN localhost:{openai}/v1/chat/completions -H 'content-type: application/json' -d '");
    for part in ["chat      answers in a conversation", &format!("OpenAI's interface on port {openai}"), &command] {
        assert!(text.contains(part), "expected {part:?} in {text}");
    }
}
