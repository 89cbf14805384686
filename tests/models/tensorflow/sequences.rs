//! Sequences: controls and states are inputs and outputs of the model.

use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};

use super::stand::{EXPLICIT, Models, Stand};

const CONFIG: &str = r#"
    max_batch_size: 4
    input { name: "VALUE" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "ID" data_type: TYPE_UINT64 dims: [ 1 ] }
    output { name: "ENDS" data_type: TYPE_BOOL dims: [ 1 ] }
    sequence_batching {
        max_sequence_idle_microseconds: 600000000
        control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
        control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
        control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }
        control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
        state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_INT32 dims: [ 1 ]
                initial_state { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true name: "zero" } }
    }
    instance_group { kind: KIND_CPU count: 2 }
"#;

/// Sends a value of sequence `id` and returns the sum, the id and whether the model saw the end.
fn send(stand: &mut Stand, id: i64, value: i32, start: bool, end: bool) -> (i32, u64, bool) {
    let parameters = [
        ("sequence_id", ParameterChoice::Int64Param(id)),
        ("sequence_start", ParameterChoice::BoolParam(start)),
        ("sequence_end", ParameterChoice::BoolParam(end)),
    ];
    let parameter = |(key, choice): (&str, _)| (key.to_owned(), InferParameter { parameter_choice: Some(choice) });
    let request = ModelInferRequest {
        model_name: "sequence".to_owned(),
        parameters: parameters.into_iter().map(parameter).collect(),
        inputs: vec![InferInputTensor {
            name: "VALUE".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![1, 1],
            ..Default::default()
        }],
        outputs: ["SUM", "ID", "ENDS"]
            .map(|name| InferRequestedOutputTensor { name: name.to_owned(), ..Default::default() })
            .to_vec(),
        raw_input_contents: vec![value.to_le_bytes().to_vec().into()],
        ..Default::default()
    };
    let response: ModelInferResponse = stand.grpc.call("ModelInfer", &request).expect("an answer");
    let bytes = &response.raw_output_contents;
    let sum = i32::from_le_bytes(bytes[0][..].try_into().expect("four bytes"));
    let id = u64::from_le_bytes(bytes[1][..].try_into().expect("eight bytes"));
    (sum, id, bytes[2][..] == [1])
}

#[test]
fn each_sequence_has_its_own_state() {
    let Some(models) = Models::new() else { return };
    models.add("sequence", "sequence.savedmodel", CONFIG);
    let mut stand = models.serve(&[EXPLICIT]);
    stand.must_load("sequence");
    assert_eq!(send(&mut stand, 7, 5, true, false), (5, 7, false));
    assert_eq!(send(&mut stand, 8, 100, true, false), (100, 8, false));
    assert_eq!(send(&mut stand, 7, 3, false, false), (8, 7, false));
    assert_eq!(send(&mut stand, 8, 1, false, true), (101, 8, true));
    assert_eq!(send(&mut stand, 7, 2, false, true), (10, 7, true));
    assert_eq!(send(&mut stand, 7, 1, true, true), (1, 7, true), "a new sequence begins anew");
}
