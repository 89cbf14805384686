//! Calls that agents receive, their order and their consequences.

use std::fs;

use super::*;

/// Calls in the order in which they came.
type Journal = Arc<Mutex<Vec<String>>>;

/// An agent that records its calls and does what its parameters name.
struct RecordingAgent {
    name: String,
    journal: Journal,
}

struct RecordedModel {
    agent: Arc<RecordingAgent>,
    task: Task,
}

fn note(journal: &Journal, text: String) {
    journal.lock().unwrap().push(text);
}

impl Agent for RecordingAgent {
    fn code_location(&self) -> String {
        format!("/agents/{}", self.name)
    }

    fn begin(self: Arc<Self>, task: Task) -> Result<Box<dyn AgentModel>, Status> {
        let Task { location, config, parameters, .. } = &task;
        if parameters.iter().any(|(key, _)| key == "refuse") {
            return Err(Status::unsupported("refused"));
        }
        let Location::Directory(place) = location else { panic!("{location:?}") };
        let place = place.file_name().unwrap().to_str().unwrap();
        note(&self.journal, format!("{} begins at {place} with {}", self.name, config.default_model_filename));
        Ok(Box::new(RecordedModel { agent: self, task }))
    }
}

impl AgentModel for RecordedModel {
    fn act(&mut self, action: Action) -> Result<(), Status> {
        let short = action.name().trim_start_matches("TRITONREPOAGENT_ACTION_");
        note(&self.agent.journal, format!("{} {short}", self.agent.name));
        for (key, value) in self.task.parameters.clone() {
            match key.as_str() {
                "move" if action == Action::Load => self.task.location = Location::Directory(value.into()),
                "remote" if action == Action::Load => self.task.location = Location::Remote(value),
                "fail" if value == short => return Err(Status::invalid("as configured")),
                _ => {}
            }
        }
        Ok(())
    }

    fn location(&self) -> Location {
        self.task.location.clone()
    }
}

impl Drop for RecordedModel {
    fn drop(&mut self) {
        note(&self.agent.journal, format!("{} ends", self.agent.name));
    }
}

impl Drop for RecordingAgent {
    fn drop(&mut self) {
        note(&self.journal, format!("{} closes", self.name));
    }
}

fn scribes() -> (Agents, Journal) {
    let journal = Journal::default();
    let opened = Arc::clone(&journal);
    let agents = Agents::new(Box::new(move |name, file| {
        if name == "absent" {
            return Err(Status::invalid("unable to find it"));
        }
        note(&opened, format!("{name} opens{}", file.unwrap_or_default()));
        Ok(Arc::new(RecordingAgent { name: name.to_owned(), journal: Arc::clone(&opened) }))
    }));
    (agents, journal)
}

fn config(agents: &[(&str, &[(&str, &str)])]) -> ModelConfig {
    let named = |(name, parameters): &(&str, &[(&str, &str)])| model_repository_agents::Agent {
        name: (*name).to_owned(),
        parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    let agents = agents.iter().map(named).collect();
    ModelConfig {
        default_model_filename: "first".to_owned(),
        model_repository_agents: Some(nereid_wire::inference::ModelRepositoryAgents { agents }),
        ..ModelConfig::default()
    }
}

fn load(agents: &Agents, config: &ModelConfig) -> Result<Option<AgentModels>, Status> {
    let read = |place: &Path| {
        let default_model_filename = place.file_name()?.to_str()?.to_owned();
        (default_model_filename != "unread").then(|| ModelConfig { default_model_filename, ..ModelConfig::default() })
    };
    AgentModels::load(agents, "model", Path::new("/repository/model"), config, read)
}

fn recorded(journal: &Journal) -> String {
    std::mem::take(&mut *journal.lock().unwrap()).join("; ")
}

#[test]
fn agents_are_called_in_order_through_the_whole_life() {
    let (agents, journal) = scribes();
    let config =
        config(&[("a", &[("move", "/elsewhere/moved")]), ("b", &[]), ("a", &[("move", "/x/unread")]), ("b", &[])]);
    let loaded = load(&agents, &config).unwrap().unwrap();
    assert_eq!(
        recorded(&journal),
        "a opens; a begins at model with first; a LOAD; b opens; b begins at moved with moved; b LOAD; \
         a begins at moved with moved; a LOAD; b begins at unread with ; b LOAD"
    );
    assert_eq!(loaded.directory(), Path::new("/x/unread"));
    loaded.enter();
    loaded.enter();
    loaded.complete();
    let back = |action: &str| format!("b {action}; a {action}; b {action}; a {action}");
    assert_eq!(recorded(&journal), back("LOAD_COMPLETE"));
    loaded.complete();
    loaded.leave();
    assert_eq!(recorded(&journal), "", "one version still serves");
    loaded.leave();
    assert_eq!(recorded(&journal), "a UNLOAD; b UNLOAD; a UNLOAD; b UNLOAD");
    drop(loaded);
    assert_eq!(recorded(&journal), format!("{}; a ends; b ends; a ends; b ends", back("UNLOAD_COMPLETE")));
    assert_eq!(
        agents.code_locations(),
        [("a", "/agents/a"), ("b", "/agents/b")].map(|(a, b)| (a.to_owned(), b.to_owned()))
    );
    agents.close();
    assert_eq!(recorded(&journal), "a closes; b closes");
}

/// Agents, the error of the load, the recorded calls.
type Case<'a> = (&'a [(&'a str, &'a [(&'a str, &'a str)])], &'a str, &'a str);

#[test]
fn each_agent_that_was_called_is_notified_of_a_failed_load() {
    let fail: &[(&str, &str)] = &[("fail", "LOAD")];
    let cases: [Case<'_>; 6] = [
        (
            &[("a", &[]), ("b", fail), ("c", &[])],
            "as configured",
            "a opens; a begins at model with first; a LOAD; b opens; b begins at model with first; b LOAD; \
             b LOAD_FAIL; a LOAD_FAIL; a ends; b ends",
        ),
        (
            &[("a", &[]), ("b", &[("refuse", "")])],
            "refused",
            "a opens; a begins at model with first; a LOAD; b opens; a LOAD_FAIL; a ends",
        ),
        (
            &[("a", &[]), ("absent", &[])],
            "unable to find it",
            "a opens; a begins at model with first; a LOAD; a LOAD_FAIL; a ends",
        ),
        (&[("absent", &[])], "unable to find it", ""),
        (
            &[("checksum", &[("x", "y")])],
            "Unexpected parameter 'x' of the agent 'checksum', expects 'MD5:<path to a file of the model>'",
            "",
        ),
        (
            &[("a", &[("remote", "nowhere")])],
            "'nowhere' is not the location of a model",
            "a opens; a begins at model with first; a LOAD; a LOAD_FAIL; a ends",
        ),
    ];
    for (named, text, expected) in cases {
        let (agents, journal) = scribes();
        let error = load(&agents, &config(named)).map(|_| ()).unwrap_err();
        assert_eq!(error.message, text, "{named:?}");
        assert_eq!(recorded(&journal), expected, "{named:?}");
    }
}

#[test]
fn a_load_that_goes_no_further_failed_and_errors_later_change_nothing() {
    let (agents, journal) = scribes();
    let failing = config(&[("a", &[("fail", "LOAD_COMPLETE")]), ("b", &[])]);
    drop(load(&agents, &failing).unwrap());
    assert!(recorded(&journal).ends_with("b LOAD; b LOAD_FAIL; a LOAD_FAIL; a ends; b ends"));
    let loaded = load(&agents, &failing).unwrap().unwrap();
    loaded.complete();
    // No version has served from it.
    drop(loaded);
    let end =
        "b LOAD_COMPLETE; a LOAD_COMPLETE; a UNLOAD; b UNLOAD; b UNLOAD_COMPLETE; a UNLOAD_COMPLETE; a ends; b ends";
    assert!(recorded(&journal).ends_with(end));
    assert!(load(&agents, &config(&[])).unwrap().is_none());
    assert!(load(&agents, &ModelConfig::default()).unwrap().is_none());
}

#[test]
fn a_built_in_agent_wins_unless_a_library_is_named() {
    let (agents, journal) = scribes();
    drop(load(&agents, &config(&[("checksum", &[])])).unwrap());
    assert_eq!(recorded(&journal), "");
    drop(load(&agents, &config(&[("checksum", &[("library", "x.so")])])).unwrap());
    assert!(recorded(&journal).starts_with("checksum opensx.so; checksum begins"));
    drop(load(&agents, &config(&[("mine", &[("library", "x.so")])])).unwrap());
    assert!(recorded(&journal).starts_with("mine opens; "), "a parameter of its own");
    let places: Vec<String> = agents.code_locations().into_iter().map(|(_, place)| place).collect();
    assert_eq!(places, ["<built in>", "/agents/checksum", "/agents/mine"]);
}

#[test]
fn the_checksum_of_a_file_must_be_the_expected_one() {
    let root = std::env::temp_dir().join(format!("nereid-checksum-{}", std::process::id()));
    fs::create_dir_all(root.join("model/1")).unwrap();
    fs::write(root.join("model/1/file"), "The quick brown fox jumps over the lazy dog").unwrap();
    fs::write(root.join("model/empty"), "").unwrap();
    fs::write(root.join("outside"), "").unwrap();
    let check = |parameters: &[(&str, &str)]| {
        let config = config(&[("checksum", parameters)]);
        let loaded = AgentModels::load(&Agents::default(), "model", &root.join("model"), &config, |_| None);
        loaded.map(|_| ()).map_err(|status| status.message.into_owned())
    };
    // RFC 1321, A.5, and a sentence with a well-known digest.
    const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e";
    const FOX: &str = "9e107d9d372bb6826bd81d3542a419d6";
    for path in ["1/file", "./1/file", "1/../1/file", "1//file"] {
        assert_eq!(check(&[(&format!("MD5:{path}"), FOX), ("MD5:empty", EMPTY)]), Ok(()), "{path}");
    }
    assert_eq!(check(&[("MD5:empty", &EMPTY.to_uppercase())]), Ok(()));
    assert_eq!(check(&[]), Ok(()));
    let mismatch = format!("Mismatched MD5 hash for file empty, expect: {FOX}, got: {EMPTY}");
    assert_eq!(check(&[("MD5:1/file", FOX), ("MD5:empty", FOX)]), Err(mismatch));
    let outside = |path: &str| format!("file '{path}' of the agent 'checksum' is outside the model's directory");
    let unexpected = |key: &str| {
        format!("Unexpected parameter '{key}' of the agent 'checksum', expects 'MD5:<path to a file of the model>'")
    };
    for path in ["../outside", "/etc/passwd", "1/../../outside", "", "..", "1/.."] {
        assert_eq!(check(&[(&format!("MD5:{path}"), EMPTY)]), Err(outside(path)), "{path}");
    }
    for key in ["SHA256:empty", "md5:empty", "empty", ""] {
        assert_eq!(check(&[(key, EMPTY)]), Err(unexpected(key)), "{key}");
    }
    for path in ["absent", "1"] {
        let error = check(&[(&format!("MD5:{path}"), EMPTY)]).unwrap_err();
        assert!(error.starts_with(&format!("failed to read file '{path}' to compute its MD5 hash: ")), "{error}");
    }
    let _ = fs::remove_dir_all(&root);
}
