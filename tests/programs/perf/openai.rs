//! Loads on a server of OpenAI's interface: what it is asked, and what the reports make of its answers.

use std::time::Duration;

use serde_json::{Value, json};

use super::program::{Reports, measured, perf};
use super::stand_in::{Asked, StandIn, chat, stream, whole};
use nereid_test_support::python::Python;

const FIRST: Duration = Duration::from_millis(40);
const NEXT: Duration = Duration::from_millis(10);
const OPENAI: [&str; 3] = ["-m", "llama", "--service-kind=openai"];

/// Five tokens, as the server's usage says.
fn talker() -> StandIn {
    StandIn::start(|_| stream(&chat(5, FIRST, NEXT, Some((7, 5)))))
}

fn run(url: &str, more: &[&str]) -> Vec<String> {
    let all = [&OPENAI[..], &["-u", url], more].concat();
    all.into_iter().map(str::to_owned).collect()
}

fn measure(url: &str, more: &[&str]) -> super::program::Outcome {
    let run = run(url, more);
    measured(&run.iter().map(String::as_str).collect::<Vec<_>>())
}

fn ms(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number")) / 1e3
}

#[test]
fn streams_are_measured_and_reported_in_every_form() {
    let (server, reports) = (talker(), Reports::new());
    let url = format!("http://{}/v1", server.url());
    let [json_path, csv, html, profile] = ["a.json", "a.csv", "a.html", "a.profile"].map(|name| reports.at(name));
    let asked = ["--streaming", "--concurrency-range=4", "--request-count=20", "--prompt-tokens=12:4", "--api-key=k3y"];
    let more = ["--output-tokens=5", "--exact-output-tokens", "--extra-inputs", "temperature:0"];
    let goals = ["--goodput=ttft:60000,itl:60000,latency:60000", "--num-prompts=20"];
    let files = ["--json", &json_path, "-f", &csv, "--html", &html, "--profile-export-file", &profile];
    let outcome = measure(&url, &[&asked[..], &more, &goals, &files].concat());
    for part in [
        "OpenAI's chats on /v1/chat/completions\n",
        "  Prompts: 20 different ones of 12 (deviation 4) words by chance\n",
        "    Request count: 20\n",
        "100 % of all requests\n",
        "    Time to first token, ms  ",
        "    Inter-token latency, ms  ",
        "    Time per output token, ms  ",
        "    Note: output tokens are those of the server's usage\n",
        "Concurrency: 4, throughput: ",
    ] {
        assert!(outcome.stdout.contains(part), "{part:?} in\n{}", outcome.stdout);
    }
    let value: Value = serde_json::from_str(&reports.read("a.json")).expect("JSON");
    let (point, generation) = (&value["points"][0], &value["points"][0]["generation"]);
    assert_eq!((&point["completed"], &point["failed"]), (&json!(20), &json!(0)), "{point}");
    assert_eq!((&generation["output_tokens"], &generation["input_tokens"]), (&json!(100), &json!(140)));
    assert_eq!(generation["counted"], json!({"by_usage": 20, "by_chunks": 0, "not": 0}));
    assert_eq!((&generation["first_token"]["count"], &generation["between_tokens"]["count"]), (&json!(20), &json!(80)));
    assert_eq!((&generation["per_token"]["count"], &generation["good"]), (&json!(20), &json!(20)));
    // The stand-in sleeps for so long at least; it sends on time, or later.
    let first = ms(&generation["first_token"]["min_us"]);
    assert!(first >= 39.9, "{first}");
    // A first token that is read late is closer to the next one: all five together are never earlier.
    let [to_first, between] = ["first_token", "between_tokens"].map(|name| ms(&generation[name]["mean_us"]));
    assert!(to_first + 4.0 * between >= 79.0, "{to_first} and {between}");
    let latency = ms(&point["latency"]["min_us"]);
    assert!(latency >= 79.0 && latency >= first, "{latency}");
    for name in ["a.json", "a.csv", "a.html", "a.profile"] {
        assert!(!reports.read(name).contains("k3y"), "{name} tells the key");
    }
    assert!(reports.read("a.csv").starts_with("Concurrency,Requests/Second,Output Tokens/Second,"));
    let profile: Value = serde_json::from_str(&reports.read("a.profile")).expect("JSON");
    assert_eq!((&profile["service_kind"], &profile["endpoint"]), (&json!("openai"), &json!("v1/chat/completions")));
    for request in profile["experiments"][0]["requests"].as_array().expect("requests") {
        assert_eq!(request["response_timestamps"].as_array().map(Vec::len), Some(6), "five texts and the end");
    }
    if let Some(python) = Python::get() {
        let said = python.run("report.py", &[&html]);
        assert!(said.contains("9 plots") && said.contains("1 details"), "{said}");
    }
    let requests = server.asked_last(20);
    for Asked { path, body, .. } in &requests {
        assert_eq!((path.as_str(), &body["model"]), ("/v1/chat/completions", &json!("llama")));
        assert_eq!((&body["stream"], &body["stream_options"]), (&json!(true), &json!({"include_usage": true})));
        assert_eq!((&body["max_tokens"], &body["min_tokens"], &body["temperature"]), (&json!(5), &json!(5), &json!(0)));
    }
    assert!(requests.iter().all(|request| request.header("Authorization") == Some("Bearer k3y")));
}

#[test]
fn the_seed_decides_what_is_asked() {
    let mut seen = Vec::new();
    for seed in ["--seed=7", "--seed=7", "--seed=8"] {
        let server = StandIn::start(|_| whole("200 OK", r#"{"choices":[{"text":"a"}]}"#));
        let more = ["--request-rate-range=50", "--request-distribution=poisson", "--request-count=30"];
        let asked = ["--endpoint-type=completions", "--prompt-tokens=20:5", "--output-tokens=9:3", "--num-prompts=30"];
        measure(&server.url(), &[&more[..], &asked, &["--shared-prefix-tokens=3", seed]].concat());
        let requests = server.asked_last(30);
        assert!(requests.iter().all(|asked| asked.path == "/v1/completions" && asked.body["stream"] == json!(false)));
        let mut bodies: Vec<String> = requests.iter().map(|asked| asked.body.to_string()).collect();
        bodies.sort();
        let prefix = |asked: &Asked| {
            let prompt = asked.body["prompt"].as_str().expect("a text").to_owned();
            prompt.split(' ').take(3).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(requests.iter().all(|asked| prefix(asked) == prefix(&requests[0])));
        seen.push(bodies);
    }
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0], seen[2]);
}

#[test]
fn what_a_server_does_not_tell_is_not_made_up() {
    let server = StandIn::start(|_| whole("200 OK", r#"{"choices":[{"message":{"content":"a"}}]}"#));
    let outcome = measure(&server.url(), &["--request-count=5", "--num-prompts=5"]);
    for part in [
        "    Output token throughput: n/a tokens/sec\n",
        "    Note: 5 answers have no count of tokens, and no token of them counts\n",
        "    Note: answers were not streamed: times of tokens are unknown\n",
    ] {
        assert!(outcome.stdout.contains(part), "{part:?} in\n{}", outcome.stdout);
    }
    let line = outcome.stdout.lines().find(|line| line.contains("Time to first token, ms")).expect("a line");
    assert_eq!(line.matches("n/a").count(), 6, "{line}");
    // Chunks are counted where there is no usage.
    let server = StandIn::start(|_| stream(&chat(3, Duration::ZERO, Duration::ZERO, None)));
    let outcome = measure(&server.url(), &["--streaming", "--no-usage", "--request-count=5", "--num-prompts=5"]);
    let note = "    Note: output tokens are chunks with text: the server reported no usage\n";
    assert!(outcome.stdout.contains(note), "{}", outcome.stdout);
    assert!(server.asked().iter().all(|asked| asked.body.get("stream_options").is_none()));
}

#[test]
fn errors_are_counted_by_status_and_text() {
    let server = StandIn::start(|asked| match asked.number % 5 {
        0 => whole("429 Too Many Requests", r#"{"error":{"message":"slow down","type":"rate"}}"#),
        1 => {
            let mut events = chat(2, Duration::ZERO, Duration::ZERO, None);
            events.truncate(4);
            events.push((Duration::ZERO, "data: {\"error\":{\"message\":\"no room\"}}\r\n\r\n".to_owned()));
            stream(&events)
        }
        2 => stream(&chat(2, Duration::ZERO, Duration::ZERO, None)[..3]),
        3 => whole("200 OK", r#"{"choices":[{"message":{"content":"a"}}]}"#),
        _ => stream(&chat(2, Duration::ZERO, Duration::ZERO, Some((1, 2)))),
    });
    let more = ["--streaming", "--request-count=25", "--num-prompts=5", "--goodput=latency:60000"];
    let outcome = perf(&run(&server.url(), &more));
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    for part in [
        "    Request count: 5\n",
        "20 % of all requests\n",
        "    5 failed: HTTP status 429: slow down\n",
        "    5 failed: an error in the stream: no room\n",
        "    5 failed: a stream that ended without [DONE] and without a finish_reason\n",
        "    5 failed: an answer that is no stream of events: its content type is 'application/json'\n",
        "  WARNING: 20 requests failed\n",
    ] {
        assert!(outcome.stdout.contains(part), "{part:?} in\n{}", outcome.stdout);
    }
}

#[test]
fn prompts_come_from_files() {
    let (server, reports) = (talker(), Reports::new());
    let lines = "{\"text_input\": \"one\"}\n{\"messages\": [{\"role\": \"system\", \"content\": \"two\"}]}\n";
    let path = reports.write("prompts.jsonl", lines);
    measure(&server.url(), &["--streaming", "--request-count=4", "--input-file", &path]);
    let mut contents: Vec<String> =
        server.asked_last(4).iter().map(|asked| asked.body["messages"][0]["content"].to_string()).collect();
    contents.sort();
    assert_eq!(contents, ["\"one\"", "\"one\"", "\"two\"", "\"two\""]);
    reports.write("prompts.jsonl", "{\"text_input\": 5}");
    let outcome = perf(&run(&server.url(), &["--input-file", &path]));
    assert_eq!(outcome.code, Some(99), "{outcome:#?}");
    assert!(outcome.stderr.contains("prompts.jsonl, line 1: 'text_input' is 5, not a text"), "{}", outcome.stderr);
    let outcome = perf(&run("127.0.0.1:1", &[]));
    assert_eq!(outcome.code, Some(99), "{outcome:#?}");
    assert!(outcome.stderr.contains("127.0.0.1:1: "), "{}", outcome.stderr);
}
