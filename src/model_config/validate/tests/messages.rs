//! Every message of contract/model_config.md section 6, with a configuration that earns it.

use super::super::super::labels::tests::Scratch;
use super::super::super::{VersionPolicy, to_dynamic};
use super::*;

/// The messages row by row; `<…>` stands for any text. A message with two endings is two.
const MESSAGES: &[(&str, &[&str])] = &[
    (
        "name",
        &[
            "model configuration must specify 'name'",
            "unexpected directory name '<dir>' for model '<name>', directory name must equal model name",
        ],
    ),
    (
        "backend/platform",
        &[
            "unexpected platform type '<p>' for <m>",
            "must specify 'platform' or 'backend' for '<m>'",
            "unexpected 'platform' and 'backend' pair, got:<p>, <b>",
            "Ensemble model '<m>' must have platform type 'ensemble' and empty backend type",
        ],
    ),
    ("batch", &["'max_batch_size' must be non-negative value for <m>"]),
    (
        "io",
        &[
            "model input must specify 'name' for <m>",
            "model output must specify 'name' for <m>",
            "model input '<n>' must specify 'data_type' for <m>",
            "model output '<n>' must specify 'data_type' for <m>",
            "model input '<n>' must specify 'dims' for <m>",
            "model output '<n>' must specify 'dims' for <m>",
            "model input '<n>' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for <m>",
            "model output '<n>' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for <m>",
            "model input '<n>' cannot have empty reshape for non-batching model as scalar tensors are not supported \
             for <m>",
            "model output '<n>' cannot have empty reshape for non-batching model as scalar tensors are not supported \
             for <m>",
            "model input '<n>' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension \
             for <m>",
            "model output '<n>' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension \
             for <m>",
            "model input '<n>' has different size for dims and reshape for <m>",
            "model output '<n>' has different size for dims and reshape for <m>",
            "model input '<n>' has different number of variable-size dimensions for dims and reshape for <m>",
            "model output '<n>' has different number of variable-size dimensions for dims and reshape for <m>",
        ],
    ),
    (
        "format",
        &[
            "model input NHWC/NCHW require 3 dims for <m>",
            "shape tensors are only supported for TensorRT platform for <m>",
            "Non-linear IO format is only supported for the TensorRT platform for <m>",
            "Non-linear IO format input requires 3 dims for <m>",
        ],
    ),
    (
        "batch_input/output",
        &[
            "batch input kind '<K>' expects 1 source input, got <N> for <m>",
            "batch input data type must be TYPE_INT32 or TYPE_FP32 for <m>",
            "unknown source input name '<n>' for <m>",
            "unknown target output name '<n>' for <m>",
            "target output name '<n>' can only be specified once for <m>",
            "batch output kind '<K>' expects 1 source input, got <N> for <m>",
        ],
    ),
    (
        "dynamic",
        &[
            "dynamic batching preferred size must be positive for <m>",
            "dynamic batching preferred size must be <= max batch size for <m>",
            "default priority level must be in range [1, <N>] for <m>",
            "priority queue policy must have priority level in range [1, <N>] for <m>",
            "Only one priority level is allowed when 'preserve_ordering' is true for <m>",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for <m>",
        ],
    ),
    (
        "sequence",
        &[
            "sequence batching control tensor must have a name for <m>",
            "sequence batching control tensor '<t>' is specified for multiple control kinds for <m>",
            "sequence batching specifies multiple <KIND> tensors for <m>",
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             <KIND> for <m>",
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
             'bool_false_true' for <KIND> for <m>",
            "sequence batching control 'int32_false_true' must have exactly 2 entries for <KIND> for <m>",
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             CONTROL_SEQUENCE_CORRID for <m>",
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for <m>. Allowed data types are TYPE_UINT64, \
             TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            "sequence batching preferred batch size must be positive for <m>",
            "sequence batching preferred batch size must be <= max batch size for <m>",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for <m>",
        ],
    ),
    (
        "state",
        &[
            "initial_state field for state input '<i>' must contain exactly one or zero element. Found '<N>' elements.",
            "The data type used for 'initial_state' field of state '<i>' does not match the state data type.",
            "Field 'name' must be set when using initial_state for state input '<i>'.",
            "State input name '<i>' specified more than once.",
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input \
             '<i>'. <a> != <b>",
            "'initial_state' field for state input name '<i>' contains variable dimensions.",
            "'initial_state' dim for input name '<i>' doesn't match 'state' dim description. <a> != <b>",
            "initial_state setting expects <N> bytes, but the data provided from <f>only has <M> bytes.",
            "initial_state setting expects state'<i>' to have state_data set",
        ],
    ),
    (
        "cache",
        &[
            "Response Cache does not currently support model <m> with sequence batching scheduler. Please disable the \
             response cache.",
            "Response Cache does not currently support model <m> with 'decoupled' transaction policy. Please disable \
             the response cache.",
        ],
    ),
    (
        "instance",
        &[
            "must specify one or more 'instance group's for <m>",
            "instance group <g> of model <m> has kind KIND_MODEL but specifies one or more GPUs",
            "instance group <g> of model <m> has kind KIND_CPU but specifies one or more GPUs",
            "instance group <g> of model <m> and platform <p>specifies profile field which is only supported for \
             TensorRT models",
            "instance group <g> of model <m> and platform <p> specifies invalid profile <x>. The field should contain \
             the string representation of a non-negative integer.",
            "instance group <g> of model <m> has kind KIND_GPU but no GPUs are available",
            "instance group <g> of model <m> has kind KIND_GPU but specifies no GPUs",
            "instance group <g> of model <m> has kind KIND_GPU but server does not support GPUs",
            "instance group <g> of model <m> specifies invalid or unsupported gpu id <N>. GPUs with at least the \
             minimum required CUDA compute compatibility of <C> are: <ids>",
        ],
    ),
    (
        "metrics",
        &[
            "metric control must specify 'metric_identifier'",
            "metric identifier must specify non-empty 'family'",
            "metric control must specify 'histogram_options'",
            "histogram options must specify non-empty 'buckets'",
        ],
    ),
    (
        "warmup",
        &[
            "warmup setting expects all variable-size dimensions are specified for input '<i>'",
            "[request id: <id_unknown>] warmup setting expects <N> bytes, but the data provided from <f>only has <M> \
             bytes",
            "[request id: <id_unknown>] warmup setting expects input '<i>' to have input_data_type set",
        ],
    ),
    (
        "ensemble graph",
        &[
            "ensemble scheduling cannot be set for model '<m>' whose platform is not ensemble",
            "ensemble scheduling must be set for ensemble <m> whose platform is ensemble",
            "instance group should not be specified for ensemble '<m>'",
            "optimization should not be specified for ensemble '<m>'",
            "model_warmup can not be specified for ensemble '<m>'",
            "must specify 'step' for ensemble '<m>'",
            "must specify 'model_name' in step <K> of ensemble '<m>'",
            "must specify 'input_map' in step <K> of ensemble '<m>'",
            "must specify 'output_map' in step <K> of ensemble '<m>'",
            "ensemble tensor '<t>' can appear in an output map only once for ensemble '<m>' step <K>",
            "ensemble input '<i>' for ensemble <m>' is not used",
            "ensemble output '<o>' for ensemble <m>' is not used",
            "output '<o>' for ensemble '<m>' is not written",
            "output '<o>' for ensemble '<m>' is not written: at least one of its depending tensors, '<t>', is not \
             connected",
            "ensemble tensor '<t>' is unused in ensemble '<m>'",
        ],
    ),
    (
        "ensemble vs parts",
        &[
            "ensemble <m> contains models that are not available or ambiguous: <a>, <b>",
            "ensemble '<m>' depends on '<x>' which has no loaded version",
            "ensemble '<m>' depends on '<x>' which has no loaded version. Model '<x>' loading failed with error: <e>",
            "ensemble '<m>' depends on '<x>' whose required version <N> is not loaded.",
            "circular dependency between ensembles: <a> -> ... -> <b> -> <a>",
            "ensemble <m> allows maximum batch size <N>, but it contains model <x> which only allows maximum batch \
             size to be <K>",
            "in ensemble <m>, ensemble tensor <t> is mapping to non-existing input <i> in model <x>",
            "in ensemble <m>, input <i> in model <x> is not mapped to any ensemble tensors",
            "in ensemble <m>, ensemble tensor <t> is mapped from non-existing output <o> in model <x>",
            "in ensemble <m>, multiple outputs in model <x> are mapped to the same ensemble tensor <t>",
            "in ensemble <m>, ensemble tensor <t>: inconsistent data type: <A> is inferred from model <p> while <B> is \
             inferred from model <q>",
            "in ensemble <m>, ensemble tensor <t>: inconsistent shape: <A> is inferred from model <p> while <B> is \
             inferred from model <q>",
            "in ensemble <m>, step of model '<x>' receives inputs originated from different decoupled models",
        ],
    ),
    (
        "rate limiter",
        &[
            "Resource \"<r>\" is present as both global and device-specific resource in the model configuration.",
            "Resource count for \"<r>\" is limited to <N> which will prevent scheduling of one or more model \
             instances, the minimum required count is <K>",
        ],
    ),
    ("version policy", &["at least one version must be available under the version policy of model '<m>'"]),
];

/// Messages of the section that no configuration alone causes, and the module that has them.
const ELSEWHERE: [(&str, &str); 6] = [
    ("unable to find backend library for backend '<b>', try specifying runtime …", "backend::plugin"),
    ("unable to find backend library '<f>' for model '<m>', searched: '<dir>' ...", "backend::plugin"),
    ("backend library name '<f>' escapes backend directory '<d>' …", "backend::plugin"),
    ("unable to find Python backend based backend library …", "comes with the Python backend"),
    ("failed to run warmup sample '<s>': <e>; ", "the instances, which run it"),
    ("in ensemble <m>, input <i> in model <x> is mapped to multiple ensemble tensors", "none: a map's keys differ"),
];

/// The outcome, and the expected message.
type Case = (Result<(), String>, &'static str);

#[test]
fn every_message_has_a_configuration_that_earns_it() {
    let mut cases = Vec::new();
    for row in [
        general_cases(),
        tensor_cases(),
        sequence_cases(),
        state_cases(),
        instance_cases(),
        graph_cases(),
        part_cases(),
        other_cases(),
    ] {
        cases.extend(row);
    }
    for (got, expected) in &cases {
        assert_eq!(got, &Err((*expected).to_owned()));
    }
    let templates = || MESSAGES.iter().flat_map(|(row, messages)| messages.iter().map(move |message| (*row, *message)));
    for (row, template) in templates() {
        assert!(cases.iter().any(|(_, message)| fits(template, message)), "row {row}: no case has {template}");
    }
    for (_, message) in &cases {
        let fitting = templates().filter(|(_, template)| fits(template, message)).count();
        assert!(fitting >= 1, "no row has {message}");
    }
    assert_eq!(templates().count() + ELSEWHERE.len(), 114, "the number of messages in section 6, endings counted");
}

/// Is `message` the template with texts for its `<…>`?
fn fits(template: &str, message: &str) -> bool {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('<') {
        // `<=` is a comparison, and `<id_unknown>` is written as it stands.
        if after.starts_with('=') || after.starts_with("id_unknown") {
            let kept = &template[..template.len() - after.len()];
            return fits(&format!("{}\u{1}{after}", &kept[..kept.len() - 1]), &message.replacen('<', "\u{1}", 1));
        }
        pieces.push(before);
        rest = after.split_once('>').expect("a placeholder ends").1;
    }
    let Some(mut middle) = message.strip_prefix(pieces.first().copied().unwrap_or(rest)) else { return false };
    if pieces.is_empty() {
        return middle.is_empty();
    }
    for piece in &pieces[1..] {
        match middle.split_once(piece) {
            Some((_, after)) => middle = after,
            None => return false,
        }
    }
    middle.ends_with(rest)
}

#[test]
fn templates_fit_what_they_should() {
    for (template, message, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("'<x>' is <y> for <m>", "'q' is 7 for m", true),
        ("'<x>' is <y> for <m>", "'q' was 7 for m", false),
        ("must be <= max for <m>", "must be <= max for m", true),
        ("must be <= max for <m>", "must be >= max for m", false),
        ("[id: <id_unknown>] <N> bytes", "[id: <id_unknown>] 3 bytes", true),
        ("[id: <id_unknown>] <N> bytes", "[id: <id_unknown>] 3 bytes.", false),
    ] {
        assert_eq!(fits(template, message), expected, "{template} {message}");
    }
}

fn general_cases() -> Vec<Case> {
    let unnamed = ModelConfig { backend: "b".into(), ..Default::default() };
    let nothing = ModelConfig { name: "m".into(), ..Default::default() };
    let text = |result: Result<(), Error>| result.map_err(|error| error.to_string());
    vec![
        (text(at_poll(&unnamed, "m", false)), "model configuration must specify 'name'"),
        (
            poll("name: \"other\""),
            "unexpected directory name 'm' for model 'other', directory name must equal model name",
        ),
        (poll("platform: \"p\""), "unexpected platform type 'p' for m"),
        (text(at_poll(&nothing, "m", false)), "must specify 'platform' or 'backend' for 'm'"),
        (
            poll("platform: \"tensorrt_plan\" backend: \"b\""),
            "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, b",
        ),
        (
            poll("platform: \"ensemble\" backend: \"b\""),
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        (poll("max_batch_size: -4"), "'max_batch_size' must be non-negative value for m"),
        (
            poll("dynamic_batching { preferred_batch_size: 0 }"),
            "dynamic batching preferred size must be positive for m",
        ),
        (
            poll("max_batch_size: 2 dynamic_batching { preferred_batch_size: [ 2, 3 ] }"),
            "dynamic batching preferred size must be <= max batch size for m",
        ),
        (poll("dynamic_batching { priority_levels: 2 }"), "default priority level must be in range [1, 2] for m"),
        (
            poll("dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 } }"),
            "priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            poll("dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }"),
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            poll(
                "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY
                 default_timeout_microseconds: 1 } }",
            ),
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (
            poll("response_cache { enable: true } sequence_batching { }"),
            "Response Cache does not currently support model m with sequence batching scheduler. Please disable the \
             response cache.",
        ),
        (
            poll("response_cache { enable: true } model_transaction_policy { decoupled: true }"),
            "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable \
             the response cache.",
        ),
        (poll("model_metrics { metric_control { } }"), "metric control must specify 'metric_identifier'"),
        (
            poll("model_metrics { metric_control { metric_identifier { } } }"),
            "metric identifier must specify non-empty 'family'",
        ),
        (
            poll("model_metrics { metric_control { metric_identifier { family: \"f\" } } }"),
            "metric control must specify 'histogram_options'",
        ),
        (
            poll("model_metrics { metric_control { metric_identifier { family: \"f\" } histogram_options { } } }"),
            "histogram options must specify non-empty 'buckets'",
        ),
    ]
}

fn tensor_cases() -> Vec<Case> {
    let input = |text: &str| load(&format!("max_batch_size: 1 input {{ {text} }}"));
    let output = |text: &str| load(&format!("max_batch_size: 1 output {{ {text} }}"));
    let flat = "name: \"t\" data_type: TYPE_FP32 dims: [ 2, 3 ]";
    let open = "name: \"t\" data_type: TYPE_FP32 dims: [ -1, -1 ]";
    let tensors =
        "input { name: \"I\" data_type: TYPE_FP32 dims: 1 } output { name: \"O\" data_type: TYPE_FP32 dims: 1 }";
    let batched = |text: &str| load(&format!("{tensors} {text}"));
    vec![
        (input(""), "model input must specify 'name' for m"),
        (output(""), "model output must specify 'name' for m"),
        (input("name: \"t\""), "model input 't' must specify 'data_type' for m"),
        (output("name: \"t\""), "model output 't' must specify 'data_type' for m"),
        (input("name: \"t\" data_type: TYPE_FP32"), "model input 't' must specify 'dims' for m"),
        (output("name: \"t\" data_type: TYPE_FP32"), "model output 't' must specify 'dims' for m"),
        (
            input("name: \"t\" data_type: TYPE_FP32 dims: 0"),
            "model input 't' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            output("name: \"t\" data_type: TYPE_FP32 dims: 0"),
            "model output 't' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            load("input { name: \"t\" data_type: TYPE_FP32 dims: 1 reshape { } }"),
            "model input 't' cannot have empty reshape for non-batching model as scalar tensors are not supported for \
             m",
        ),
        (
            load("output { name: \"t\" data_type: TYPE_FP32 dims: 1 reshape { } }"),
            "model output 't' cannot have empty reshape for non-batching model as scalar tensors are not supported \
             for m",
        ),
        (
            input(&format!("{flat} reshape {{ shape: 0 }}")),
            "model input 't' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for \
             m",
        ),
        (
            output(&format!("{flat} reshape {{ shape: 0 }}")),
            "model output 't' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension \
             for m",
        ),
        (
            input(&format!("{flat} reshape {{ shape: 7 }}")),
            "model input 't' has different size for dims and reshape for m",
        ),
        (
            output(&format!("{flat} reshape {{ shape: 7 }}")),
            "model output 't' has different size for dims and reshape for m",
        ),
        (
            input(&format!("{open} reshape {{ shape: -1 }}")),
            "model input 't' has different number of variable-size dimensions for dims and reshape for m",
        ),
        (
            output(&format!("{open} reshape {{ shape: -1 }}")),
            "model output 't' has different number of variable-size dimensions for dims and reshape for m",
        ),
        (input(&format!("{flat} format: FORMAT_NHWC")), "model input NHWC/NCHW require 3 dims for m"),
        (
            output(&format!("{flat} is_shape_tensor: true")),
            "shape tensors are only supported for TensorRT platform for m",
        ),
        (
            input(&format!("{flat} is_non_linear_format_io: true")),
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
        (
            load(&format!(
                "backend: \"tensorrt\" platform: \"tensorrt_plan\" input {{ {flat} is_non_linear_format_io: true }}"
            )),
            "Non-linear IO format input requires 3 dims for m",
        ),
        (
            batched("batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_FP32 }"),
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m",
        ),
        (batched("batch_input { source_input: \"I\" }"), "batch input data type must be TYPE_INT32 or TYPE_FP32 for m"),
        (batched("batch_input { data_type: TYPE_FP32 source_input: \"X\" }"), "unknown source input name 'X' for m"),
        (batched("batch_output { source_input: \"I\" target_name: \"X\" }"), "unknown target output name 'X' for m"),
        (
            batched("batch_output { source_input: \"I\" target_name: [ \"O\", \"O\" ] }"),
            "target output name 'O' can only be specified once for m",
        ),
        (
            batched("batch_output { source_input: [ \"I\", \"I\" ] }"),
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2 for m",
        ),
    ]
}

fn sequence_cases() -> Vec<Case> {
    let case = |text: &str| poll(&format!("max_batch_size: 2 sequence_batching {{ {text} }}"));
    let control = |text: &str| case(&format!("control_input {{ name: \"c\" control {{ {text} }} }}"));
    let start = "control { int32_false_true: [ 0, 1 ] }";
    vec![
        (case("control_input { }"), "sequence batching control tensor must have a name for m"),
        (
            case("control_input { name: \"c\" } control_input { name: \"c\" }"),
            "sequence batching control tensor 'c' is specified for multiple control kinds for m",
        ),
        (
            case(&format!("control_input {{ name: \"c\" {start} }} control_input {{ name: \"d\" {start} }}")),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            control("kind: CONTROL_SEQUENCE_READY"),
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             CONTROL_SEQUENCE_READY for m",
        ),
        (
            control("kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
             'bool_false_true' for CONTROL_SEQUENCE_END for m",
        ),
        (
            control("int32_false_true: 1"),
            "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for \
             m",
        ),
        (
            control("kind: CONTROL_SEQUENCE_CORRID int32_false_true: 1"),
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for \
             CONTROL_SEQUENCE_CORRID for m",
        ),
        (
            control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP64"),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, \
             TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
        (case("oldest { preferred_batch_size: -1 }"), "sequence batching preferred batch size must be positive for m"),
        (
            case("oldest { preferred_batch_size: 3 }"),
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (
            case("direct { minimum_slot_utilization: 2 }"),
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        ),
    ]
}

fn state_cases() -> Vec<Case> {
    let state = |initial: &str| {
        format!("state {{ input_name: \"i\" output_name: \"o\" data_type: TYPE_FP32 dims: [ 3, -1 ] {initial} }}")
    };
    let of = |initial: &str| format!("initial_state {{ data_type: TYPE_FP32 {initial} }}");
    let case = |states: &str| load(&format!("sequence_batching {{ {states} }}"));
    let good = state(&of("name: \"n\" dims: [ 3, 1 ] zero_data: true"));
    assert_eq!(case(&good), Ok(()));
    let scratch = Scratch::new("messages_state");
    scratch.write("initial_state/five", b"12345");
    let file = state(&of("name: \"n\" dims: [ 3, 1 ] data_file: \"five\""));
    assert_eq!(case(&file), Ok(()));
    let file = read(&format!("name: \"m\" sequence_batching {{ {file} }}"));
    vec![
        (
            case(&state("initial_state { } initial_state { } initial_state { }")),
            "initial_state field for state input 'i' must contain exactly one or zero element. Found '3' elements.",
        ),
        (
            case(&state("initial_state { data_type: TYPE_INT32 }")),
            "The data type used for 'initial_state' field of state 'i' does not match the state data type.",
        ),
        (
            case(&state(&of("dims: [ 3, 1 ] zero_data: true"))),
            "Field 'name' must be set when using initial_state for state input 'i'.",
        ),
        (case(&format!("{good} {good}")), "State input name 'i' specified more than once."),
        (
            case(&state(&of("name: \"n\" dims: 3 zero_data: true"))),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input \
             'i'. 1 != 2",
        ),
        (
            case(&state(&of("name: \"n\" dims: [ 3, -1 ] zero_data: true"))),
            "'initial_state' field for state input name 'i' contains variable dimensions.",
        ),
        (
            case(&state(&of("name: \"n\" dims: [ 4, 1 ] zero_data: true"))),
            "'initial_state' dim for input name 'i' doesn't match 'state' dim description. 4 != 3",
        ),
        (
            data_files(&file, scratch.path()).first().map_err(|error| error.to_string()),
            "initial_state setting expects 12 bytes, but the data provided from fiveonly has 5 bytes.",
        ),
        (
            case(&state(&of("name: \"n\" dims: [ 3, 1 ]"))),
            "initial_state setting expects state'i' to have state_data set",
        ),
    ]
}

fn instance_cases() -> Vec<Case> {
    let ids = std::collections::BTreeSet::from([0, 2]);
    let none = std::collections::BTreeSet::new();
    let on = |ids: &std::collections::BTreeSet<i32>, group: &str| {
        let config =
            read(&format!("name: \"m\" backend: \"b\" instance_group {{ name: \"g\" kind: KIND_GPU {group} }}"));
        let gpus = SupportedGpus::Found { ids: ids.clone(), capability_min: 7.5 };
        at_load(&config, &gpus).map_err(|error| error.to_string())
    };
    assert_eq!(on(&ids, "gpus: [ 0, 2 ]"), Ok(()));
    let empty = ModelConfig { name: "m".into(), backend: "b".into(), ..Default::default() };
    vec![
        (
            at_load(&empty, &SupportedGpus::NoDriver).map_err(|error| error.to_string()),
            "must specify one or more 'instance group's for m",
        ),
        (
            load("instance_group { name: \"g\" kind: KIND_MODEL gpus: 0 }"),
            "instance group g of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            load("instance_group { name: \"g\" kind: KIND_CPU gpus: 0 }"),
            "instance group g of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        (
            load("instance_group { name: \"g\" profile: \"0\" }"),
            "instance group g of model m and platform specifies profile field which is only supported for TensorRT \
             models",
        ),
        (
            load("backend: \"tensorrt\" platform: \"tensorrt_plan\" instance_group { name: \"g\" profile: \"x\" }"),
            "instance group g of model m and platform tensorrt_plan specifies invalid profile x. The field should \
             contain the string representation of a non-negative integer.",
        ),
        (on(&none, ""), "instance group g of model m has kind KIND_GPU but no GPUs are available"),
        (on(&ids, ""), "instance group g of model m has kind KIND_GPU but specifies no GPUs"),
        (
            load("instance_group { name: \"g\" kind: KIND_GPU }"),
            "instance group g of model m has kind KIND_GPU but server does not support GPUs",
        ),
        (
            on(&ids, "gpus: [ 0, 1 ]"),
            "instance group g of model m specifies invalid or unsupported gpu id 1. GPUs with at least the minimum \
             required CUDA compute compatibility of 7.500000 are: 0, 2",
        ),
    ]
}

/// `model: "a=b" "c=d"` as a step: what stands before `->` is the input map, what follows the output map.
fn step(text: &str) -> String {
    let (model, maps) = text.split_once(' ').expect("a model and its maps");
    let (inputs, outputs) = maps.split_once("->").expect("two maps");
    let entries = |field: &str, map: &str| -> String {
        let entry = |pair: &str| {
            let (ours, tensor) = pair.split_once('=').expect("name=tensor");
            format!("{field} {{ key: \"{ours}\" value: \"{tensor}\" }} ")
        };
        map.split_whitespace().map(entry).collect()
    };
    let (model, version) = model.split_once(':').unwrap_or((model, "-1"));
    let maps = entries("input_map", inputs) + &entries("output_map", outputs);
    format!("step {{ model_name: \"{model}\" model_version: {version} {maps} }} ")
}

/// An ensemble from X to Y.
pub(super) fn ensemble(steps: &[&str]) -> String {
    let steps: String = steps.iter().map(|text| step(text)).collect();
    format!(
        "name: \"m\" platform: \"ensemble\" input {{ name: \"X\" data_type: TYPE_FP32 dims: [ -1, 16 ] }} \
         output {{ name: \"Y\" data_type: TYPE_FP32 dims: [ -1, 16 ] }} ensemble_scheduling {{ {steps} }}"
    )
}

fn graph_cases() -> Vec<Case> {
    let good = "p I=X -> O=Y";
    let with = |more: &str| poll(&format!("{} {more}", ensemble(&[good])));
    let of = |steps: &[&str]| poll(&ensemble(steps));
    assert_eq!(of(&[good]), Ok(()));
    let tensor = "{ name: \"W\" data_type: TYPE_FP32 dims: 1 }";
    vec![
        (
            poll("backend: \"b\" ensemble_scheduling { }"),
            "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
        ),
        (poll("platform: \"ensemble\""), "ensemble scheduling must be set for ensemble m whose platform is ensemble"),
        (with("instance_group { }"), "instance group should not be specified for ensemble 'm'"),
        (with("optimization { }"), "optimization should not be specified for ensemble 'm'"),
        (with("model_warmup { }"), "model_warmup can not be specified for ensemble 'm'"),
        (of(&[]), "must specify 'step' for ensemble 'm'"),
        (of(&[good, " I=A -> O=B"]), "must specify 'model_name' in step 1 of ensemble 'm'"),
        (of(&["p -> O=Y"]), "must specify 'input_map' in step 0 of ensemble 'm'"),
        (of(&["p I=X ->"]), "must specify 'output_map' in step 0 of ensemble 'm'"),
        (
            of(&[good, "q I=X -> O=Y"]),
            "ensemble tensor 'Y' can appear in an output map only once for ensemble 'm' step 1",
        ),
        (with(&format!("input {tensor}")), "ensemble input 'W' for ensemble m' is not used"),
        (with(&format!("output {tensor}")), "ensemble output 'W' for ensemble m' is not used"),
        (of(&["p I=Y -> O=X"]), "output 'Y' for ensemble 'm' is not written"),
        (
            of(&["p I=B -> O=Y", "p I=A -> O=B", "p I=Q -> O=A", "p I=X -> O=Z"]),
            "output 'Y' for ensemble 'm' is not written: at least one of its depending tensors, 'Q', is not connected",
        ),
        (
            of(&["p I=X J=B -> O=Y P=A", "p I=X J=A -> P=B"]),
            "output 'Y' for ensemble 'm' is not written: at least one of its depending tensors, 'A', is not connected",
        ),
        (of(&["p I=X -> O=Y P=U"]), "ensemble tensor 'U' is unused in ensemble 'm'"),
    ]
}

fn part_cases() -> Vec<Case> {
    let io = "input { name: \"I\" data_type: TYPE_FP32 dims: [ -1, 16 ] }
              input { name: \"J\" data_type: TYPE_INT32 dims: 2 optional: true }
              output { name: \"O\" data_type: TYPE_FP32 dims: [ -1, 16 ] }
              output { name: \"P\" data_type: TYPE_INT32 dims: 2 }";
    let plain = read(io);
    let decoupled = read(&format!("{io} model_transaction_policy {{ decoupled: true }}"));
    let small = read(
        "max_batch_size: 4 input { name: \"I\" data_type: TYPE_FP32 dims: 16 }
         output { name: \"O\" data_type: TYPE_FP32 dims: 17 }",
    );
    let check = |text: &str| {
        ensemble_parts(&read(text), |step| match step.model_name.as_str() {
            "p" => StepModel::Loaded(vec![(1, &plain), (3, &plain)]),
            "d" | "e" => StepModel::Loaded(vec![(1, &decoupled)]),
            "small" => StepModel::Loaded(vec![(1, &small)]),
            "idle" => StepModel::NotLoaded { reason: None },
            "broken" => {
                StepModel::NotLoaded { reason: Some("version 1 is at UNAVAILABLE state: Internal: no;".into()) }
            }
            _ => StepModel::Unknown,
        })
        .map(|_| ())
        .map_err(|error| error.to_string())
    };
    let of = |steps: &[&str]| check(&ensemble(steps));
    let changed = |from: &str, to: &str| {
        let text = ensemble(&["p I=X -> O=Y"]);
        assert!(text.contains(from));
        check(&text.replacen(from, to, 1))
    };
    let cycle = |name: &str| {
        let parts = |model: &&str| match *model {
            "a" => vec!["x", "b"],
            "b" => vec!["a"],
            _ => Vec::new(),
        };
        ensemble_cycle(&name, |name| name, parts).map_err(|error| error.to_string())
    };
    vec![
        (
            of(&["y I=X -> O=A", "p I=A -> O=B", "z I=B -> O=Y", "y I=X -> O=C"]),
            "ensemble m contains models that are not available or ambiguous: y, z",
        ),
        (of(&["idle I=X -> O=Y"]), "ensemble 'm' depends on 'idle' which has no loaded version"),
        (
            of(&["broken I=X -> O=Y"]),
            "ensemble 'm' depends on 'broken' which has no loaded version. Model 'broken' loading failed with error: \
             version 1 is at UNAVAILABLE state: Internal: no;",
        ),
        (of(&["p:2 I=X -> O=Y"]), "ensemble 'm' depends on 'p' whose required version 2 is not loaded."),
        (cycle("a"), "circular dependency between ensembles: a -> ... -> b -> a"),
        (
            changed("name:", "max_batch_size: 8 name:").and(check(&ensemble(&["small I=X -> O=Y"]).replacen(
                "name:",
                "max_batch_size: 8 name:",
                1,
            ))),
            "ensemble m allows maximum batch size 8, but it contains model small which only allows maximum batch size \
             to be 4",
        ),
        (of(&["p I=X Z=X -> O=Y"]), "in ensemble m, ensemble tensor X is mapping to non-existing input Z in model p"),
        (of(&["p J=X -> O=Y"]), "in ensemble m, input I in model p is not mapped to any ensemble tensors"),
        (of(&["p I=X -> Z=Y"]), "in ensemble m, ensemble tensor Y is mapped from non-existing output Z in model p"),
        (
            of(&["p I=X -> O=Y P=Y"]),
            "in ensemble m, multiple outputs in model p are mapped to the same ensemble tensor Y",
        ),
        (
            changed("TYPE_FP32", "TYPE_INT32"),
            "in ensemble m, ensemble tensor X: inconsistent data type: TYPE_INT32 is inferred from model m while \
             TYPE_FP32 is inferred from model p",
        ),
        (
            changed("[ -1, 16 ]", "[ 3, 17 ]"),
            "in ensemble m, ensemble tensor X: inconsistent shape: [3,17] is inferred from model m while [-1,16] is \
             inferred from model p",
        ),
        (
            of(&["d I=X -> O=A", "e I=X -> P=B", "p I=A J=B -> O=Y"]),
            "in ensemble m, step of model 'p' receives inputs originated from different decoupled models",
        ),
    ]
}

fn other_cases() -> Vec<Case> {
    let sample = |text: &str| format!("model_warmup {{ batch_size: 1 inputs {{ key: \"i\" value {{ {text} }} }} }}");
    let scratch = Scratch::new("messages_warmup");
    scratch.write("warmup/five", b"12345");
    let short =
        read(&format!("name: \"m\" {}", sample("data_type: TYPE_INT32 dims: [ 1, 2 ] input_data_file: \"five\"")));
    let asks = |resources: &str| read(&format!("instance_group {{ rate_limiter {{ resources [ {resources} ] }} }}"));
    let limited = |resources: &str| {
        let limits = [ResourceLimit { name: "R".into(), count: 2, device: None }];
        rate_limits(&asks(resources).instance_group, &limits).map_err(|error| error.to_string())
    };
    vec![
        (
            load(&sample("dims: -1 zero_data: true")),
            "warmup setting expects all variable-size dimensions are specified for input 'i'",
        ),
        (
            load(&sample("dims: 1")),
            "[request id: <id_unknown>] warmup setting expects input 'i' to have input_data_type set",
        ),
        (
            data_files(&short, scratch.path()).first().map_err(|error| error.to_string()),
            "[request id: <id_unknown>] warmup setting expects 8 bytes, but the data provided from fiveonly has 5 \
             bytes",
        ),
        (
            limited("{ name: \"R\" }, { name: \"R\" global: true }"),
            "Resource \"R\" is present as both global and device-specific resource in the model configuration.",
        ),
        (
            limited("{ name: \"R\" count: 3 }"),
            "Resource count for \"R\" is limited to 2 which will prevent scheduling of one or more model instances, \
             the minimum required count is 3",
        ),
        (
            VersionPolicy::Latest(1).select(&[]).at_least_one("m").map(|_| ()).map_err(|error| error.to_string()),
            "at least one version must be available under the version policy of model 'm'",
        ),
    ]
}

/// The field of a finding exists in the configuration, or its nearest parent does.
#[test]
fn findings_name_their_fields() {
    let cases = [
        ("max_batch_size: -1", "max_batch_size"),
        ("input { name: \"a\" data_type: TYPE_FP32 dims: 1 } input { }", "input[1]"),
        ("instance_group { } instance_group { kind: KIND_GPU }", "instance_group[1].kind"),
        (
            "max_batch_size: 1 dynamic_batching { preferred_batch_size: [ 1, 0 ] }",
            "dynamic_batching.preferred_batch_size[1]",
        ),
        (
            "sequence_batching { control_input { name: \"c\" control { } } }",
            "sequence_batching.control_input[0].control[0]",
        ),
    ];
    for (text, path) in cases {
        let mut config = read(text);
        config.name = "m".into();
        config.backend = "b".into();
        normalize::fill_defaults(&mut config);
        normalize::instance_groups(&mut config, &[], &SupportedGpus::NoDriver);
        let findings: Vec<Finding> = findings_at_load(&config, &SupportedGpus::NoDriver).into_iter().collect();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].path, path);
        assert!(to_dynamic(&config).is_ok());
    }
}

#[test]
fn all_that_is_wrong_is_found_at_once() {
    let config = read(
        "name: \"other\" backend: \"b\" max_batch_size: -1 dynamic_batching { preferred_batch_size: 0 }
         model_metrics { metric_control { } metric_control { } } input { } input { name: \"t\" }",
    );
    let found: Vec<String> = findings_at_poll(&config, "m", true).into_iter().map(|finding| finding.path).collect();
    assert_eq!(
        found,
        [
            "max_batch_size",
            "dynamic_batching.preferred_batch_size[0]",
            "model_metrics.metric_control[0].metric_identifier",
            "model_metrics.metric_control[1].metric_identifier",
            "input[0]",
            "input[1]",
            "name"
        ]
    );
}
