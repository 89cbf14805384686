//! Command lines of `--service-kind openai`: what they ask for, and what cannot stand in one.

use std::ffi::{OsStr, OsString};

use serde_json::json;

use super::*;
use crate::cli::perf::given::PerfCommand;
use nereid_perf::Endpoint;

fn parse(line: &str) -> Result<Given, String> {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match PerfCommand::parse(&words) {
        Ok(PerfCommand::Measure(given)) => Ok(*given),
        Ok(other) => panic!("{line}: {other:?}"),
        Err(mistake) => Err(mistake.to_string()),
    }
}

fn given(line: &str) -> Given {
    parse(&format!("-m x --service openai {line}")).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn plan(line: &str) -> Plan {
    let given = given(line);
    let target = given.target().expect("a target");
    given.plan(target, &nereid_perf::ModelInfo::default(), 4).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn asked(line: &str) -> OpenAi {
    plan(&format!("--num-prompts 2 {line}")).service.openai().expect("OpenAI's").clone()
}

fn value(raw: &str) -> Value<'_> {
    Value { flag: "--x".into(), raw: OsStr::new(raw) }
}

#[test]
fn urls_and_routes_make_the_path() {
    for (line, endpoint, path, interface) in [
        ("", "localhost:9000", "/v1/chat/completions", Interface::Chat),
        ("-u h:1", "h:1", "/v1/chat/completions", Interface::Chat),
        ("-u http://h:1/", "h:1", "/v1/chat/completions", Interface::Chat),
        ("-u http://h:1/v1", "h:1", "/v1/chat/completions", Interface::Chat),
        ("-u https://h/a/v1/", "h:443", "/a/v1/chat/completions", Interface::Chat),
        ("-u h/v1 --endpoint-type completions", "h:9000", "/v1/completions", Interface::Completions),
        ("--endpoint-type completions", "localhost:9000", "/v1/completions", Interface::Completions),
        ("--endpoint v1/completions", "localhost:9000", "/v1/completions", Interface::Completions),
        ("--endpoint /openai/chat/completions", "localhost:9000", "/openai/chat/completions", Interface::Chat),
        ("--endpoint generate --endpoint-type completions", "localhost:9000", "/generate", Interface::Completions),
        ("-u unix:/a/b", "unix:/a/b", "/v1/chat/completions", Interface::Chat),
    ] {
        let found = plan(&format!("--num-prompts 2 {line}"));
        let openai = found.service.openai().expect("OpenAI's");
        assert_eq!(found.target.endpoint.to_string(), endpoint, "{line}");
        assert_eq!((openai.path.as_str(), openai.interface), (path, interface), "{line}");
    }
    assert!(plan("--num-prompts 2 -u https://h/v1").target.tls.is_some());
}

#[test]
fn plans_say_what_was_asked() {
    let openai = asked("");
    let source = PromptSource::Synthetic { length: Length { mean: 550, deviation: 0 }, count: 2 };
    assert_eq!((openai.prompts, openai.streaming, openai.output), (Prompts { source, shared_prefix: 0 }, false, None));
    let openai = asked("--streaming --prompt-tokens 9:3 --shared-prefix-tokens 4 --output-tokens 7:2 --no-usage");
    let source = PromptSource::Synthetic { length: Length { mean: 9, deviation: 3 }, count: 2 };
    assert_eq!(openai.prompts, Prompts { source, shared_prefix: 4 });
    assert_eq!((openai.output, openai.asks_usage), (Some(Length { mean: 7, deviation: 2 }), false));
    let found = plan("--num-prompts 3 --extra-inputs a:1 --extra-inputs b:c:d --extra-inputs {\"e\":[2]}");
    assert_eq!(found.work.streams[0].len(), 3);
    let body: Json = serde_json::from_slice(found.work.streams[0][0].body.as_ref().expect("a body")).expect("JSON");
    assert_eq!((&body["a"], &body["b"], &body["e"]), (&json!(1), &json!("c:d"), &json!([2])));
    assert_eq!((&body["model"], &body["stream"]), (&json!("x"), &json!(false)));
    assert!(!found.server_statistics);
    let timeout = |line: &str| plan(line).client.request_timeout.as_millis();
    assert_eq!((timeout(""), timeout("--request-timeout 60000")), (600_000, 60_000));
    assert_eq!(plan("--request-rate-range 5 --threads 3").client.threads, 3);
}

#[test]
fn keys_come_from_flags_or_from_the_environment() {
    let headers = |line: &str, variable: Option<&str>| {
        let mut given = given(&format!("--num-prompts 1 {line}"));
        let taken = given.take_key(variable.map(str::to_owned)).expect("a key");
        (given.openai_plan(given.target().expect("a target"), 1).expect("a plan").work.headers, taken)
    };
    let bearer = |key: &str| vec![("Authorization".to_owned(), format!("Bearer {key}"))];
    assert_eq!(headers("", None), (Vec::new(), false));
    assert_eq!(headers("", Some("")), (Vec::new(), false));
    assert_eq!(headers("", Some("e")), (bearer("e"), true));
    assert_eq!(headers("--api-key k", Some("e")), (bearer("k"), false));
    let own = vec![("authorization".to_owned(), "Basic x".to_owned())];
    let mut with_header = given("--num-prompts 1");
    with_header.headers = own.clone();
    assert_eq!(with_header.take_key(Some("e".into())), Ok(false));
    assert_eq!(with_header.openai_plan(with_header.target().expect("a target"), 1).expect("a plan").work.headers, own);
    assert!(given("").take_key(Some("a\nb".into())).is_err());
    let mut triton = parse("-m x").expect("a command line");
    assert_eq!(triton.take_key(Some("e".into())), Ok(false), "no other server gets it");
    let error = value("a b").key().expect_err("a blank").to_string();
    assert!(!error.contains("a b"), "{error}");
}

#[test]
fn metrics_are_on_the_port_of_the_server() {
    let source = |line: &str| {
        let given = given(line);
        given.metrics_source(&given.target().expect("a target")).map(|source| source.expect("metrics").endpoint)
    };
    let tcp = |port| Endpoint::Tcp { host: "h".into(), port };
    assert_eq!(source("-u h:5/v1 --collect-metrics"), Ok(tcp(5)));
    assert_eq!(source("-u h:5 --collect-metrics --metrics-url h:6"), Ok(tcp(6)));
    assert!(source("-u https://h --collect-metrics").is_err());
}

#[test]
fn flags_that_contradict_each_other() {
    for (line, part) in [
        ("-i grpc", "-i grpc and --service-kind openai contradict each other: OpenAI's interface is spoken over HTTP"),
        ("-x 3", "-x and --service-kind openai"),
        ("-b 2", "a request has one prompt"),
        ("--input-data zero", "give prompts with --input-file"),
        ("--shape a:1", "--prompt-tokens sets their length"),
        ("--sequence-length 9", "flags of sequences and"),
        ("--request-parameter a:1:int", "use --extra-inputs"),
        ("--input-file f --prompt-tokens 9", "prompts have one source"),
        ("--input-file f --num-prompts 9", "prompts have one source"),
        ("--exact-output-tokens", "--exact-output-tokens needs --output-tokens"),
        ("--goodput ttft:5", "--goodput with ttft or itl needs --streaming"),
        ("--goodput itl:5", "--goodput with ttft or itl needs --streaming"),
        ("--no-usage", "--no-usage needs --streaming"),
        ("--api-key k -H Authorization:b", "there is one key"),
        ("--prompt-tokens 0", "--prompt-tokens: '0' is not <mean[:deviation]>"),
        ("--endpoint-type rankings", "is not one of chat, completions"),
        ("--endpoint /", "--endpoint: '/' is not a path"),
    ] {
        let error = parse(&format!("-m x --service-kind openai {line}")).expect_err(line);
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn lengths_goals_and_members() {
    assert_eq!(value("5").length(), Ok(Length { mean: 5, deviation: 0 }));
    assert_eq!(value("5:2").length(), Ok(Length { mean: 5, deviation: 2 }));
    for wrong in ["", "0", "-1", "5:", "5:-1", "5:2:1", "1.5", "99999999999"] {
        assert!(value(wrong).length().is_err(), "{wrong}");
    }
    let ms = |ms: f64| Some(Duration::from_secs_f64(ms / 1e3));
    let goals = Goals { first_token: ms(50.0), between_tokens: ms(2.5), latency: ms(900.0) };
    assert_eq!(value("ttft:50,itl:2.5,latency:900").goals(), Ok(goals));
    assert_eq!(value("latency:900").goals(), Ok(Goals { latency: ms(900.0), ..Goals::default() }));
    for wrong in ["", "ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:nan", "ttft:inf", "x:5", "ttft:5,ttft:6", "ttft:5,"] {
        assert!(value(wrong).goals().is_err(), "{wrong}");
    }
    let member = |raw| value(raw).extra_inputs().map(Json::Object).map_err(drop);
    assert_eq!(member("a:0.5"), Ok(json!({"a": 0.5})));
    assert_eq!(member("a:b c"), Ok(json!({"a": "b c"})));
    assert_eq!(member("a:[1,null]"), Ok(json!({"a": [1, null]})));
    assert_eq!(member("{\"a\":1,\"b\":{}}"), Ok(json!({"a": 1, "b": {}})));
    for wrong in ["", "a", ":1", "{a:1}"] {
        assert!(member(wrong).is_err(), "{wrong}");
    }
}
