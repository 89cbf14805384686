//! The servers that get the same requests: ours in every variant, and the official one.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use nereid_test_support::http::Peer;
use nereid_test_support::original::original;
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::steadily::steadily;
use nereid_test_support::variant::{self, each, usual};

/// A server under test.
pub struct Asked<'a> {
    pub server: &'a Server,
    pub is_ours: bool,
}

/// Runs `test` against our server in every variant, and then against the official one, each started anew.
pub fn everywhere(repository: &Path, flags: &[&str], test: impl Fn(&Asked<'_>)) {
    everywhere_in(&[], repository, flags, "/v2/health/ready", test);
}

/// The same, where the servers have more environment variables than the test, and answer `probe` when they are up.
pub fn everywhere_in(
    environment: &[(&str, &str)],
    repository: &Path,
    flags: &[&str],
    probe: &str,
    test: impl Fn(&Asked<'_>),
) {
    each(&variant::ALL, |variant| {
        let server = Server::start_in(variant, repository, flags, probe, environment);
        test(&Asked { server: &server, is_ours: true });
        server.stop();
    });
    let Some(words) = original() else { return };
    println!("--- the official server");
    let variables = environment.iter().map(|(name, value)| format!("{name}={value}"));
    let words: Vec<String> = std::iter::once("env".to_owned()).chain(variables).chain(words).collect();
    steadily(|| {
        let server = Server::start_under(&words, usual(), repository, flags, probe);
        test(&Asked { server: &server, is_ours: false });
    });
}

impl Asked<'_> {
    fn who(&self) -> &'static str {
        if self.is_ours { "ours" } else { "the official server" }
    }

    pub fn peer(&self) -> Peer {
        Peer::connect(self.server.http)
    }

    /// What a model answers to a request in JSON: its outputs as `{name: [shape, data]}`, or the status and text of its
    /// refusal.
    pub fn infer(&self, model: &str, body: &Value) -> Value {
        let path = format!("/v2/models/{model}/infer");
        let answer = self.peer().post(&path, &[], body.to_string().as_bytes());
        if answer.status != 200 {
            return json!([answer.status, answer.error()]);
        }
        let answer = answer.json();
        let outputs = answer["outputs"].as_array().cloned().unwrap_or_default();
        outputs
            .into_iter()
            .map(|output| (output["name"].as_str().unwrap_or("?").to_owned(), json!([output["shape"], output["data"]])))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    pub fn statistics(&self, model: &str) -> Value {
        self.peer().get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
    }

    /// Asks for the statistics until `fact` holds of them.
    pub fn statistics_until(&self, model: &str, fact: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let found = self.statistics(model);
            if fact(&found) {
                return found;
            }
            // What tells most comes first: whoever summarizes a failure may cut the text off.
            let (who, responses) = (self.who(), &found["response_stats"]);
            assert!(started.elapsed() < PATIENCE, "{who}, '{model}': response_stats {responses}, of {found}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Successes, failures, items, executions of a model.
    pub fn counts(&self, model: &str) -> [u64; 4] {
        let found = self.statistics(model);
        let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
        let inference = &found["inference_stats"];
        [
            number(&inference["success"]["count"]),
            number(&inference["fail"]["count"]),
            number(&found["inference_count"]),
            number(&found["execution_count"]),
        ]
    }

    /// Waits until a model's counts are as expected: a backend may answer before it counts.
    pub fn wait_for_counts(&self, model: &str, are_expected: impl Fn([u64; 4]) -> bool) {
        let started = Instant::now();
        loop {
            let counts = self.counts(model);
            if are_expected(counts) {
                return;
            }
            let who = self.who();
            assert!(
                started.elapsed() < PATIENCE,
                "{who}, '{model}': successes, failures, items, executions: {counts:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
