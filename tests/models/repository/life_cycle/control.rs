//! A repository, a server on it, and the requests that tests of the life cycle send.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nereid_wire::inference::model_repository_parameter::ParameterChoice;
use nereid_wire::inference::{
    ModelRepositoryParameter, RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
};
use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::grpc::{Grpc, Status};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::Variant;

pub const EXPLICIT: &str = "--model-control-mode=explicit";
pub const POLL: &str = "--model-control-mode=poll";
pub const EVERY_SECOND: &str = "--repository-poll-secs=1";

/// A server and what it is asked through.
pub struct Life {
    pub server: Server,
    http: Peer,
}

/// One row of the index; what is absent is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub name: String,
    pub version: String,
    pub state: String,
    pub reason: String,
}

impl Life {
    /// Starts in a mode, with the C identity's directory of backends, and waits until the server is live. None, after
    /// a visible skip, without a C compiler.
    pub fn start(variant: Variant, repository: &Repository, flags: &[&str]) -> Option<Life> {
        Life::start_under(&[], variant, repository, flags)
    }

    /// The same on a server that other words start, see [`Server::start_under`].
    pub fn start_under(words: &[String], variant: Variant, repository: &Repository, flags: &[&str]) -> Option<Life> {
        let directory = format!("--backend-directory={}", backend::directory()?.display());
        let mut all = vec![directory.as_str()];
        all.extend(flags);
        let server = Server::start_under(words, variant, repository.path(), &all, "/v2/health/live");
        let http = Peer::connect(server.http);
        Some(Life { server, http })
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.http.get(path)
    }

    pub fn post(&mut self, path: &str, body: &str) -> Answer {
        self.http.post(path, &[], body.as_bytes())
    }

    pub fn load(&mut self, model: &str) -> Answer {
        self.post(&format!("/v2/repository/models/{model}/load"), "")
    }

    pub fn load_with(&mut self, model: &str, parameters: Value) -> Answer {
        self.post(&format!("/v2/repository/models/{model}/load"), &json!({ "parameters": parameters }).to_string())
    }

    pub fn unload(&mut self, model: &str) -> Answer {
        self.post(&format!("/v2/repository/models/{model}/unload"), "")
    }

    /// Loads, and fails the test unless that is granted.
    pub fn must_load(&mut self, model: &str) {
        let answer = self.load(model);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "load {model}");
    }

    pub fn must_load_with(&mut self, model: &str, parameters: Value) {
        let answer = self.load_with(model, parameters);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "load {model} with parameters");
    }

    pub fn must_unload(&mut self, model: &str) {
        let answer = self.unload(model);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "unload {model}");
    }

    /// The index, sorted.
    pub fn index(&mut self) -> Vec<Row> {
        let answer = self.post("/v2/repository/index", "");
        assert_eq!(answer.status, 200, "index: {}", answer.text());
        rows(&answer.json())
    }

    /// The rows of one model as `version:state:reason`, sorted by version.
    pub fn rows_of(&mut self, model: &str) -> Vec<String> {
        let mut rows: Vec<Row> = self.index().into_iter().filter(|row| row.name == model).collect();
        rows.sort_by_key(|row| row.version.parse::<i64>().unwrap_or(-1));
        rows.iter().map(|row| format!("{}:{}:{}", row.version, row.state, row.reason)).collect()
    }

    /// Asks for the index until a model's rows are these: an event that a test can wait for.
    pub fn wait_for_rows(&mut self, model: &str, wanted: &[&str]) {
        self.wait_until(&format!("rows of {model} as {wanted:?}"), |life| life.rows_of(model) == wanted);
    }

    pub fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&mut Life) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            let index = self.index();
            assert!(started.elapsed() < PATIENCE, "{what} never comes; index: {index:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn is_ready(&mut self, model: &str) -> bool {
        self.get(&format!("/v2/models/{model}/ready")).status == 200
    }

    /// The versions that serve, as the metadata tells them, sorted.
    pub fn versions(&mut self, model: &str) -> Vec<String> {
        let answer = self.get(&format!("/v2/models/{model}"));
        if answer.status != 200 {
            return Vec::new();
        }
        let mut versions: Vec<String> = serde_json::from_value(answer.json()["versions"].clone()).expect("versions");
        versions.sort_by_key(|version| version.parse::<i64>().ok());
        versions
    }

    pub fn config(&mut self, model: &str) -> Value {
        let answer = self.get(&format!("/v2/models/{model}/config"));
        assert_eq!(answer.status, 200, "config of {model}: {}", answer.text());
        answer.json()
    }

    /// The parameter `generation` of the configuration that serves: which of several configs it is.
    pub fn generation(&mut self, model: &str) -> String {
        self.config(model)["parameters"]["generation"]["string_value"].as_str().unwrap_or("none").to_string()
    }

    /// Whether this generation serves; false while none does.
    pub fn serves(&mut self, model: &str, generation: &str) -> bool {
        let answer = self.get(&format!("/v2/models/{model}/config"));
        answer.status == 200 && answer.json()["parameters"]["generation"]["string_value"] == generation
    }

    /// One request of one INT32; the answer says which version served.
    pub fn infer(&mut self, model: &str) -> Answer {
        self.post(&format!("/v2/models/{model}/infer"), BODY)
    }

    pub fn served_by(&mut self, model: &str) -> String {
        let answer = self.infer(model);
        assert_eq!(answer.status, 200, "infer {model}: {}", answer.text());
        answer.json()["model_version"].as_str().expect("a version").to_string()
    }
}

pub const BODY: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;

pub fn rows(index: &Value) -> Vec<Row> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_string();
    let listed = index.as_array().unwrap_or_else(|| panic!("no index: {index}")).iter();
    let mut rows: Vec<Row> = listed
        .map(|row| Row {
            name: text(row, "name"),
            version: text(row, "version"),
            state: text(row, "state"),
            reason: text(row, "reason"),
        })
        .collect();
    rows.sort();
    rows
}

/// The config of an INT32 identity on the C backend.
pub fn config(model: &str, more: &str) -> String {
    identity_config("copycat", model, 0, &[Pair::new("INT32", "-1")], more)
}

/// `parameters` with one string.
pub fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
}

/// The config that [`Life::generation`] recognises.
pub fn generation(model: &str, generation: &str) -> String {
    config(model, &parameter("generation", generation))
}

/// The same as JSON, for an override.
pub fn generation_json(generation: &str, more: Value) -> String {
    let mut config = json!({
        "backend": "copycat",
        "input": [{ "name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1] }],
        "output": [{ "name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1] }],
        "instance_group": [{ "kind": "KIND_CPU", "count": 1 }],
        "parameters": { "generation": { "string_value": generation } },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config.to_string()
}

/// Sets a path's time of modification to so many seconds from now: no test depends on how fine the clock is.
pub fn touch(repository: &Repository, path: &str, seconds_from_now: i64) {
    let now = SystemTime::now();
    let distance = Duration::from_secs(seconds_from_now.unsigned_abs());
    let time = if seconds_from_now < 0 { now - distance } else { now + distance };
    set_time(&repository.path().join(path), time);
}

pub fn set_time(path: &Path, time: SystemTime) {
    let file = File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    file.set_modified(time).unwrap_or_else(|error| panic!("{path:?}: {error}"));
}

/// Makes everything under `path` an hour old.
pub fn make_old(path: &Path) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a directory").flatten() {
            make_old(&entry.path());
        }
    }
    set_time(path, SystemTime::now() - Duration::from_secs(3600));
}

/// Load over gRPC.
pub fn grpc_load(
    grpc: &mut Grpc,
    repository: &str,
    model: &str,
    parameters: &[(&str, ParameterChoice)],
) -> Result<(), Status> {
    let request = RepositoryModelLoadRequest {
        repository_name: repository.into(),
        model_name: model.into(),
        parameters: choices(parameters).collect(),
    };
    grpc.call::<RepositoryModelLoadResponse>("RepositoryModelLoad", &request).map(drop)
}

/// Unload over gRPC.
pub fn grpc_unload(
    grpc: &mut Grpc,
    repository: &str,
    model: &str,
    parameters: &[(&str, ParameterChoice)],
) -> Result<(), Status> {
    let request = RepositoryModelUnloadRequest {
        repository_name: repository.into(),
        model_name: model.into(),
        parameters: choices(parameters).collect(),
    };
    grpc.call::<RepositoryModelUnloadResponse>("RepositoryModelUnload", &request).map(drop)
}

fn choices(parameters: &[(&str, ParameterChoice)]) -> impl Iterator<Item = (String, ModelRepositoryParameter)> {
    parameters
        .iter()
        .map(|(key, choice)| (key.to_string(), ModelRepositoryParameter { parameter_choice: Some(choice.clone()) }))
}
