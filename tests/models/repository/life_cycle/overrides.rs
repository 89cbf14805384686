//! Load requests with a configuration or files.

use nereid_wire::inference::model_repository_parameter::ParameterChoice;
use serde_json::json;

use crate::repository::life_cycle::control::{EXPLICIT, Life, generation, generation_json, grpc_load, make_old, touch};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::OTHER_SERVER;
use nereid_test_support::variant::usual;

fn start() -> Option<(Repository, Life)> {
    let repository = Repository::new();
    repository.model("m", &generation("m", "disk")).version("m", "2").version("m", "3");
    make_old(&repository.path().join("m"));
    let life = Life::start(usual(), &repository, &[EXPLICIT])?;
    Some((repository, life))
}

#[test]
fn a_config_of_the_load_wins_over_the_one_on_disk() {
    let Some((_repository, mut life)) = start() else { return };
    // Original names, camelCase, enums in any case: protobuf's JSON.
    let spelled = json!({
        "backend": "copycat",
        "maxBatchSize": 4,
        "input": [{ "name": "INPUT0", "dataType": "TYPE_INT32", "dims": ["-1"] }],
        "output": [{ "name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1] }],
        "instanceGroup": [{ "kind": "KIND_CPU" }],
        "versionPolicy": { "specific": { "versions": [1, 3] } },
        "parameters": { "generation": { "stringValue": "spelled" } },
    });
    life.must_load_with("m", json!({ "config": spelled.to_string() }));
    assert_eq!(life.generation("m"), "spelled");
    assert_eq!(life.config("m")["max_batch_size"], 4);
    assert_eq!(life.config("m")["name"], "m", "the name is the directory's where the config gives none");
    assert_eq!(life.versions("m"), ["1", "3"]);
    life.must_load_with("m", json!({ "config": generation_json("again", json!({})) }));
    assert_eq!((life.generation("m"), life.versions("m")), ("again".into(), vec!["3".to_string()]));
    life.server.stop();
}

/// What 2.51 takes of JSON that is none, and of paths that begin with a slash.
#[test]
fn overrides_are_understood_as_protobuf_does() {
    let Some((_repository, mut life)) = start() else { return };
    let io = |name: &str| format!("{{name:'{name}',data_type:'TYPE_INT32',dims:-1}}");
    let config = |generation: &str| {
        let (input, output) = (io("INPUT0"), io("OUTPUT0"));
        format!(
            "{{backend:'copycat',input:{input},'output':[{output},],instance_group:{{kind:'kind-cpu'}},\
             parameters:{{generation:{{string_value:'{generation}',}},}},}}"
        )
    };
    life.must_load_with("m", json!({ "config": config("lenient") }));
    assert_eq!((life.generation("m"), life.served_by("m")), ("lenient".into(), "3".into()));
    for (step, path) in ["file:/7/weights.bin", "file://7/weights.bin", "file:///7/./weights.bin"].iter().enumerate() {
        let generation = format!("files{step}");
        life.must_load_with("m", json!({ "config": config(&generation), *path: "d2VpZ2h0cw==" }));
        assert_eq!((life.generation("m"), life.served_by("m")), (generation, "7".into()), "{path}");
    }
    for refused in ["{backend:'copycat',,}", "{max_batch_size:0x4}", "{backend:copycat}", "{backend:'copycat'} x"] {
        assert_eq!(life.load_with("m", json!({ "config": refused })).status, 500, "{refused}");
    }
    life.server.stop();
}

#[test]
fn a_config_override_lasts_until_a_file_is_newer_or_the_model_is_unloaded() {
    let Some((repository, mut life)) = start() else { return };
    life.must_load("m");
    assert_eq!(life.generation("m"), "disk");
    life.must_load_with("m", json!({ "config": generation_json("override", json!({})) }));
    assert_eq!(life.generation("m"), "override");
    // Plain loads keep it, also after a file that is older than the call.
    life.must_load("m");
    assert_eq!(life.generation("m"), "override");
    touch(&repository, "m/config.pbtxt", -60);
    life.must_load("m");
    assert_eq!(life.generation("m"), "override");
    touch(&repository, "m/config.pbtxt", 10);
    life.must_load("m");
    assert_eq!(life.generation("m"), "disk");
    // An override once more, and an unload.
    life.must_load_with("m", json!({ "config": generation_json("second", json!({})) }));
    assert_eq!(life.generation("m"), "second");
    life.must_unload("m");
    life.wait_until("the end of m", |life| !life.is_ready("m"));
    life.must_load("m");
    assert_eq!(life.generation("m"), "disk");
    life.server.stop();
}

#[test]
fn files_of_the_load_replace_the_directory() {
    let Some((repository, mut life)) = start() else { return };
    life.must_load("m");
    assert_eq!(life.versions("m"), ["3"]);
    // base64 of "weights"; characters that are none of base64's are passed over.
    let config = generation_json("files", json!({ "version_policy": { "all": {} } }));
    life.must_load_with("m", json!({ "config": config, "file:7/weights.bin": "d2Vp\nZ2h0cw==" }));
    assert_eq!((life.generation("m"), life.versions("m")), ("files".into(), vec!["7".to_string()]));
    assert_eq!(life.served_by("m"), "7");
    assert!(!repository.path().join("m/7").exists(), "the repository itself is not written to");
    // The next plain load goes back.
    life.must_load("m");
    assert_eq!((life.generation("m"), life.versions("m")), ("disk".into(), vec!["3".to_string()]));
    life.server.stop();
}

#[test]
fn files_of_the_load_can_be_a_model_of_their_own() {
    let Some((_repository, mut life)) = start() else { return };
    let mut grpc = Grpc::connect(life.server.grpc);
    let config = ParameterChoice::StringParam(generation_json("sent", json!({})));
    let file = ParameterChoice::BytesParam(b"\0\xffraw".as_slice().into());
    assert_eq!(grpc_load(&mut grpc, "", "sent", &[("config", config), ("file:1/model.bin", file)]), Ok(()));
    assert_eq!((life.generation("sent"), life.served_by("sent")), ("sent".into(), "1".into()));
    life.must_unload("sent");
    life.wait_until("the end of the model", |life| !life.is_ready("sent"));
    let answer = life.load("sent");
    assert_eq!(answer.error(), "failed to load 'sent', failed to poll from model repository");
    life.server.stop();
}

#[test]
fn what_is_wrong_with_an_override_is_in_the_log_and_changes_nothing() {
    let Some((repository, mut life)) = start() else { return };
    life.must_load("m");
    let good = generation_json("good", json!({}));
    let outside = |path: &str| format!("Invalid file parameter 'file:{path}' with normalized path '");
    for (parameters, text) in [
        (json!({ "config": "{" }), "Invalid config override: ".to_string()),
        (json!({ "config": "" }), String::new()),
        (json!({ "config": "[]" }), String::new()),
        (json!({ "config": "{\"max_batch_sise\":4}" }), "Invalid config override: ".into()),
        (json!({ "config": "{\"max_batch_size\":\"many\"}" }), "Invalid config override: ".into()),
        (json!({ "config": generation_json("x", json!({ "name": "other" })) }), "unexpected directory name 'm'".into()),
        (json!({ "config": generation_json("x", json!({ "max_batch_size": -1 })) }), "'max_batch_size' must be".into()),
        (
            json!({ "file:1/model.bin": "AAAA" }),
            "Load parameter 'config' must be specified for model file override".into(),
        ),
        (json!({ "config": good, "file:../../escape.bin": "AAAA" }), outside("../../escape.bin")),
        (json!({ "config": good, "file:1/../../escape.bin": "AAAA" }), outside("1/../../escape.bin")),
    ] {
        let answer = life.load_with("m", parameters.clone());
        let wanted = "failed to load 'm', failed to poll from model repository";
        assert_eq!((answer.status, answer.error().as_str()), (500, wanted), "{parameters}");
        // The log has a thread of its own, which may be later than the answer.
        life.server.wait_for_log("Poll failed for model directory 'm'");
        life.server.wait_for_log(&text);
        assert_eq!((life.generation("m"), life.versions("m")), ("disk".into(), vec!["3".to_string()]), "{parameters}");
    }
    for name in ["escape.bin", "m/escape.bin"] {
        assert!(!repository.path().join(name).exists(), "{name} was written");
    }
    // A version that fails takes the whole load back.
    let failing = generation_json(
        "failing",
        json!({ "parameters": { "fail_load": { "string_value": "not this one" } }, "version_policy": { "all": {} } }),
    );
    let answer = life.load_with("m", json!({ "config": failing }));
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.error().starts_with("load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid"));
    assert_eq!((life.generation("m"), life.versions("m")), ("disk".into(), vec!["3".to_string()]));
    assert_eq!(life.served_by("m"), "3");
    life.server.stop();
}

#[test]
fn a_file_name_that_the_file_system_refuses_is_a_failed_load() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return; // 2.51 ends with an exception.
    }
    let Some((_repository, mut life)) = start() else { return };
    let config = generation_json("long", json!({}));
    for name in ["n".repeat(256), format!("1/{}", "n".repeat(5000)), "n/".repeat(3000)] {
        let answer = life.load_with("m", json!({ "config": config, format!("file:{name}"): "AAAA" }));
        let wanted = "failed to load 'm', failed to poll from model repository";
        assert_eq!((answer.status, answer.error().as_str()), (500, wanted), "{} bytes", name.len());
    }
    assert_eq!(life.get("/v2/health/live").status, 200);
    life.must_load("m");
    life.server.stop();
}

/// A model directory with `configs/`: chosen by a flag, with `config.pbtxt` where the chosen one is not there.
#[test]
fn a_custom_configuration_is_chosen_by_name() {
    let repository = Repository::new();
    repository.model("both", &generation("both", "plain")).model("plain", &generation("plain", "plain"));
    repository.file("both/configs/large.pbtxt", generation("both", "large"));
    repository.file("only/configs/large.pbtxt", generation("only", "large")).version("only", "1");
    for (flags, both) in [
        (&[EXPLICIT, "--load-model=*"][..], "plain"),
        (&[EXPLICIT, "--load-model=*", "--model-config-name=large"], "large"),
    ] {
        let all: Vec<&str> = flags.iter().copied().chain(["--exit-on-error=false"]).collect();
        let Some(mut life) = Life::start(usual(), &repository, &all) else { return };
        assert_eq!(life.generation("both"), both);
        assert_eq!(life.generation("plain"), "plain");
        assert_eq!(life.is_ready("only"), both == "large");
        // Not a configuration and no warning: the directory of configurations beside the versions.
        assert!(!life.server.log().contains("'configs'"), "{}", life.server.log());
        if both == "large" {
            repository.file("both/configs/large.pbtxt", generation("both", "larger"));
            touch(&repository, "both/configs/large.pbtxt", 20);
            life.must_load("both");
            assert_eq!(life.generation("both"), "larger");
        }
        life.server.stop();
    }
}
