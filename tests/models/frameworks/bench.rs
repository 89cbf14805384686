//! A server with models of frameworks, and a client of it.

use std::time::Instant;

use serde_json::Value;

use super::reference::{assert_close, quarters};
use super::table::{Framework, ModelKind, Runtime};
use super::tensors::{Client, Form, Tensor};
use crate::python_backend::models::interpreter;
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::is_large_runtime_wanted;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

pub const EXPLICIT: &str = "--model-control-mode=explicit";

pub struct Bench {
    pub server: Server,
    pub client: Client,
    metrics: Peer,
}

/// The flags that lead a server to the runtime; `None`, after a visible note, if it does not run here.
pub fn flags(framework: &Framework) -> Option<Vec<String>> {
    match framework.runtime {
        Runtime::Native => Some(Vec::new()),
        Runtime::Interpreter => Some(vec![format!("--backend-config=python,interpreter={}", interpreter()?.display())]),
        Runtime::Library { name, is_large: true, .. } if !is_large_runtime_wanted(name) => None,
        Runtime::Library { name, requirements, .. } => {
            let packages = Python::with(requirements)?.packages();
            Some(vec![format!("--backend-config={name},library={}", packages.display())])
        }
    }
}

impl Bench {
    /// A server that can run models of these frameworks; `None`, after a visible note, if one of them cannot run
    /// here.
    pub fn start(frameworks: &[&Framework], repository: &Repository, more: &[&str]) -> Option<Bench> {
        let mut all: Vec<String> = more.iter().map(|flag| (*flag).to_owned()).collect();
        for framework in frameworks {
            all.extend(flags(framework)?);
        }
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let probe = if more.contains(&EXPLICIT) { "/v2/health/live" } else { "/v2/health/ready" };
        let server = Server::start_with(usual(), repository.path(), &all, probe);
        let client = Client::connect(server.http, server.grpc);
        let metrics = Peer::connect(server.metrics);
        Some(Bench { server, client, metrics })
    }

    /// Sends rows to a model like `network` and compares what comes back.
    #[track_caller]
    pub fn check_rows(&mut self, framework: &Framework, form: Form, model: &str, rows: usize, seed: usize) {
        check_rows(&mut self.client, framework, form, model, rows, seed);
    }

    pub fn get(&mut self, path: &str) -> Value {
        let answer = self.client.http.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub fn load(&mut self, model: &str) -> Answer {
        self.client.http.post(&format!("/v2/repository/models/{model}/load"), &[], b"{}")
    }

    #[track_caller]
    pub fn must_load(&mut self, model: &str) {
        let answer = self.load(model);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "load {model}");
    }

    /// Unloads, and waits until nothing of the model is left.
    pub fn unload(&mut self, model: &str) {
        let answer = self.client.http.post(&format!("/v2/repository/models/{model}/unload"), &[], b"{}");
        assert_eq!(answer.status, 200, "unload {model}: {}", answer.text());
        let started = Instant::now();
        while !self.is_unloaded(model) {
            assert!(started.elapsed() < PATIENCE, "{model} is never unloaded:\n{}", self.server.log());
            std::thread::yield_now();
        }
    }

    fn is_unloaded(&mut self, model: &str) -> bool {
        let index = self.client.http.post("/v2/repository/index", &[], b"{}").json();
        let rows = index.as_array().expect("an index");
        let mut of_model = rows.iter().filter(|row| row["name"] == model);
        of_model.all(|row| row["state"].is_null() || (row["state"] == "UNAVAILABLE" && row["reason"] == "unloaded"))
    }

    pub fn statistics(&mut self, model: &str) -> Value {
        self.get(&format!("/v2/models/{model}/stats"))["model_stats"][0].clone()
    }

    /// How often which batch size was executed.
    pub fn batches(&mut self, model: &str) -> Vec<(u64, u64)> {
        let statistics = self.statistics(model);
        let batches = statistics["batch_stats"].as_array().cloned().unwrap_or_default();
        batches.iter().map(|it| (number(&it["batch_size"]), number(&it["compute_infer"]["count"]))).collect()
    }

    /// The model's sample of a family whose labels contain `label`.
    pub fn metric(&mut self, family: &str, model: &str, label: &str) -> Option<u64> {
        let (start, model) = (format!("{family}{{"), format!("model=\"{model}\""));
        let page = self.metrics.get("/metrics").text();
        let is_it = |line: &&str| line.starts_with(&start) && line.contains(&model) && line.contains(label);
        page.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse().ok())
    }

    pub fn wait_for_metric(&mut self, family: &str, model: &str, label: &str, value: u64) {
        let started = Instant::now();
        loop {
            let found = self.metric(family, model, label);
            if found == Some(value) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{family} {model} {label} is {found:?}, not {value}");
            std::thread::yield_now();
        }
    }

    /// Ends the server, which must be in order.
    pub fn stop(self) {
        self.server.stop();
    }
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The input of a model like `network`.
pub fn rows_of(framework: &Framework, rows: usize, seed: usize) -> Tensor {
    let columns = framework.function.inputs();
    Tensor::floats(&framework.input(0), &[rows as i64, columns as i64], &quarters(rows * columns, seed))
}

/// Compares the outputs for [`rows_of`] the same rows.
#[track_caller]
pub fn assert_rows(framework: &Framework, outputs: &[Tensor], rows: usize, seed: usize, what: &str) {
    let expected = framework.function.of(&quarters(rows * framework.function.inputs(), seed));
    let [output] = outputs else { panic!("{what}: {outputs:?}") };
    assert_eq!(output.name, framework.output(0), "{what}");
    assert_eq!(output.shape, [rows as i64, framework.function.outputs() as i64], "{what}");
    assert_close(&output.as_floats(), &expected, what);
}

#[track_caller]
pub fn check_rows(client: &mut Client, framework: &Framework, form: Form, model: &str, rows: usize, seed: usize) {
    let what = format!("{model}, {rows} rows, {form:?}");
    let outputs = client.infer(form, model, &[rows_of(framework, rows, seed)], &[]);
    assert_rows(framework, &outputs.unwrap_or_else(|refusal| panic!("{what}: {refusal:?}")), rows, seed, &what);
}

/// A repository with one model of the framework, under the name that [`Framework::model`] gives.
pub fn repository_of(framework: &Framework, kinds: &[ModelKind], more: &str) -> Option<Repository> {
    let repository = Repository::new();
    for kind in kinds {
        super::files::add(&repository, framework, *kind, &framework.model(*kind), more)?;
    }
    Some(repository)
}
