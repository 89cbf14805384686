//! Every flag of the table, and which of them cannot stand beside each other.

use super::*;
use crate::cli::perf::flags::{Flag, flags};
use nereid_perf::{Load, Protocol, Window};

fn parse(line: &str) -> Result<Given, String> {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match PerfCommand::parse(&words) {
        Ok(PerfCommand::Measure(given)) => Ok(*given),
        Ok(other) => panic!("{line}: {other:?}"),
        Err(mistake) => Err(mistake.to_string()),
    }
}

fn given(line: &str) -> Given {
    parse(&format!("-m x {line}")).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// A value that each flag with one takes, and what it has to change; flags that need others have them beside it.
const LINES: &[(&str, &str)] = &[
    ("model", "--model y"),
    ("model-version", "-x 3"),
    ("url", "-u h:1"),
    ("protocol", "-i gRPC"),
    ("service-kind", "--service-kind openai"),
    ("streaming", "--streaming -i grpc"),
    ("async", "-a"),
    ("sync", "--sync"),
    ("bls-composing-models", "--bls-composing-models=a,b"),
    ("ssl-grpc-use-ssl", "-i grpc --ssl-grpc-use-ssl=true"),
    ("ssl-grpc-root-certifications-file", "-i grpc --ssl-grpc-use-ssl=1 --ssl-grpc-root-certifications-file=a"),
    (
        "ssl-grpc-private-key-file",
        "-i grpc --ssl-grpc-use-ssl=1 --ssl-grpc-private-key-file=a --ssl-grpc-certificate-chain-file=b",
    ),
    (
        "ssl-grpc-certificate-chain-file",
        "-i grpc --ssl-grpc-use-ssl=1 --ssl-grpc-private-key-file=a --ssl-grpc-certificate-chain-file=b",
    ),
    ("ssl-https-verify-peer", "-u https://h --ssl-https-verify-peer 0"),
    ("ssl-https-verify-host", "-u https://h --ssl-https-verify-host 0"),
    ("ssl-https-ca-certificates-file", "-u https://h --ssl-https-ca-certificates-file a"),
    (
        "ssl-https-client-certificate-file",
        "-u https://h --ssl-https-client-certificate-file a --ssl-https-private-key-file b",
    ),
    ("ssl-https-private-key-file", "-u https://h --ssl-https-client-certificate-file a --ssl-https-private-key-file b"),
    ("concurrency-range", "--concurrency-range 1:4"),
    ("request-rate-range", "--request-rate-range 1:4"),
    ("request-distribution", "--request-rate-range 1:4 --request-distribution poisson"),
    ("request-intervals", "--request-intervals file"),
    ("speed", "--input-recording f --speed 2"),
    ("binary-search", "--binary-search --concurrency-range=1:8 -l5"),
    ("latency-threshold", "-l 5"),
    ("num-of-sequences", "--num-of-sequences 9"),
    ("sequence-length", "--sequence-length 9"),
    ("sequence-length-variation", "--sequence-length-variation 9"),
    ("sequence-id-range", "--sequence-id-range 5:9"),
    ("concurrent-requests", "-t 4"),
    ("max-concurrency", "-d -c 9"),
    ("dynamic-concurrency", "-d -c 9"),
    ("measurement-mode", "--measurement-mode count_windows"),
    ("measurement-interval", "-p 100"),
    ("measurement-request-count", "--measurement-request-count 9"),
    ("stability-percentage", "-s 5.5"),
    ("max-trials", "-r 3"),
    ("percentile", "--percentile 99"),
    ("warmup-request-count", "--warmup-request-count 7"),
    ("request-count", "--request-count 7"),
    ("batch-size", "-b 8"),
    ("input-data", "--input-data zero"),
    ("input-recording", "--input-recording f"),
    ("zero-input", "-z"),
    ("data-directory", "--data-directory d"),
    ("shape", "--shape a:1,2"),
    ("string-length", "--string-length 9"),
    ("string-data", "--string-data abc"),
    ("seed", "--seed 9"),
    ("shared-memory", "--shared-memory system"),
    ("output-shared-memory-size", "--output-shared-memory-size 9"),
    ("input-tensor-format", "--input-tensor-format json"),
    ("output-tensor-format", "--output-tensor-format json"),
    ("grpc-compression-algorithm", "-i grpc --grpc-compression-algorithm gzip"),
    ("http-compression-algorithm", "--http-compression-algorithm deflate"),
    ("header", "-H a:b"),
    ("request-parameter", "--request-parameter a:1:int"),
    ("request-priority", "--request-priority 2"),
    ("queue-timeout", "--queue-timeout 2"),
    ("connections", "--connections 2"),
    ("unique-connections", "--unique-connections"),
    ("threads", "--threads 2"),
    ("max-threads", "--max-threads 2"),
    ("pin", "--pin 0-1"),
    ("io-engine", "--io-engine epoll"),
    ("request-timeout", "--request-timeout 5"),
    ("max-outstanding", "--max-outstanding 5"),
    ("ipc-spin-us", "-i ipc -u /s --ipc-spin-us 5"),
    ("verbose", "-v"),
    ("csv", "-f a"),
    ("verbose-csv", "-f a --verbose-csv"),
    ("json", "--json a"),
    ("html", "--html a"),
    ("profile-export-file", "--profile-export-file a"),
    ("profile-export-max", "--profile-export-max 5"),
    ("no-server-statistics", "--no-server-statistics"),
    ("collect-metrics", "--collect-metrics"),
    ("metrics-url", "--collect-metrics --metrics-url m:1"),
    ("metrics-interval", "--collect-metrics --metrics-interval 5"),
];

/// The same, behind `--service-kind openai`.
const OPENAI_LINES: &[(&str, &str)] = &[
    ("endpoint-type", "--endpoint-type completions"),
    ("endpoint", "--endpoint v1/completions"),
    ("api-key", "--api-key k"),
    ("prompt-tokens", "--prompt-tokens 9"),
    ("num-prompts", "--num-prompts 9"),
    ("shared-prefix-tokens", "--shared-prefix-tokens 9"),
    ("input-file", "--input-file f"),
    ("output-tokens", "--output-tokens 9"),
    ("exact-output-tokens", "--output-tokens 9 --exact-output-tokens"),
    ("extra-inputs", "--extra-inputs a:b"),
    ("no-usage", "--streaming --no-usage"),
    ("goodput", "--goodput latency:9"),
];

/// Accepted without any effect, as their help states.
const WITHOUT_EFFECT: [&str; 3] =
    ["serial-sequences", "ssl-https-client-certificate-type", "ssl-https-private-key-type"];

#[test]
fn every_flag_is_honoured_or_refused() {
    let bare = format!("{:?}", given(""));
    for (name, line) in LINES {
        assert_ne!(format!("{:?}", given(line)), bare, "{name}: {line} changes nothing");
        assert!(flags().any(|flag: &Flag| flag.name == *name), "{name} is in no table");
    }
    let bare_openai = format!("{:?}", given("--service-kind openai"));
    for (name, line) in OPENAI_LINES {
        let found = given(&format!("--service-kind openai {line}"));
        assert_ne!(format!("{found:?}"), bare_openai, "{name}: {line} changes nothing");
        let error = parse(&format!("-m x -i grpc {line}")).expect_err(line);
        assert!(error.contains("needs --service-kind openai"), "{line}: {error}");
    }
    for flag in flags() {
        match flag.action {
            Action::Refuse(reason) => {
                let value = if flag.takes_value() { "=1" } else { "" };
                let error = parse(&format!("-m x --{}{value}", flag.name)).expect_err(flag.name);
                assert_eq!(error, format!("--{} is not supported: {reason}", flag.name));
            }
            Action::Help | Action::Version => {}
            Action::Set(_) | Action::Switch(_) => {
                let is_known = LINES.iter().chain(OPENAI_LINES).any(|(name, _)| *name == flag.name);
                assert!(is_known || WITHOUT_EFFECT.contains(&flag.name), "{} is tried by no line", flag.name);
            }
        }
    }
    for line in ["--service-kind triton", "--serial-sequences", "--ssl-https-client-certificate-type PEM"] {
        assert_eq!(format!("{:?}", given(line)), bare, "{line}");
    }
}

#[test]
fn flags_that_contradict_each_other() {
    for (line, part) in [
        ("", "which model? -m names it"),
        ("-m x --concurrency-range=1 --request-rate-range=1", "there is one load"),
        ("-m x --request-intervals=f --request-rate-range=1", "there is one load"),
        ("-m x -t1 --concurrency-range=1", "there is one load"),
        ("-m x -d", "-d needs -c"),
        ("-m x -d -t4 -c2", "the sweep ends before it starts"),
        ("-m x -d -c0", "needs --latency-threshold"),
        ("-m x --concurrency-range=1:0", "needs --latency-threshold"),
        ("-m x --request-rate-range=1:0", "needs --latency-threshold"),
        ("-m x --binary-search -l5", "--binary-search needs a range"),
        ("-m x --binary-search --concurrency-range=4 -l5", "--binary-search needs a range"),
        ("-m x --binary-search --concurrency-range=4:0 -l5", "--binary-search needs a range"),
        ("-m x --binary-search --concurrency-range=4:8", "--binary-search needs --latency-threshold"),
        ("-m x --async --sync", "contradict each other"),
        ("-m x -i ipc", "-i ipc needs -u <path>, the path of the server's --ipc-path"),
        ("-m x -i ipc -u /s --streaming", "-i ipc and --streaming contradict each other: each request is a call there"),
        ("-m x -i ipc -u /s --ssl-grpc-use-ssl=true", "-i ipc and --ssl-… contradict each other: a ring is memory"),
        ("-m x -i ipc -u /s --ssl-https-verify-peer=0", "-i ipc and --ssl-… contradict each other"),
        ("-m x -i ipc -u /s --grpc-compression-algorithm=gzip", "messages in a ring are not packed"),
        ("-m x -i ipc -u /s --http-compression-algorithm=gzip", "needs -i http"),
        ("-m x -i ipc -u /s --input-tensor-format=json", "gRPC has one form"),
        ("-m x -i ipc -u /s --service-kind openai", "-i ipc and --service-kind openai contradict each other"),
        ("-m x -i grpc --shared-memory arena", "--shared-memory arena needs -i ipc"),
        ("-m x --ipc-spin-us 5", "--ipc-spin-us needs -i ipc"),
        ("-m x --streaming", "--streaming needs -i grpc"),
        ("-m x --streaming -i grpc --sync", "a stream is asynchronous"),
        ("-m x -i grpc --input-tensor-format=json", "gRPC has one form"),
        ("-m x --grpc-compression-algorithm=gzip", "needs -i grpc"),
        ("-m x -i grpc --http-compression-algorithm=gzip", "needs -i http"),
        ("-m x --ssl-https-verify-peer=0", "needs -i http and a URL that begins with https://"),
        ("-m x --ssl-grpc-use-ssl=true", "needs -i grpc"),
        ("-m x -i grpc --ssl-grpc-root-certifications-file=a", "needs --ssl-grpc-use-ssl=true"),
        ("-m x -u https://h --ssl-https-private-key-file=a", "a client's certificate needs its key"),
        ("-m x -z --input-data=random", "several sources"),
        ("-m x --speed=2", "--speed needs --input-recording"),
        (
            "-m x --input-recording f --speed=0",
            "--speed: '0' is not a number from 0.001 to 1000000; --concurrency-range",
        ),
        ("-m x --input-recording f --speed=max", "--speed: 'max' is not a number"),
        ("-m x --input-recording f --input-data=d", "--input-recording and --input-data=<path> contradict"),
        ("-m x --input-recording f --shape a:1", "--input-recording and --shape contradict"),
        ("-m x --input-recording f -b 2", "--input-recording and -b contradict"),
        ("-m x --input-recording f --string-data a", "--input-recording and --string-data contradict"),
        ("-m x --input-recording f --request-parameter sequence_id:1:int", "belong to no sequence"),
        ("-m x --input-recording f --request-parameter sequence_start:true:bool", "sequence_start contradict"),
        ("-m x --input-recording f --request-parameter sequence_end:true:bool", "sequence_end contradict"),
        ("-m x --input-recording f --speed 2 -t4", "--speed and -t, -c and -d contradict"),
        ("-m x --input-recording f --speed 2 --concurrency-range=4", "--speed and --concurrency-range contradict"),
        ("-m x --service-kind openai --input-recording f", "--input-recording and --service-kind openai contradict"),
        ("--input-recording f", "which model? -m names it"),
        ("-m x --shape a:1 --shape a:2", "two shapes for input 'a'"),
        ("-m x --request-parameter a:1:int --request-parameter a:2:int", "gives 'a' two values"),
        ("-m x --verbose-csv", "--verbose-csv needs -f"),
        ("-m x --metrics-url=a", "needs --collect-metrics"),
        ("-m x -f a --json a", "two reports cannot be one file: a"),
        ("-m x --pin 0 --threads 2", "more threads than cores"),
        ("-m x --unique-connections --connections 2", "contradict each other"),
        ("-m x --percentile 100", "--percentile: '100' is not -1 or a number"),
        ("-m x --percentile 0", "--percentile: '0' is not -1 or a number"),
        ("-m x --sequence-id-range 5:5", "--sequence-id-range: '5:5' is not"),
        ("-m x --sequence-id-range 0", "--sequence-id-range: '0' is not"),
        ("-m x --shared-memory cuda", "GPU memory"),
        ("-m x --service-kind tfserving", "other kinds of servers"),
        ("-m x --bls-composing-models a:3", "names alone"),
        ("-m x --ssl-https-private-key-type DER", "openssl"),
        ("-m x -b 0", "-b: '0' is not a number from 1 to"),
    ] {
        let error = parse(line).expect_err(line);
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn what_changes_nothing_is_noted() {
    assert!(given("").notes().is_empty());
    assert!(given("--request-distribution poisson").notes()[0].starts_with("--request-distribution"));
    assert!(given("-c 4").notes()[0].starts_with("-c"));
}

#[test]
fn threads_follow_flags_and_cores() {
    for (line, cores, threads) in [
        ("", 8, 1),
        ("--threads 3", 8, 3),
        ("--threads 3 --max-threads 2", 8, 2),
        ("--max-threads 16", 8, 8),
        ("--max-threads 4", 8, 4),
        ("--pin 0-2", 8, 3),
        ("--pin 0-2 --threads 2", 8, 2),
    ] {
        assert_eq!(given(line).thread_count(cores), threads, "{line}");
    }
}

/// A model without inputs takes any plan.
#[test]
fn plans_say_what_was_asked() {
    let model_info = nereid_perf::ModelInfo { sequences: true, ..nereid_perf::ModelInfo::default() };
    let plan = |line: &str| {
        let given = given(line);
        let target = given.target().expect("a target");
        given.plan(target, &model_info, 4).unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    let sweep = |line: &str| match plan(line).load {
        Load::Concurrency(sweep) => (sweep.start, sweep.end, sweep.step),
        load => panic!("{line}: {load:?}"),
    };
    assert_eq!(sweep(""), (1, Some(1), 1));
    assert_eq!(sweep("-t4"), (4, Some(4), 1));
    assert_eq!(sweep("-t4 -d -c9"), (4, Some(9), 1));
    assert_eq!(sweep("-d -c0 -l5"), (1, None, 1));
    assert_eq!(sweep("--concurrency-range=2:8:3"), (2, Some(8), 3));
    assert!(matches!(plan("--request-rate-range=5").load, Load::Rate { spacing: Spacing::Constant, .. }));
    let found = plan("--measurement-mode=count_windows --measurement-request-count=7 -l2.5 --percentile=99 -x2");
    assert_eq!((found.rules.window, found.rules.percentile), (Window::Count(7), Some(99.0)));
    assert_eq!(found.rules.latency_threshold, Some(Duration::from_micros(2500)));
    assert_eq!((found.version.as_str(), found.target.protocol), ("2", Protocol::Http));
    assert_eq!(plan("-p 40").rules.window, Window::Time(Duration::from_millis(40)));
    assert_eq!(plan("-i grpc --streaming").target.protocol, Protocol::GrpcStream);
    assert_eq!((plan("").records_max, plan("--profile-export-file a").records_max), (0, 1_000_000));
    let lengths = |line: &str| {
        let sequences = plan(line).work.sequences.expect("sequences");
        (sequences.length, sequences.length_variation_percent, sequences.first_id, sequences.end_id)
    };
    assert_eq!(lengths(""), (Some(20), 20.0, 1, None));
    assert_eq!(lengths("--sequence-length=5 --sequence-length-variation=0"), (Some(5), 0.0, 1, None));
    assert_eq!(lengths("--sequence-id-range=5:9"), (Some(20), 20.0, 5, Some(9)));
    assert_eq!(plan("--bls-composing-models=b,a,b").composing_models, ["b", "a"]);
}

#[test]
fn files_of_intervals() {
    let path = std::env::temp_dir().join(format!("nereid-perf-intervals-{}", std::process::id()));
    let model_info = nereid_perf::ModelInfo::default();
    let load = |content: &str| {
        std::fs::write(&path, content).expect("a file");
        let given = given(&format!("--request-intervals {}", path.display()));
        given.plan(given.target().expect("a target"), &model_info, 1).map(|plan| plan.load).map_err(|e| e.to_string())
    };
    let times = vec![Duration::from_micros(100), Duration::ZERO, Duration::from_micros(7)];
    assert_eq!(load("100\n0\n\n 7 \n"), Ok(Load::Intervals(times)));
    for (content, part) in [
        ("", "none of its times is above 0"),
        ("0\n0\n", "none of its times is above 0"),
        ("5\n-1\n", "line 2: '-1' is no number of microseconds"),
        ("1.5", "line 1: '1.5' is no number"),
        ("99999999999", "up to an hour"),
    ] {
        let error = load(content).expect_err(content);
        assert!(error.contains(part), "{content}: {error}");
    }
    std::fs::remove_file(&path).expect("the file is there");
    let missing = given("--request-intervals /nowhere");
    assert!(missing.plan(missing.target().expect("a target"), &model_info, 1).is_err());
}
