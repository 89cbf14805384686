//! Every flag, every error text, every pair of ports.

use super::*;
use table::rows;

mod crossed;
mod table;

use crate::cli::given::GROUPS;
use crate::server::options::Level;

fn restrictions(groups: &[&str], key: &str, value: &str) -> Vec<Restriction> {
    let restriction =
        |group: &&str| Restriction { group: (*group).to_owned(), key: key.to_owned(), value: value.to_owned() };
    groups.iter().map(restriction).collect()
}

fn arguments(words: &[&str]) -> Arguments {
    Arguments { program: "nereid".into(), words: words.iter().map(OsString::from).collect() }
}

fn parse(words: &[&str]) -> Result<ServeOptions, OptionsError> {
    let without_notes = |options| ServeOptions { for_gpus: Vec::new(), ..options };
    ServeOptions::parse(&arguments(words), |_| None).map(without_notes)
}

/// The names of the flags that were noted as without effect.
fn noted(words: &[&str]) -> Vec<&'static str> {
    let line = CommandLine::parse(&arguments(words), |_| None, |_| ()).unwrap();
    line.without_effect.iter().map(|noted| noted.flag).collect()
}

fn with(change: impl FnOnce(&mut ServeOptions)) -> Result<ServeOptions, OptionsError> {
    let mut options = ServeOptions::default();
    change(&mut options);
    Ok(options)
}

fn bad(flag: &str, inner: &str) -> String {
    format!("Bad option: \"--{flag}\".\n{inner}")
}

/// contract/cli.md section 2, in its order.
const TRITON: &str = "\
    help id exit-timeout-secs \
    log-verbose log-info log-warning log-error log-format log-file \
    model-repository model-store exit-on-error disable-auto-complete-config strict-readiness model-control-mode \
    repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count \
    model-namespacing enable-peer-access model-load-gpu-limit \
    allow-http http-address http-port reuse-http-port http-header-forward-pattern http-thread-count \
    http-max-input-size http-restricted-api \
    allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-infer-thread-count \
    grpc-infer-cq-count grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual \
    grpc-server-cert grpc-server-key grpc-root-cert grpc-infer-response-compression-level grpc-keepalive-time \
    grpc-keepalive-timeout grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data \
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age \
    grpc-max-connection-age-grace grpc-restricted-protocol \
    allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count allow-vertex-ai vertex-ai-port \
    vertex-ai-thread-count vertex-ai-default-model \
    allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config \
    trace-config \
    backend-directory backend-config repoagent-directory cache-directory cache-config \
    rate-limit rate-limit-resource pinned-memory-pool-byte-size cuda-memory-pool-byte-size \
    cuda-virtual-address-size min-supported-compute-capability buffer-manager-thread-count host-policy \
    allow-client-shm \
    strict-model-config response-cache-byte-size trace-file trace-level trace-rate trace-count trace-log-frequency";

#[test]
fn the_table_holds_every_flag_of_triton_once() {
    let names: Vec<_> = flags().filter(|flag| !flag.is_own()).map(|flag| flag.name).collect();
    assert_eq!(names, TRITON.split_ascii_whitespace().collect::<Vec<_>>());
    assert_eq!(names.len(), 92);
}

#[test]
fn every_flag_with_a_value_has_its_row_here() {
    let with_value: Vec<_> = flags().filter(|flag| flag.takes_value()).map(|flag| flag.name).collect();
    assert_eq!(with_value, rows().map(|row| row.flag).collect::<Vec<_>>());
    assert_eq!(with_value.len(), 92 - 2 + 58 + 21);
    for row in rows() {
        assert!(!row.good.is_empty(), "--{} is never accepted", row.flag);
    }
}

#[test]
fn good_values_set_their_option_in_both_forms() {
    for row in rows() {
        for (value, change) in row.good {
            let name = format!("--{}", row.flag);
            let mut words = vec![name.as_str(), value];
            words.extend(Some(row.beside).filter(|beside| !beside.is_empty()));
            assert_eq!(parse(&words), with(change), "{name} {value}");
            let joined = format!("{name}={value}");
            words.splice(..2, [joined.as_str()]);
            assert_eq!(parse(&words), with(change), "{joined}");
        }
    }
    assert_eq!(parse(&["--disable-auto-complete-config"]), with(|o| o.auto_complete_config = false));
    assert_eq!(parse(&[]), with(|_| {}));
}

#[test]
fn bad_values_are_reported_in_tritons_words() {
    for row in rows() {
        for (value, inner) in row.bad {
            let error = parse(&[&format!("--{}={value}", row.flag)]).unwrap_err();
            assert_eq!(error.to_string(), bad(row.flag, inner), "--{}={value}", row.flag);
            assert_eq!(error.report(), format!("{}\n{}\n", usage(), bad(row.flag, inner)));
        }
    }
}

/// Only flags without an effect are noted, each once, and their values do not change the options.
#[test]
fn flags_without_effect_are_noted_once() {
    for row in rows() {
        let is_idle = flags().any(|flag| flag.name == row.flag && matches!(flag.action, Action::Idle(..)));
        for (value, _) in row.good {
            // A group may be restricted once.
            let times = if row.flag.contains("-restricted-") && !row.flag.ends_with("-file") { 1 } else { 2 };
            let mut words = vec![format!("--{}={value}", row.flag); times];
            words.extend(Some(row.beside.to_owned()).filter(|beside| !beside.is_empty()));
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            assert_eq!(noted(&words), if is_idle { vec![row.flag] } else { vec![] }, "{words:?}");
        }
    }
}

/// Whether there is a GPU is known later: flags that need one are reported then.
#[test]
fn flags_for_gpus_are_noted_once() {
    for row in rows() {
        let is_for_gpus = flags().any(|flag| flag.name == row.flag && matches!(flag.action, Action::ForGpus(_)));
        let Some((value, _)) = row.good.first().filter(|_| is_for_gpus) else { continue };
        let word = format!("--{}={value}", row.flag);
        let mut words = vec![word.as_str(), &word];
        words.extend(Some(row.beside).filter(|beside| !beside.is_empty()));
        let options = ServeOptions::parse(&arguments(&words), |_| None).unwrap();
        assert_eq!(options.for_gpus, [format!("--{}", row.flag)]);
    }
    let words = [
        "--model-load-gpu-limit=0:0.5",
        "--model-load-gpu-limit=1:0.9",
        "--enable-peer-access=false",
        "--cuda-memory-pool-byte-size=1:7",
        "--pinned-memory-pool-byte-size=9",
        "--min-supported-compute-capability=8.0",
    ];
    let options = ServeOptions::parse(&arguments(&words), |_| None).unwrap();
    assert_eq!(options.for_gpus.len(), 5);
    let expected = nereid_gpu::Settings {
        min_compute_capability: 8.0,
        pinned_pool_bytes: 9,
        memory_pool_bytes: [(1, 7)].into(),
        enable_peer_access: false,
        load_limits: [(0, 0.5), (1, 0.9)].into(),
    };
    assert_eq!(options.gpu_settings(), expected);
    assert_eq!(parse(&[]).unwrap().gpu_settings(), nereid_gpu::Settings::default());
}

#[test]
fn what_the_core_refuses_is_reported_without_the_usage_text() {
    for (value, reason) in [
        ("-1:0.5", "expects device ID >= 0, got -1"),
        ("0:2", "expects limit fraction to be in range [0.0, 1.0], got 2.000000"),
        ("0:-0.1", "expects limit fraction to be in range [0.0, 1.0], got -0.100000"),
    ] {
        let error = parse(&[&format!("--model-load-gpu-limit={value}")]).unwrap_err();
        let text = format!(
            "Failed to build Triton option:\nerror: setting model load GPU limit: Invalid argument - {reason}\n"
        );
        assert_eq!(error.report(), text);
    }
}

#[test]
fn errors_name_the_whole_flag_also_when_it_was_abbreviated() {
    assert_eq!(parse(&["--log-inf=x"]).unwrap_err().to_string(), bad("log-info", "invalid value for bool option: x"));
    let error = parse(&["--trace-c=x"]).unwrap_err();
    assert!(matches!(error, OptionsError::Getopt(_)), "trace-config or trace-count");
    assert_eq!(parse(&["--trace-co=x"]).unwrap_err(), error_of("--trace-co=x", &["trace-config", "trace-count"]));
    assert!(!parse(&["--trace-con=level=max"]).unwrap().traces.levels.is_off());
}

fn error_of(given: &str, possibilities: &[&str]) -> OptionsError {
    let names: String = possibilities.iter().map(|name| format!(" '--{name}'")).collect();
    OptionsError::Getopt(format!("nereid: option '{given}' is ambiguous; possibilities:{names}"))
}

#[test]
fn words_are_refused_after_all_flags_were_read() {
    assert_eq!(parse(&["a", "--id=x", "b"]).unwrap_err().to_string(), "Unexpected argument: a");
    assert_eq!(parse(&["--", "--id=x"]).unwrap_err().to_string(), "Unexpected argument: --id=x");
    assert_eq!(
        parse(&["--disable-auto-complete-config", "true"]).unwrap_err().to_string(),
        "Unexpected argument: true"
    );
    let error = parse(&["a", "--log-info=b"]).unwrap_err();
    assert_eq!(error.to_string(), bad("log-info", "invalid value for bool option: b"));
    assert_eq!(parse(&["a"]).unwrap_err().report(), format!("{}\nUnexpected argument: a\n", usage()));
}

#[test]
fn reports_are_getopts_line_alone_or_stand_behind_the_usage() {
    assert!(usage().starts_with("Usage: tritonserver [options]\n"));
    assert_eq!(parse(&["--help"]).unwrap_err().report(), usage());
    assert_eq!(parse(&["--he", "--nonsense"]).unwrap_err(), OptionsError::Help, "the first one counts");
    let report = parse(&["--nonsense"]).unwrap_err().report();
    assert_eq!(report, "nereid: unrecognized option '--nonsense'\n");
    for flag in flags() {
        assert!(usage().lines().any(|line| line.trim_start().split(' ').next() == Some(&format!("--{}", flag.name))));
    }
}

#[test]
fn repeated_flags_add_up_or_the_last_one_stands() {
    let repositories = ["--model-repository=/a", "--model-store", "/b", "--model-repo=/c"];
    assert_eq!(parse(&repositories).unwrap().model_repositories, ["/a", "/b", "/c"].map(PathBuf::from));
    assert_eq!(parse(&["--id=a", "--id=b"]).unwrap().server_id, "b");
    let settings =
        ["--backend-config=onnx,t=1", "--backend-config=t=2", "--backend-config=py,x=y", "--backend-config=onnx,t=3"];
    let options = parse(&settings).unwrap();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(options.settings_of("onnx"), [pair("t", "2"), pair("t", "1"), pair("t", "3")]);
    assert_eq!(options.settings_of("py"), [pair("t", "2"), pair("x", "y")]);
    assert_eq!(options.settings_of("other"), [pair("t", "2")]);
    let pools = ["--cuda-memory-pool-byte-size=1:5", "--cuda-memory-pool-byte-size=0:6"];
    assert_eq!(parse(&pools).unwrap().cuda_memory_pools, [(0, 6), (1, 5)].into());
    assert_eq!(parse(&["--host-policy=a,numa-node=0", "--host-policy=a,cpu-cores=1"]).unwrap().host_policies.len(), 2);
}

#[test]
fn paths_need_not_be_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let path = OsString::from_vec(b"/m\xff".to_vec());
    let mut joined = OsString::from("--model-repository=");
    joined.push(&path);
    let words = vec![joined, "--model-store".into(), path.clone()];
    let options = ServeOptions::parse(&Arguments { program: "n".into(), words }, |_| None).unwrap();
    assert_eq!(options.model_repositories, [PathBuf::from(&path), PathBuf::from(&path)]);
}

/// The documentation has two lists: flags that work, flags without effect.
#[test]
fn the_documentation_lists_every_flag_where_it_belongs() {
    let text = include_str!("../../../docs/flags.md");
    let (works, rest) = text.split_once("\n## Without effect\n").unwrap();
    let idle = rest.split("\n## ").next().unwrap();
    for flag in flags() {
        let value = flag.value.unwrap_or_default().replace('|', "\\|");
        let value = if value.is_empty() { String::new() } else { format!("`{value}` ") };
        let row = format!("| `--{}` | {value}|", flag.name);
        let places = [works, idle].map(|place| place.lines().find(|line| line.starts_with(&row)));
        let (here, more) = match flag.action {
            Action::Help | Action::Set(_) | Action::ForGpus(_) => (0, None),
            Action::Idle(_, reason) => (1, Some(reason)),
        };
        for (at, place) in places.iter().enumerate() {
            assert_eq!(place.is_some(), at == here, "--{}: {row:?}", flag.name);
        }
        let line = places[here].unwrap();
        assert!(line.contains(flag.help), "{line}: expected {:?}", flag.help);
        assert!(more.is_none_or(|more| line.contains(more)), "{line}: expected {more:?}");
    }
}

/// Names of variables in look-ups of the sources, tests left out.
fn variables_in(directory: &std::path::Path, names: &mut std::collections::BTreeSet<String>) {
    let call =
        regex::Regex::new(r#"\b(?:var|var_os|environment|path_of|is_set|count|number)\("([A-Z][A-Z0-9_]{3,})"\)"#);
    let call = call.unwrap();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        // A build script reads cargo's variables, not the environment of a server.
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests" || stem == "loom" || stem == "build");
        match path.is_dir() {
            _ if is_test => {}
            true => variables_in(&path, names),
            false => {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                names.extend(call.captures_iter(text).map(|found| found[1].to_owned()));
            }
        }
    }
}

#[test]
fn the_documentation_lists_every_variable_of_the_environment() {
    let mut names = std::collections::BTreeSet::new();
    variables_in(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
    for known in ["AIP_MODE", "NOTIFY_SOCKET", "TRITONSERVER_DELAY_SCHEDULER", "XDG_DATA_HOME"] {
        assert!(names.contains(known), "{known} is not found any more: {names:?}");
    }
    let text = include_str!("../../../docs/flags.md");
    let (_, section) = text.split_once("\n## Environment\n").unwrap();
    // Parameters of models that are read by a function of the same name, and a test's own.
    let is_parameter = |name: &str| name.starts_with("CUSTOM_") || name.ends_with("_OP_THREAD_COUNT");
    let is_of_tests = |name: &str| ["NEREID_SIMULATION_SEED", "NEREID_TEST_HANGS_WHILE"].contains(&name);
    let is_other = |name: &str| is_parameter(name) || is_of_tests(name);
    for name in names.iter().filter(|name| !is_other(name)) {
        assert!(section.contains(&format!("`{name}")), "docs/flags.md does not list {name}");
    }
}
