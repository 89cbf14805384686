//! A server with OpenAI's port, a folder with the tokenizer's configuration, and requests to it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::events::events_of;
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::paths;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, free_port};
use nereid_test_support::variant::{Variant, is_second_run, usual};

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
pub const EMBEDDINGS: &str = "/v1/embeddings";

/// A template for string content. It shows the tools, the calls and who speaks; the models find their commands in it.
pub const TEMPLATE: &str = "{{ bos_token }}{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
     {% for message in messages %}<{{ message['role'] }}>{{ message['content'] if message['content'] else '' }}\
     {% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}</{{ message['role'] }}>\
     {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// A folder for `--tokenizer`, removed when it is dropped.
pub struct Tokenizer(Repository);

impl Tokenizer {
    pub fn new() -> Tokenizer {
        Tokenizer::with(&json!({
            "chat_template": TEMPLATE,
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": false, "normalized": false},
            "model_max_length": 4096,
        }))
    }

    pub fn with(configuration: &Value) -> Tokenizer {
        let folder = Repository::new();
        folder.file("tokenizer_config.json", configuration.to_string());
        Tokenizer(folder)
    }

    /// Writes another file into it.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        self.0.file(name, text);
        self.0.path().join(name)
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    pub fn flag(&self) -> String {
        format!("--tokenizer={}", self.0.path().display())
    }
}

/// Mock models of tests/python_models in a repository, each by its folder's name.
pub fn repository(models: &[&str]) -> Repository {
    let repository = Repository::new();
    models.iter().for_each(|model| add(&repository, model, model));
    repository
}

/// Adds the mock model `source` of tests/python_models under the name `name`.
pub fn add(repository: &Repository, source: &str, name: &str) {
    copy(&mocks().join(source), &repository.path().join(name));
    share_mocks(&repository.path().join(name).join("1"));
}

/// The folder of a backend named `vllm` whose script is that of openai_mock, and the flag that names it.
pub fn vllm_backend() -> (Repository, String) {
    let folder = Repository::new();
    copy(&mocks().join("openai_mock/1"), &folder.path().join("vllm"));
    let flag = format!("--backend-directory={}", folder.path().display());
    (folder, flag)
}

fn mocks() -> PathBuf {
    paths::root().join("tests/python_models")
}

/// All mocks import what stands beside the script of openai_mock.
fn share_mocks(version: &Path) {
    for file in ["mock_language.py", "mock_model.py"] {
        if !version.join(file).exists() {
            copy(&mocks().join("openai_mock/1").join(file), &version.join(file));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-rL").args([from, to]).output().expect("cp");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
}

/// A repository of one small model that is none of a language.
pub fn plain_repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// True in the second run of this binary: what does not depend on the engine runs once.
pub fn has_run() -> bool {
    is_second_run()
}

pub struct Frontend {
    pub server: Server,
    pub address: SocketAddr,
}

impl Frontend {
    /// A server with that repository; `None`, after a visible skip, where there is no interpreter with numpy for it.
    pub fn start(repository: &Repository, flags: &[&str]) -> Option<Frontend> {
        Frontend::start_as(usual(), repository, flags)
    }

    pub fn start_as(variant: Variant, repository: &Repository, flags: &[&str]) -> Option<Frontend> {
        let interpreter = Python::get()?.interpreter();
        let interpreter = format!("--backend-config=python,interpreter={}", interpreter.display());
        Some(Frontend::start_without_python(variant, repository, &[&[interpreter.as_str()], flags].concat()))
    }

    pub fn start_without_python(variant: Variant, repository: &Repository, flags: &[&str]) -> Frontend {
        Frontend::start_with(variant, repository, flags, "/v2/health/ready")
    }

    /// Waits for 200 from `probe` of the HTTP port.
    pub fn start_with(variant: Variant, repository: &Repository, flags: &[&str], probe: &str) -> Frontend {
        let port = free_port();
        let own = [format!("--openai-port={port}"), "--openai-address=127.0.0.1".to_owned()];
        let flags: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let server = Server::start_with(variant, repository.path(), &flags, probe);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        server.wait_until("OpenAI's port takes connections", || Peer::try_connect(address).is_ok());
        Frontend { server, address }
    }

    pub fn peer(&self) -> Peer {
        Peer::connect(self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.peer().get(path)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.peer().post(path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// The answer of status 200, as JSON.
    pub fn asked(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        answer.json()
    }

    /// The `detail` of a refusal with that status.
    pub fn refused(&self, status: u16, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        answer.json()["detail"].clone()
    }

    /// The events of a stream that begins with status 200, without `[DONE]`, which must be the last.
    pub fn streamed(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let answer = self.post(path, &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
        events_of(&answer.text())
    }

    /// A stream whose events are read as they come.
    pub fn open(&self, path: &str, body: &Value) -> Peer {
        let mut body = body.clone();
        body["stream"] = true.into();
        let mut peer = self.peer();
        peer.send(&request("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes()));
        peer
    }

    /// The text of a completion of `model` for this prompt.
    pub fn says(&self, model: &str, prompt: &str) -> String {
        let answer = self.asked(COMPLETIONS, &completion(model, prompt));
        answer["choices"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// Waits until the request that was named `key` in its prompt is in this state in the model.
    pub fn wait_for_state(&self, model: &str, key: &str, state: &str) {
        self.server.wait_until(&format!("request {key} is {state}"), || {
            self.says(model, &format!("<<state {key}>>")) == state
        });
    }

    pub fn stop(self) -> String {
        self.server.stop()
    }
}

pub fn completion(model: &str, prompt: &str) -> Value {
    json!({"model": model, "prompt": prompt})
}

pub fn chat(model: &str, text: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": text}]})
}

/// `body` with these members as well.
pub fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}
