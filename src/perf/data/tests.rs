//! What becomes of zeros, chance, directories and JSON, and of what is wrong with them.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

fn facts(name: &str, datatype: &str, shape: &[i64]) -> TensorFacts {
    TensorFacts { name: name.into(), datatype: datatype.into(), shape: shape.into(), ..TensorFacts::default() }
}

/// Takes batches of at most 8.
fn model_info() -> ModelInfo {
    ModelInfo {
        max_batch_size: 8,
        inputs: vec![facts("A", "INT32", &[-1, 2]), facts("B", "BYTES", &[-1, -1])],
        outputs: vec![facts("Y", "INT32", &[-1, 2])],
        ..ModelInfo::default()
    }
}

fn plan(source: Source) -> DataPlan {
    DataPlan {
        source,
        batch: 1,
        shapes: BTreeMap::new(),
        string_length: 5,
        string: None,
        parameters: Vec::new(),
        seed: 1,
    }
}

fn shaped(source: Source) -> DataPlan {
    DataPlan { shapes: BTreeMap::from([("B".to_owned(), vec![3])]), ..plan(source) }
}

/// A directory that goes with its owner.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nereid-perf-data-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Directory(path)
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).expect("a file");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn of_json(text: &str, model_info: &ModelInfo, plan: DataPlan) -> Result<Vec<Vec<Template>>, String> {
    let directory = Directory::new();
    let file = directory.write("data.json", text.as_bytes());
    streams(model_info, &DataPlan { source: Source::Json(vec![file]), ..plan }).map_err(|error| error.to_string())
}

fn numbers(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn generated_values_have_the_shape_of_a_batch() {
    for source in [Source::Zero, Source::Random] {
        let plan = DataPlan { batch: 4, ..shaped(source.clone()) };
        let streams = streams(&model_info(), &plan).expect("a template");
        let [template] = &streams[0][..] else { panic!("{streams:?}") };
        let [a, b] = &template.inputs[..] else { panic!("{template:?}") };
        assert_eq!((a.name.as_str(), a.datatype.as_str(), &a.shape[..], a.data.len()), ("A", "INT32", &[4, 2][..], 32));
        let width = if source == Source::Zero { 4 } else { 4 + 5 };
        assert_eq!((b.name.as_str(), &b.shape[..], b.data.len()), ("B", &[4, 3][..], 12 * width));
        assert_eq!(encode::count_strings(&b.data), Some(12));
        assert_eq!(a.data.iter().all(|byte| *byte == 0), source == Source::Zero);
        // The same seed, the same values; the members of a batch differ.
        let again = super::streams(&model_info(), &plan).expect("a template");
        assert_eq!(&again[0][0].inputs[0].data[..], &a.data[..]);
        if source == Source::Random {
            assert_ne!(&a.data[..8], &a.data[8..16]);
            let other = super::streams(&model_info(), &DataPlan { seed: 2, ..plan }).expect("a template");
            assert_ne!(&other[0][0].inputs[0].data[..], &a.data[..]);
        }
    }
    let plan = DataPlan { string: Some("abc".into()), ..shaped(Source::Random) };
    let streams = streams(&model_info(), &plan).expect("a template");
    assert_eq!(&streams[0][0].inputs[1].data[..], b"\x03\0\0\0abc\x03\0\0\0abc\x03\0\0\0abc");
}

#[test]
fn every_datatype_can_be_made_up() {
    for datatype in DataType::ALL {
        let model_info = ModelInfo { inputs: vec![facts("X", datatype.name(), &[16])], ..ModelInfo::default() };
        let streams = streams(&model_info, &plan(Source::Random)).expect("a template");
        let input = &streams[0][0].inputs[0];
        assert_eq!(input.shape, [16], "{datatype}");
        let width = if datatype == DataType::Bytes { 9 } else { datatype.byte_size() };
        assert_eq!(input.data.len(), 16 * width, "{datatype}");
    }
    let model_info = ModelInfo { inputs: vec![facts("X", "BOOL", &[64])], ..ModelInfo::default() };
    let streams = streams(&model_info, &plan(Source::Random)).expect("a template");
    assert!(streams[0][0].inputs[0].data.iter().all(|byte| *byte < 2));
}

#[test]
fn what_does_not_fit_the_model_is_told() {
    let model_info = model_info();
    let shape_tensor = TensorFacts { is_shape_tensor: true, ..facts("S", "INT64", &[2]) };
    let with_shapes = ModelInfo { inputs: vec![shape_tensor], ..model_info.clone() };
    let no_batches = ModelInfo { inputs: vec![facts("A", "INT32", &[2])], ..ModelInfo::default() };
    let unknown = ModelInfo { inputs: vec![facts("A", "COMPLEX", &[2])], ..ModelInfo::default() };
    let huge = ModelInfo { inputs: vec![facts("A", "FP64", &[1 << 40, 1 << 20])], ..ModelInfo::default() };
    let uncountable = ModelInfo { inputs: vec![facts("A", "FP64", &[i64::MAX, 2])], ..ModelInfo::default() };
    let shape = |name: &str, shape: &[i64]| DataPlan {
        shapes: BTreeMap::from([(name.to_owned(), shape.to_vec())]),
        ..plan(Source::Zero)
    };
    for (model_info, plan, part) in [
        (&model_info, plan(Source::Zero), "say it with --shape B:<size>"),
        (&model_info, shape("C", &[1]), "the model has no input 'C'; it has 'A', 'B'"),
        (&model_info, shape("B", &[1, 2]), "input 'B': shape [1, 2] does not fit the model's [-1]"),
        (&model_info, shape("A", &[3]), "input 'A': shape [3] does not fit the model's [2]"),
        (&model_info, DataPlan { batch: 9, ..shaped(Source::Zero) }, "batches of at most 8, not 9"),
        (
            &no_batches,
            DataPlan { batch: 2, ..plan(Source::Zero) },
            "does not take batches, so the batch size is 1, not 2",
        ),
        (&with_shapes, plan(Source::Random), "'S': it is a tensor of shapes"),
        (&unknown, plan(Source::Zero), "'COMPLEX' is no datatype"),
        (&huge, plan(Source::Zero), "beyond 4 GiB"),
        (&uncountable, plan(Source::Zero), "more elements than can be counted"),
    ] {
        let error = streams(model_info, &plan).map(|_| ()).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn json_holds_requests_in_every_form() {
    let text = r#"{"remark": [{}], "data": [
        {"A": [1, 2], "B": ["x", "yz"]},
        {"A": {"content": [[3], [4]], "shape": [2]}, "B": {"content": [], "shape": [0]}},
        {"A": {"b64": "BQAAAAYAAAA="}, "B": {"b64": "AQAAAHg=", "shape": [1]}}
    ]}"#;
    let streams = of_json(text, &model_info(), plan(Source::Zero)).expect("templates");
    let [templates] = &streams[..] else { panic!("{streams:?}") };
    let seen: Vec<_> =
        templates.iter().map(|template| (&template.inputs[0].data[..], &template.inputs[1].shape[..])).collect();
    let expected = [numbers(&[1, 2]), numbers(&[3, 4]), numbers(&[5, 6])];
    assert_eq!(seen, [(&expected[0][..], &[1, 2][..]), (&expected[1], &[1, 0]), (&expected[2], &[1, 1])]);
    assert_eq!(&templates[0].inputs[1].data[..], b"\x01\0\0\0x\x02\0\0\0yz");
    assert!(templates.iter().all(|template| template.expected.is_none()));
}

#[test]
fn batches_take_the_requests_that_follow_each_other() {
    let text = r#"{"data": [{"A": [1, 1], "B": ["a"]}, {"A": [2, 2], "B": ["b"]}, {"A": [3, 3], "B": ["c"]}],
        "validation_data": [{"Y": [1, 1]}, {"Y": [2, 2]}, {"Y": [3, 3]}]}"#;
    let streams = of_json(text, &model_info(), DataPlan { batch: 2, ..plan(Source::Zero) }).expect("templates");
    let seen: Vec<_> = streams[0].iter().map(|template| template.inputs[0].data.to_vec()).collect();
    assert_eq!(seen, [numbers(&[1, 1, 2, 2]), numbers(&[3, 3, 1, 1]), numbers(&[2, 2, 3, 3])]);
    let expected: Vec<_> = streams[0].iter().flat_map(|template| template.expected.iter().flatten()).collect();
    assert_eq!(expected.iter().map(|output| output.data.to_vec()).collect::<Vec<_>>(), seen);
    assert!(expected.iter().all(|output| output.name == "Y"));
    assert_eq!(streams[0][0].inputs[0].shape, [2, 2]);
}

#[test]
fn lists_of_lists_are_sequences_where_there_are_some() {
    let text = r#"{"data": [[{"A": [1, 1], "B": []}, {"A": [2, 2], "B": []}], [{"A": [3, 3], "B": []}]]}"#;
    let lengths = |model_info: &ModelInfo| -> Vec<usize> {
        let streams = of_json(text, model_info, plan(Source::Zero)).expect("templates");
        streams.iter().map(Vec::len).collect()
    };
    assert_eq!(lengths(&model_info()), [3]);
    assert_eq!(lengths(&ModelInfo { sequences: true, ..model_info() }), [2, 1]);
}

#[test]
fn optional_inputs_may_be_left_out() {
    let mut model_info = model_info();
    model_info.inputs[1].optional = true;
    let streams = of_json(r#"{"data": [{"A": [1, 1]}]}"#, &model_info, plan(Source::Zero)).expect("templates");
    assert_eq!(streams[0][0].inputs.len(), 1);
    let mixed = r#"{"data": [{"A": [1, 1]}, {"A": [2, 2], "B": ["b"]}]}"#;
    let error = of_json(mixed, &model_info, DataPlan { batch: 2, ..plan(Source::Zero) }).expect_err("a mixed batch");
    assert!(error.contains("'B': some requests of one batch have it"), "{error}");
}

#[test]
fn mistakes_in_json_are_told_with_the_tensor_and_the_place() {
    let deep = format!(r#"{{"data": [{{"A": {}"#, "[".repeat(100_000));
    for (text, part) in [
        ("", "EOF"),
        ("[]", "expected an object with the member 'data'"),
        ("{}", "it has no member 'data'"),
        (r#"{"data": []}"#, "'data' has no requests"),
        (r#"{"data": [[]]}"#, "'data' has no requests"),
        (r#"{"data": [[{"A": [1, 1], "B": []}], []]}"#, "list 1 of 'data' has no requests"),
        (r#"{"data": {}}"#, "a list of requests"),
        (r#"{"data": [1]}"#, "a request, which is an object of tensors"),
        (r#"{"data": [[[{"A": [1, 1], "B": []}]]]}"#, "lists of lists of requests"),
        (r#"{"data": [{"A": [1, 1], "B": []}, [{"A": [1, 1], "B": []}]]}"#, "cannot be mixed"),
        (r#"{"data": [{"A": [1, 1], "B": []}]} x"#, "trailing characters"),
        (r#"{"data": [], "data": []}"#, "'data' is there twice"),
        (r#"{"data": [{"A": [1, 1]}]}"#, "a request without input 'B'"),
        (r#"{"data": [{"A": [1, 1], "A": [1, 1], "B": []}]}"#, "input 'A' is there twice"),
        (r#"{"data": [{"C": [1]}]}"#, "the model has no input 'C' at line 1"),
        (r#"{"data": [{"A": [1, 1.5]}]}"#, "input 'A': 1.5 is no INT32"),
        (r#"{"data": [{"A": [1, 4294967296]}]}"#, "input 'A': 4294967296 is no INT32"),
        (r#"{"data": [{"A": ["1", 2]}]}"#, "input 'A': \"1\" is no INT32"),
        (r#"{"data": [{"A": [1, null]}]}"#, "an element of input 'A', INT32"),
        (r#"{"data": [{"A": [1, {}]}]}"#, "an element of input 'A', INT32"),
        (r#"{"data": [{"A": null}]}"#, "a list of elements for input 'A'"),
        (r#"{"data": [{"A": [1, 2, 3]}]}"#, "shape [2] has 2 elements, the data has 3"),
        (r#"{"data": [{"A": {"content": [1, 2], "shape": [3]}}]}"#, "shape [3] does not fit the model's [2]"),
        (r#"{"data": [{"A": {"content": [1], "shape": [2]}}]}"#, "shape [2] has 2 elements, the data has 1"),
        (r#"{"data": [{"A": {"shape": [2]}}]}"#, "input 'A': neither 'content' nor 'b64'"),
        (r#"{"data": [{"A": {"x": [2]}}]}"#, "'x' is none of 'content', 'b64' and 'shape'"),
        (r#"{"data": [{"A": {"b64": "AAAA", "content": [1]}}]}"#, "bytes are no elements of INT32"),
        (r#"{"data": [{"A": {"b64": "AAAAAAAAAAA=", "content": [1]}}]}"#, "'content' comes too often"),
        (r#"{"data": [{"A": {"b64": "?"}}]}"#, "input 'A': its base64"),
        (r#"{"data": [{"B": {"b64": "YWJj"}}]}"#, "four bytes before each"),
        (r#"{"data": [{"A": [1, 1], "B": []}], "validation_data": []}"#, "the same lists and lengths"),
        (r#"{"data": [{"A": [1, 1], "B": []}], "validation_data": [{"A": [1]}]}"#, "no output 'A'"),
        (r#"{"data": [{"A": [1, 1], "B": []}], "validation_data": [[{}]]}"#, ""),
        (&deep, "recursion limit exceeded"),
    ] {
        match of_json(text, &model_info(), plan(Source::Zero)) {
            Err(error) => assert!(error.contains(part), "{text:.60}: {error}"),
            // Lists and a list of lists with the same lengths are the same.
            Ok(_) => assert!(part.is_empty(), "{text:.60}"),
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_no_json() {
    let directory = Directory::new();
    let file = directory.write("data.json", b"{\"data\": [{\"A\": [1, 2], \"B\": [\"\xff\"]}]}");
    let plan = plan(Source::Json(vec![file]));
    assert!(streams(&model_info(), &plan).is_err());
    for path in ["/nowhere/at/all", "/dev/zero", "/"] {
        let plan = DataPlan { source: Source::Json(vec![path.into()]), ..plan.clone() };
        let error = streams(&model_info(), &plan).map(|_| ()).expect_err(path).to_string();
        assert!(error.starts_with(path), "{error}");
    }
}

#[test]
fn directories_hold_a_file_for_each_input() {
    let directory = Directory::new();
    directory.write("A", &numbers(&[7, 8]));
    directory.write("B", b"one\r\ntwo\n\nfour\n");
    let source = Source::Directory(directory.0.clone());
    let streams = streams(&model_info(), &DataPlan { batch: 2, ..plan(source) }).expect("a template");
    let [template] = &streams[0][..] else { panic!("{streams:?}") };
    assert_eq!(&template.inputs[0].data[..], &numbers(&[7, 8, 7, 8])[..]);
    assert_eq!(template.inputs[1].shape, [2, 4]);
    assert_eq!(encode::count_strings(&template.inputs[1].data), Some(8));
}

#[test]
fn mistakes_in_directories_are_told_with_the_file() {
    let model_info_of = |name: &str, datatype: &str, shape: &[i64]| ModelInfo {
        inputs: vec![facts(name, datatype, shape)],
        ..ModelInfo::default()
    };
    let directory = Directory::new();
    directory.write("short", &[1, 2, 3]);
    directory.write("lines", b"a\nb");
    fs::create_dir(directory.0.join("folder")).expect("a directory");
    for (name, datatype, shape, part) in [
        ("absent", "INT32", &[2][..], "No such file"),
        ("short", "INT32", &[2], "3 bytes are no whole number of elements of INT32"),
        ("short", "UINT8", &[2], "shape [2] has 2 elements, the data has 3"),
        ("lines", "BYTES", &[3], "shape [3] has 3 elements, the data has 2"),
        ("lines", "BYTES", &[-1, -1], "say it with --shape"),
        ("folder", "INT32", &[2], "it is not a file"),
        ("../short", "UINT8", &[3], "cannot be that of a file in a directory"),
        ("/etc/passwd", "UINT8", &[3], "cannot be that of a file in a directory"),
        ("..", "UINT8", &[3], "cannot be that of a file in a directory"),
        ("folder/", "UINT8", &[3], "cannot be that of a file in a directory"),
    ] {
        let source = Source::Directory(directory.0.clone());
        let error =
            streams(&model_info_of(name, datatype, shape), &plan(source)).map(|_| ()).expect_err(name).to_string();
        assert!(error.contains(part) && error.contains(name), "{name}: {error}");
    }
    let mut optional = model_info_of("absent", "INT32", &[2]);
    optional.inputs[0].optional = true;
    let source = Source::Directory(directory.0.clone());
    assert!(streams(&optional, &plan(source)).expect("a template")[0][0].inputs.is_empty());
}
