//! Tensors of ensembles: one that a step reads twice, shapes of the ensemble's own, labels of classes
//! (contract/schedulers.md section 5).

use serde_json::{Value, json};

use super::decoupled::repeat_config;
use super::ensemble::{ensemble, infer, one, outputs_of, two};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

#[test]
fn a_step_may_read_one_tensor_twice() {
    let repository = Repository::new();
    repository.identity("pair", 0, &two()).identity("single", 0, &one());
    let twice = |input: &str| format!("pair INPUT0={input} INPUT1={input} -> OUTPUT0=Y OUTPUT1=Z");
    repository.model("of_an_input", &ensemble("of_an_input", "X", "Y Z", &[&twice("X")], ""));
    let steps = ["single INPUT0=X -> OUTPUT0=A", &twice("A")];
    repository.model("of_a_step", &ensemble("of_a_step", "X", "Y Z", &steps, ""));
    // The step that writes the tensor stands behind the one that reads it.
    let steps = [&twice("A"), "single INPUT0=X -> OUTPUT0=A"];
    repository.model("backwards", &ensemble("backwards", "X", "Y Z", &steps, ""));
    // Beside another reader, and with another input.
    let steps = [&twice("X"), "pair INPUT0=X INPUT1=V -> OUTPUT0=W OUTPUT1=U"];
    repository.model("beside", &ensemble("beside", "X V", "Y Z W U", &steps, ""));
    let server = Server::start(usual(), repository.path(), &[]);
    for model in ["of_an_input", "of_a_step", "backwards"] {
        let answer = infer(&server, model, &[("X", &[2], &[3, 4])], &[]);
        assert_eq!(outputs_of(&answer), "Y[2]=[3,4] Z[2]=[3,4]", "{model}");
        let answer = infer(&server, model, &[("X", &[1], &[5])], &["Z"]);
        assert_eq!(outputs_of(&answer), "Z[1]=[5]", "{model}");
    }
    let answer = infer(&server, "beside", &[("X", &[1], &[5]), ("V", &[1], &[6])], &[]);
    assert_eq!(outputs_of(&answer), "Y[1]=[5] Z[1]=[5] W[1]=[5] U[1]=[6]");
    server.stop();
}

/// An ensemble of one step from X to Y, both INT32 with what is said of them.
fn around(step: &str, tensor: &str, more: &str) -> String {
    format!(
        "platform: \"ensemble\" {more} \
         input {{ name: \"X\" data_type: TYPE_INT32 {tensor} }} output {{ name: \"Y\" data_type: TYPE_INT32 {tensor} }} \
         ensemble_scheduling {{ step {{ model_name: \"{step}\" model_version: -1 \
         input_map {{ key: \"INPUT0\" value: \"X\" }} output_map {{ key: \"OUTPUT0\" value: \"Y\" }} }} }}"
    )
}

#[test]
fn ensembles_have_shapes_of_their_own() {
    const TWO_BY_TWO: &str = "dims: [ 2, 2 ] reshape { shape: [ 4 ] }";
    let repository = Repository::new();
    let int32 = |dims: &'static str| [Pair::new("INT32", dims)];
    repository.identity("flat", 0, &int32("4")).identity("rows", 8, &int32("4"));
    repository.identity("any", 0, &int32("-1, 3")).identity("numbers", 8, &int32("1"));
    repository.identity("inner", 0, &[Pair::new("INT32", "4").reshape("reshape { shape: [ 2, 2 ] }")]);
    let models = [
        ("plain", around("flat", TWO_BY_TWO, "")),
        ("batching", around("rows", TWO_BY_TWO, "max_batch_size: 8")),
        // Only one of the two sides batches.
        ("into_rows", around("rows", TWO_BY_TWO, "")),
        ("variable", around("any", "dims: [ -1, 3, 1 ] reshape { shape: [ -1, 3 ] }", "")),
        ("scalars", around("numbers", "dims: [ 1, 1 ] reshape { shape: [ 1 ] }", "max_batch_size: 8")),
        // The part has a shape of its own too.
        ("both", around("inner", TWO_BY_TWO, "")),
    ];
    for (name, config) in &models {
        repository.model(name, config);
    }
    let server = Server::start(usual(), repository.path(), &[]);
    /// Model, shape, number of elements.
    type Case<'a> = (&'a str, &'a [i64], i32);
    let cases: [Case<'_>; 6] = [
        ("plain", &[2, 2], 4),
        ("batching", &[3, 2, 2], 12),
        ("into_rows", &[2, 2], 4),
        ("variable", &[2, 3, 1], 6),
        ("scalars", &[5, 1, 1], 5),
        ("both", &[2, 2], 4),
    ];
    for (model, shape, count) in cases {
        let data: Vec<i32> = (0..count).collect();
        let answer = infer(&server, model, &[("X", shape, &data)], &[]);
        assert_eq!(outputs_of(&answer), format!("Y{}={}", json!(shape), json!(data)), "{model}");
    }
    let refused = infer(&server, "plain", &[("X", &[4], &[0; 4])], &[]);
    let text = "[request id: <id_unknown>] unexpected shape for input 'X' for model 'plain'. Expected [2,2], got [4]. ";
    assert_eq!((refused.status, refused.error().as_str()), (400, text));
    server.stop();
}

/// The best two classes of output Y.
fn classes(server: &Server, model: &str) -> Value {
    let body = json!({
        "inputs": [{ "name": "X", "datatype": "INT32", "shape": [3], "data": [7, 9, 8] }],
        "outputs": [{ "name": "Y", "parameters": { "classification": 2 } }],
    });
    let answer: Answer =
        Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["outputs"][0]["data"].clone()
}

#[test]
fn classes_have_the_labels_of_the_step_that_makes_the_output() {
    let repository = Repository::new();
    repository.identity("labelled", 0, &[Pair::new("INT32", "-1").labels()]).identity("plain", 0, &one());
    repository.file("labelled/labels.txt", "a\nb\nc\n");
    let first = ["labelled INPUT0=X -> OUTPUT0=Y"];
    repository.model("e", &ensemble("e", "X", "Y", &first, ""));
    repository.model("around", &ensemble("around", "X", "Y", &["e X=X -> Y=Y"], ""));
    // Only the step that makes the output counts.
    let steps = ["labelled INPUT0=X -> OUTPUT0=A", "plain INPUT0=A -> OUTPUT0=Y"];
    repository.model("hidden", &ensemble("hidden", "X", "Y", &steps, ""));
    let own = ensemble("own", "X", "Y", &first, "");
    let own = own.replace("name: \"Y\" data_type", "name: \"Y\" label_filename: \"mine.txt\" data_type");
    repository.model("own", &own).file("own/mine.txt", "x\ny\n");
    let explicit = ["--model-control-mode=explicit", "--load-model=*"];
    let server = Server::start(usual(), repository.path(), &explicit);
    assert_eq!(classes(&server, "e"), json!(["9:1:b", "8:2:c"]));
    assert_eq!(classes(&server, "around"), json!(["9:1:b", "8:2:c"]));
    assert_eq!(classes(&server, "hidden"), json!(["9:1", "8:2"]));
    assert_eq!(classes(&server, "own"), json!(["9:1:y", "8:2"]), "the ensemble's own file counts first");
    // The part comes back with other labels.
    let mut http = Peer::connect(server.http);
    let mut ask = |what: &str| {
        let answer = http.post(&format!("/v2/repository/models/labelled/{what}"), &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    ask("unload");
    repository.file("labelled/labels.txt", "d\ne\nf\n");
    ask("load");
    assert_eq!(classes(&server, "e"), json!(["9:1:e", "8:2:f"]));
    assert_eq!(classes(&server, "around"), json!(["9:1:e", "8:2:f"]));
    server.stop();
}

#[test]
fn outputs_of_two_decoupled_steps_are_refused() {
    let repository = Repository::new();
    repository.model("repeat", &repeat_config());
    let inputs = "IN=IN DELAY=DELAY WAIT=WAIT";
    let steps = [format!("repeat {inputs} -> OUT=Y IDX=A"), format!("repeat {inputs} -> OUT=Z IDX=B")];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let config = ensemble("e", "IN DELAY WAIT", "Y Z A B", &steps, "");
    let unsigned = |config: String, name: &str| {
        config.replace(&format!("\"{name}\" data_type: TYPE_INT32"), &format!("\"{name}\" data_type: TYPE_UINT32"))
    };
    repository.model("e", &["DELAY", "WAIT", "A", "B"].into_iter().fold(config, unsigned));
    let flags = ["--model-control-mode=explicit"];
    let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
    let answer = Peer::connect(server.http).post("/v2/repository/models/e/load", &[], b"");
    let text = "in ensemble e, step of model 'e' receives inputs originated from different decoupled models";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    server.stop();
}
