//! The mixes of names of Triton's test L0_libtorch_io_names.

use serde_json::json;

use super::{add, data, infer, library_flag, tensor};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{ALL, each};

/// Name of the mix; inputs and outputs in the order of the configuration. The first input of `add_sub` is the minuend.
const MIXES: [(&str, [&str; 2], [&str; 2]); 8] = [
    ("io_index", ["INPUT__0", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"]),
    ("output_index", ["INPUT0", "INPUT1"], ["OUTPUT__0", "OUTPUT__1"]),
    ("no_output_index", ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"]),
    ("no_arguments_output_index", ["INPUTA", "INPUTB"], ["OUTPUT__0", "OUTPUT__1"]),
    ("mix_index", ["INPUTA", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"]),
    ("mix_arguments", ["INPUT0", "INPUTB"], ["OUTPUT__0", "OUTPUT__1"]),
    ("mix_arguments_index", ["INPUT0", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"]),
    ("unordered_index", ["INPUT1", "INPUT0"], ["OUT__1", "OUT__0"]),
];

#[test]
fn every_mix_of_names_puts_sum_and_difference_into_the_right_outputs() {
    let Some(library) = library_flag() else { return };
    let repository = Repository::new();
    for (mix, inputs, outputs) in MIXES {
        let of = |what, names: [&str; 2]| names.map(|name| tensor(what, name, "TYPE_FP32", "2")).concat();
        add(
            &repository,
            mix,
            "add_sub",
            &format!("max_batch_size: 8 {}{}", of("input", inputs), of("output", outputs)),
        );
    }
    each(&ALL, |variant| {
        let server = Server::start(variant, repository.path(), &[&library]);
        for (mix, inputs, outputs) in MIXES {
            let is_unordered = mix == "unordered_index";
            let (minuend, subtrahend) = if is_unordered { (1, 0) } else { (0, 1) };
            let input =
                |name: &str, data: [f32; 2]| json!({ "name": name, "datatype": "FP32", "shape": [1, 2], "data": data });
            let given = [input(inputs[minuend], [5., 6.]), input(inputs[subtrahend], [1., 2.])];
            let answer = infer(&server, mix, json!(given));
            assert_eq!(answer.status, 200, "{mix}: {}", answer.text());
            assert_eq!(data(&answer, outputs[minuend]), json!([6., 8.]), "{mix}");
            assert_eq!(data(&answer, outputs[subtrahend]), json!([4., 4.]), "{mix}");
        }
        server.stop();
    });
}
