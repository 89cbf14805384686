//! Set-ups of the test's own: every difference is found, and nothing is found where there is none.

use std::collections::BTreeSet;
use std::fs;

use super::report::Group;
use super::*;

const TENSORS: &str = "input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ 4 ] }\n\
                       output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ 4 ] }\n";

/// A repository below the temporary directory, removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("migrate-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn model(&self, name: &str, config: &str) {
        self.file(&format!("{name}/config.pbtxt"), config);
        fs::create_dir_all(self.0.join(name).join("1")).unwrap();
    }

    fn identity(&self, name: &str, more: &str) {
        self.model(name, &format!("backend: \"identity\"\nmax_batch_size: 2\n{TENSORS}{more}"));
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn line(words: &[&str]) -> Report {
    let words = words.iter().map(ToString::to_string).collect();
    look_at(&Setup::CommandLine(words), &|_| None).unwrap()
}

/// Subjects of a group, with the texts that follow.
fn subjects(report: &Report, group: Group) -> Vec<&str> {
    report.findings.iter().filter(|finding| finding.group == group).map(|finding| &*finding.subject).collect()
}

#[test]
fn words_are_repositories_or_a_command_line() {
    let parse = |words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        MigrateArguments::parse(&words)
    };
    let setup = |words: &[&str]| parse(words).unwrap().unwrap().setup;
    let of_line = |words: &[&str]| Setup::CommandLine(words.iter().map(ToString::to_string).collect());
    assert_eq!(setup(&["/a", "b"]), Setup::Repositories(vec!["/a".into(), "b".into()]));
    assert_eq!(setup(&["--json", "--", "tritonserver", "--json"]), of_line(&["tritonserver", "--json"]));
    assert_eq!(setup(&["docker", "run", "x"]), of_line(&["docker", "run", "x"]));
    assert_eq!(setup(&["A=1 tritonserver --id=x"]), of_line(&["A=1 tritonserver --id=x"]));
    let parsed = parse(&["--json", "/a", "--all"]).unwrap().unwrap();
    assert!(parsed.is_json && parsed.is_all);
    assert_eq!(parse(&["--help"]), Ok(None));
    for (words, part) in [
        (&[][..], "missing <repository> or <command line>"),
        (&["--model-repository=/x"], "unknown option '--model-repository=/x'; a command line stands behind --"),
        (&["/x", "--id=x"], "unknown option '--id=x' behind a repository"),
    ] {
        assert!(parse(words).unwrap_err().contains(part), "{words:?}");
    }
}

#[test]
fn a_plain_set_up_works() {
    let folder = Folder::new("plain");
    folder.identity("m", "dynamic_batching { }\nversion_policy { all { } }\n");
    let report = line(&["tritonserver", &format!("--model-repository={}", folder.path()), "--http-port", "8000"]);
    assert_eq!(report.outcome(), Outcome::AllWorks, "{}", report.text(true));
    assert_eq!(subjects(&report, Group::Works), ["--model-repository", "--http-port", "model m"]);
    let command = report.command.unwrap();
    assert_eq!(command, ["nereid", &format!("--model-repository={}", folder.path()), "--http-port=8000"]);
}

/// The models of which each shows one or more rows.
fn fill(folder: &Folder) {
    folder.model("torn", "backend: \"identity\" max_batch_sise: 1");
    folder.identity("versionless", "version_policy { specific { versions: 9 } }\n");
    folder.identity("huge", "");
    fs::create_dir_all(folder.0.join("huge/99999999999999999999")).unwrap();
    let wide = "input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ 9223372036854775807, 2 ] }";
    folder.model("wide", &format!("backend: \"identity\"\n{wide}"));
    folder.identity("hidden", "");
    folder.file("hidden/1/libtriton_identity.so", "x");
    folder.identity("gpu", "instance_group { kind: KIND_GPU }\n");
    folder.identity("agent", "model_repository_agents { agents { name: \"checksum\" } }\n");
    folder.identity("cached", "response_cache { enable: true }\n");
    folder.identity("hints", "optimization { priority: PRIORITY_MAX }\n");
    let script = "backend: \"python\"\nmodel_transaction_policy { decoupled: true }\n\
                  default_model_filename: \"absent.py\"\n\
                  parameters { key: \"EXECUTION_ENV_PATH\" value { string_value: \"/absent.tar.gz\" } }\n";
    folder.model("script", &format!("{script}{TENSORS}"));
    folder.model("policy", &format!("backend: \"python\"\nmodel_transaction_policy {{ }}\n{TENSORS}"));
    let control = |kind: &str| {
        format!("control_input {{ name: \"C\" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {kind} }} }}")
    };
    folder.identity("texts", &format!("sequence_batching {{ {} iterative_sequence: true }}\n", control("TYPE_STRING")));
    folder.model(
        "ensemble",
        "platform: \"ensemble\"\nmax_batch_size: 2\ninput { name: \"I\" data_type: TYPE_FP32 dims: [ 4 ] }\n\
         output { name: \"A\" data_type: TYPE_FP32 dims: [ 4 ] }\n\
         output { name: \"B\" data_type: TYPE_FP32 dims: [ 4 ] }\n\
         ensemble_scheduling { step [\n\
         { model_name: \"hints\" model_version: -1 input_map { key: \"INPUT0\" value: \"I\" }\n\
           output_map { key: \"OUTPUT0\" value: \"A\" } },\n\
         { model_name: \"cached\" model_version: -1 input_map { key: \"INPUT0\" value: \"I\" }\n\
           output_map { key: \"OUTPUT0\" value: \"B\" } } ] }\n",
    );
}

#[test]
fn every_row_of_the_table_is_found_in_some_set_up() {
    let folder = Folder::new("rows");
    fill(&folder);
    folder.file("caches/own/libtritoncache_own.so", "x");
    let repository = format!("--model-repository={}", folder.path());
    let caches = format!("--cache-directory={}/caches", folder.path());
    let line_of_caches = [
        "tritonserver",
        &repository,
        "--cache-config=own,a=b",
        &caches,
        "--model-control-mode=poll",
        "--http-thread-count=4",
        "--backend-config=python,thread-pool-size=4",
        "--min-supported-compute-capability=9999",
    ];
    let image = |release: &str| {
        let volume = format!("{}:/models", folder.path());
        let image = format!("nvcr.io/nvidia/tritonserver:{release}-py3");
        line(&["docker", "run", "-v", &volume, &image, "tritonserver", "--model-repository=/models"])
    };
    let mut found = BTreeSet::new();
    for report in [line(&line_of_caches), image("24.10"), image("27.01")] {
        found.extend(report.findings.iter().filter_map(|finding| finding.difference));
    }
    let all: BTreeSet<&str> = differences::ALL.iter().map(|row| row.id).collect();
    assert_eq!(all.difference(&found).collect::<Vec<_>>(), Vec::<&&str>::new(), "rows that no set-up shows");
}

#[test]
fn flags_are_judged_by_the_table_of_the_server() {
    for flag in super::super::flags::flags() {
        let report = line(&["tritonserver", "--id=x", &format!("--{}", flag.name), "1:2"]);
        let subject = format!("--{}", flag.name);
        let is_found = report.findings.iter().any(|finding| finding.subject == subject);
        assert!(is_found, "{subject}: {}", report.text(true));
    }
    let report = line(&["tritonserver", "--no-such-flag", "x", "--http-port=x", "--id=x", "word"]);
    let text = report.text(true);
    assert_eq!(report.outcome(), Outcome::Missing);
    for part in [
        "unrecognized option '--no-such-flag'",
        "  --http-port: Bad option: \"--http-port\".\n      Invalid option value. Got x\n",
        "  --id: as in Triton",
        "Unexpected argument: word",
        "--model-repository must be specified",
        "Command: nereid --id=x\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains("argument: x"), "the value of an unknown flag is no word: {text}");
}

#[test]
fn the_names_that_this_module_has_are_flags() {
    let names = ["http", "grpc", "metrics"].map(|service| format!("{service}-address"));
    let ports = ["http", "grpc", "metrics", "sagemaker", "vertex-ai"].map(|service| format!("{service}-port"));
    for name in names.into_iter().chain(ports).chain(["log-file".to_owned(), "trace-file".to_owned()]) {
        assert!(super::super::flags::flags().any(|flag| flag.name == name), "{name}");
    }
}

#[test]
fn a_container_is_translated() {
    let folder = Folder::new("container");
    folder.identity("m", "");
    let volume = format!("-v{}:/models:ro", folder.path());
    let report = line(&[
        "docker",
        "run",
        "--rm",
        &volume,
        "-p18000:8000",
        "-p127.0.0.1:18001:8001",
        "--gpus=all",
        "-e",
        "A=1",
        "nvcr.io/nvidia/tritonserver:26.11-py3",
        "tritonserver",
        "--model-repository=/models",
        "--backend-directory=/opt/tritonserver/backends",
        "--log-file=/tmp/log",
    ]);
    let text = report.text(true);
    let command = format!(
        "Command: env A=1 nereid --model-repository={} --backend-directory=/opt/tritonserver/backends \
         --log-file=/tmp/log --http-port=18000 --grpc-port=18001 --grpc-address=127.0.0.1 \
         --metrics-address=127.0.0.1\n",
        folder.path()
    );
    assert!(text.ends_with(&command), "{text}");
    for part in [
        "  --metrics-port: port 8002 is not published",
        "  --backend-directory: /opt/tritonserver/backends is inside the image",
        "  model m: identity, built in, versions 1\n",
        "is of the release that this server follows",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(report.outcome(), Outcome::Missing);
    let report = line(&[
        "mpirun",
        "-n",
        "2",
        "tritonserver",
        "--model-repository=s3://bucket/models",
        "--load-model=x",
        "--model-control-mode=explicit",
    ]);
    assert_eq!(subjects(&report, Group::Missing), ["mpirun"]);
    assert_eq!(subjects(&report, Group::Unseen), ["repository s3://bucket/models"]);
}
