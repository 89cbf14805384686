//! Scenarios of the life cycle, run with both servers, the same repository and the same backend library: after every
//! step the response, the index and the served models are recorded and compared.

use serde_json::{Value, json};

use crate::repository::judge::differences::{Known, Line, MISSING_VERSION, compare};
use crate::repository::life_cycle::control::{EXPLICIT, Life, generation, generation_json, make_old, parameter, touch};
use nereid_test_support::original::original;
use nereid_test_support::repository::Repository;
use nereid_test_support::steadily::steadily;
use nereid_test_support::variant::usual;

/// One step of a story.
enum Step {
    Load(&'static str),
    LoadConfig(&'static str, String),
    LoadFile(&'static str, String, &'static str),
    Unload(&'static str),
    /// A POST to a path under /v2 with a body.
    Post(&'static str, &'static str),
    Get(&'static str),
    /// A file, its contents, and its time in seconds from now.
    File(&'static str, String, i64),
    Version(&'static str, &'static str),
    Touch(&'static str, i64),
    Remove(&'static str),
}

use Step::*;

struct Story {
    name: &'static str,
    flags: &'static [&'static str],
    /// The model whose rows, versions and generation are looked at after each step.
    about: &'static str,
    prepare: fn(&Repository),
    steps: fn() -> Vec<Step>,
}

const NOT_NEWER: Known = Known {
    name: "A change that makes nothing newer",
    // The configuration is gone, while a time in the future was seen.
    is: |difference| {
        difference.question == "failures and repair: 16 load m"
            && difference.ours == "500 error: \"failed to load 'm', failed to poll from model repository\""
            && difference.theirs == "200 "
    },
};

const ALL: &str = "version_policy { all { } }\n";
const TWO: &str = "version_policy { latest { num_versions: 2 } }\n";

fn with(generation_name: &str, more: &str) -> String {
    generation("m", generation_name) + more
}

fn stories() -> Vec<Story> {
    vec![
        Story {
            name: "load and unload",
            flags: &[],
            about: "m",
            prepare: |repository| {
                repository.model("m", &with("1", ALL)).version("m", "4");
            },
            steps: || {
                vec![
                    Get("models/m"),
                    Get("models/m/ready"),
                    Unload("m"),
                    Load("m"),
                    Get("models/m/versions/1"),
                    Get("models/m/versions/2"),
                    Get("models/m/versions/2/ready"),
                    Get("models/m/versions/0"),
                    Load("m"),
                    Unload("m"),
                    Get("models/m"),
                    Get("models/m/versions/1"),
                    Get("models/m/versions/1/ready"),
                    Get("models/m/config"),
                    Get("models/m/stats"),
                    Get("models/stats"),
                    Unload("m"),
                    Load("m"),
                    Post("repository/index", "{\"ready\":true}"),
                    Post("repository/index", "{\"ready\":false}"),
                    Post("repository/index", "{}"),
                    Post("repository/index", "[]"),
                    Post("repository/x/index", ""),
                    Post("repository/x/models/m/load", ""),
                    Post("repository/x/models/m/unload", ""),
                    Post("repository/models/m/load", "{}"),
                    Post("repository/models/m/load", "{"),
                    Post("repository/models/m/load", "{\"parameters\":7}"),
                    Post("repository/models/m/load", "{\"parameters\":{\"x\":\"y\"}}"),
                    Post("repository/models/m/load", "{\"parameters\":{\"config\":7}}"),
                    Post("repository/models/m/unload", "{\"parameters\":{\"unload_dependents\":7}}"),
                    Post("repository/models/m/unload", "{\"parameters\":{\"x\":7}}"),
                    Post("repository/models/absent/unload", ""),
                    Get("health/ready"),
                    Remove("m"),
                    Load("m"),
                ]
            },
        },
        Story {
            name: "versions",
            flags: &["--load-model=m"],
            about: "m",
            prepare: |repository| {
                repository.model("m", &with("1", TWO)).version("m", "2").version("m", "03").version("m", "x");
                make_old(&repository.path().join("m"));
            },
            steps: || {
                vec![
                    Version("m", "7"),
                    Load("m"),
                    Remove("m/7"),
                    Touch("m", 10),
                    Load("m"),
                    File("m/config.pbtxt", with("1", "version_policy { specific { versions: [ 1, 8 ] } }"), 20),
                    Load("m"),
                    File("m/config.pbtxt", with("1", "version_policy { specific { versions: [ 8 ] } }"), 30),
                    Load("m"),
                    File("m/config.pbtxt", with("1", ALL), 40),
                    Load("m"),
                    Remove("m/1"),
                    Remove("m/2"),
                    Touch("m", 50),
                    Load("m"),
                    Unload("m"),
                    Load("m"),
                ]
            },
        },
        Story {
            name: "overrides",
            flags: &["--load-model=m"],
            about: "m",
            prepare: |repository| {
                repository.model("m", &with("disk", ALL)).version("m", "2");
                make_old(&repository.path().join("m"));
            },
            steps: || {
                vec![
                    LoadConfig("m", generation_json("first", json!({}))),
                    Load("m"),
                    LoadConfig("m", "{".into()),
                    LoadConfig("m", String::new()),
                    LoadConfig("m", "{}".into()),
                    LoadConfig("m", generation_json("x", json!({ "max_batch_size": -1 }))),
                    LoadConfig("m", generation_json("x", json!({ "name": "other" }))),
                    LoadConfig("m", generation_json("x", json!({ "unknown": 1 }))),
                    LoadConfig(
                        "m",
                        generation_json("x", json!({ "version_policy": { "specific": { "versions": [9] } } })),
                    ),
                    LoadFile("m", generation_json("files", json!({})), "file:5/weights.bin"),
                    LoadFile("m", generation_json("files", json!({})), "file:../weights.bin"),
                    LoadFile("m", generation_json("files", json!({})), "file:weights.bin"),
                    Load("m"),
                    LoadFile("sent", generation_json("sent", json!({})), "file:1/weights.bin"),
                    Unload("sent"),
                    Load("sent"),
                    LoadConfig("m", generation_json("second", json!({}))),
                    Touch("m/config.pbtxt", 10),
                    Load("m"),
                ]
            },
        },
        Story {
            name: "failures and repair",
            flags: &[],
            about: "m",
            prepare: |repository| {
                repository.model("m", &with("broken", &parameter("fail_load", "as told"))).version("m", "2");
                make_old(&repository.path().join("m"));
            },
            steps: || {
                vec![
                    Load("m"),
                    Get("health/ready"),
                    Get("models/m"),
                    Get("models/m/versions/2"),
                    Load("m"),
                    File("m/config.pbtxt", with("good", ""), 10),
                    Load("m"),
                    Get("health/ready"),
                    File("m/config.pbtxt", with("worse", &parameter("fail_load", "again")), 20),
                    Load("m"),
                    Get("health/ready"),
                    File("m/config.pbtxt", "nonsense".into(), 30),
                    Load("m"),
                    Get("health/ready"),
                    Remove("m/config.pbtxt"),
                    Load("m"),
                    File("m/config.pbtxt", with("best", ""), 40),
                    Load("m"),
                    Unload("m"),
                    File("m/config.pbtxt", "nonsense".into(), 50),
                    Load("m"),
                    Get("health/ready"),
                ]
            },
        },
        Story {
            name: "poll mode refuses the API",
            flags: &["--model-control-mode=poll", "--repository-poll-secs=3600"],
            about: "m",
            prepare: |repository| {
                repository.model("m", &with("1", ""));
            },
            steps: || {
                vec![
                    Load("m"),
                    Unload("m"),
                    Load("absent"),
                    LoadConfig("m", "{".into()),
                    Post("repository/models/m/load", "{\"parameters\":{\"x\":\"y\"}}"),
                ]
            },
        },
    ]
}

/// Plays a story to one server.
fn play(words: &[String], story: &Story) -> Option<Vec<Line>> {
    let repository = Repository::new();
    (story.prepare)(&repository);
    let mode = if story.flags.iter().any(|flag| flag.contains("control-mode")) { None } else { Some(EXPLICIT) };
    let flags: Vec<&str> = mode.into_iter().chain(story.flags.iter().copied()).collect();
    let mut life = Life::start_under(words, usual(), &repository, &flags)?;
    let mut lines = vec![(format!("{}: 0 start", story.name), state(&mut life, story.about))];
    for (number, step) in (story.steps)().iter().enumerate() {
        let (what, answer) = perform(&mut life, &repository, step);
        let place = repository.path().display().to_string();
        lines.push((format!("{}: {} {what}", story.name, number + 1), answer.replace(&place, "<repository>")));
        if !matches!(step, Get(_)) {
            let question = format!("{}: {} state after {what}", story.name, number + 1);
            lines.push((question, state(&mut life, story.about)));
        }
    }
    if words.is_empty() {
        life.server.stop();
    }
    Some(lines)
}

fn perform(life: &mut Life, repository: &Repository, step: &Step) -> (String, String) {
    let path = |path: &str| repository.path().join(path);
    let said = |answer: nereid_test_support::http::Answer| format!("{} {}", answer.status, comparable(&answer.text()));
    match step {
        Load(model) => (format!("load {model}"), said(life.load(model))),
        LoadConfig(model, config) => {
            (format!("load {model} with {config:.60}"), said(life.load_with(model, json!({ "config": config }))))
        }
        LoadFile(model, config, file) => {
            let parameters = json!({ "config": config, *file: "AAAA" });
            (format!("load {model} with {file}"), said(life.load_with(model, parameters)))
        }
        Unload(model) => (format!("unload {model}"), said(life.unload(model))),
        Post(path, body) => (format!("post {path} {body}"), said(life.post(&format!("/v2/{path}"), body))),
        Get(path) => (format!("get {path}"), said(life.get(&format!("/v2/{path}")))),
        File(name, contents, seconds) => {
            repository.file(name, contents);
            touch(repository, name, *seconds);
            (format!("write {name}"), String::new())
        }
        Version(model, version) => {
            repository.version(model, version);
            (format!("version {version} of {model}"), String::new())
        }
        Touch(name, seconds) => {
            touch(repository, name, *seconds);
            (format!("touch {name}"), String::new())
        }
        Remove(name) => {
            let path = path(name);
            let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.unwrap_or_else(|error| panic!("{path:?}: {error}"));
            (format!("remove {name}"), String::new())
        }
    }
}

/// An answer without what no two runs share: times, and the order of rows and members.
fn comparable(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Array(mut rows)) => {
            rows.sort_by_key(|row| (row["name"].to_string(), row["version"].to_string()));
            Value::Array(rows).to_string()
        }
        Ok(Value::Object(members)) => {
            let mut members: Vec<String> = members
                .iter()
                .filter(|(key, _)| *key != "model_stats")
                .map(|(key, value)| format!("{key}: {value}"))
                .collect();
            members.sort();
            members.join(", ")
        }
        _ => text.to_string(),
    }
}

/// Rows of the model once no version is on its way, the versions that serve, and the generation.
fn state(life: &mut Life, model: &str) -> String {
    life.wait_until("the end of what was begun", |life| !life.rows_of(model).iter().any(|row| row.contains("LOADING")));
    let (rows, versions) = (life.rows_of(model), life.versions(model));
    let generation = if versions.is_empty() { String::new() } else { life.generation(model) };
    format!("{rows:?} serve {versions:?} {generation}")
}

#[test]
fn both_servers_tell_the_same_stories() {
    let Some(original) = original() else { return };
    steadily(|| {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for story in stories() {
            let (Some(our), Some(their)) = (play(&[], &story), play(&original, &story)) else { return };
            ours.extend(our);
            theirs.extend(their);
        }
        compare(&ours, &theirs, &[MISSING_VERSION, NOT_NEWER]);
    });
}
