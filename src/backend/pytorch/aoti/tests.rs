//! Runs of packages (tests/python/aoti_packages.py) with the real library. They need NEREID_TEST_LARGE_RUNTIMES=1.

use std::io::{Read, Write};
use std::path::Path;

use super::*;
use nereid_backend::fixtures::{Answers, Draft, as_floats, context};
use nereid_backend::runtime_search::Surroundings;
use nereid_backend::scratch::Scratch;
use nereid_memory::Slice;
use nereid_model_config::{ModelSpec, from_dynamic, parse};
use nereid_request::{Code, DataType, Request, Response};
use nereid_scheduler::Payload;
use nereid_test_support::torch as support;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_instance_group::Kind;

/// The library and the packages.
struct Torch {
    torch: &'static crate::torch::Torch,
    packages: PathBuf,
}

impl Torch {
    fn get() -> Option<Torch> {
        let support::Torch { library, packages } = support::Torch::get()?;
        let surroundings = Surroundings { library_setting: Some(library), ..Surroundings::default() };
        Some(Torch { torch: crate::torch::load(&surroundings).unwrap(), packages })
    }

    /// A model of `folder` or, if that is empty, of the packages.
    fn model(&self, folder: &Path, file: &str, more: &str) -> (Arc<AotiModel>, InstanceContext) {
        let folder = if folder.as_os_str().is_empty() { &self.packages } else { folder };
        let mut config = config(more);
        config.default_model_filename = file.to_owned();
        let context = Arc::new(context("m", folder.to_owned(), config.clone()));
        let spec = Arc::new(ModelSpec::new(config).unwrap());
        let model = Arc::new(AotiModel::open(self.torch, Arc::clone(&context)).unwrap());
        (model, InstanceContext::new("m_0", spec, context))
    }

    fn rig(&self, package: &str, more: &str) -> Rig {
        let (model, context) = self.model(Path::new(""), &format!("{package}.pt2"), more);
        Rig { instance: model.instance(context).unwrap_or_else(|error| panic!("{error:?}")), answers: Arc::default() }
    }

    /// The text without what wraps it.
    fn refusal(&self, folder: &Path, file: &str) -> (Code, String) {
        let (model, context) = self.model(folder, file, ADD);
        let Err(status) = model.create_instance(context) else { panic!("{file} was accepted") };
        let wrapper = "failed to create instance \"m_0\" for inductor model \"m\": Failed to create \
                       ModelInstanceState for model \"m\": ";
        let text = status.message.strip_prefix(wrapper).unwrap_or_else(|| panic!("{status:?}"));
        (status.code, text.to_owned())
    }
}

fn config(more: &str) -> ModelConfig {
    let text = format!("name: \"m\" backend: \"pytorch\" platform: \"torch_aoti\" {more}");
    let text = match more.contains("instance_group") {
        true => text,
        false => text + " instance_group { name: \"m\" count: 1 kind: KIND_CPU }",
    };
    let document = parse("config.pbtxt", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    from_dynamic(&document.message).unwrap()
}

struct Rig {
    instance: AotiInstance,
    answers: Arc<Answers>,
}

impl Rig {
    fn draft(&self, key: u64) -> Draft {
        Draft::new(&self.answers, key)
    }

    fn run(&mut self, requests: impl IntoIterator<Item = Box<Request>>) -> Vec<(u64, Result<Response, Status>)> {
        let mut payload = Payload::default();
        requests.into_iter().for_each(|request| payload.push(request));
        self.instance.execute(&mut payload).unwrap();
        self.answers.take()
    }

    fn run_one(&mut self, request: Box<Request>) -> Result<Response, Status> {
        self.run([request]).remove(0).1
    }

    /// A request with `rows` rows of `width` numbers from `first` on, for inputs 0 and 1.
    fn pair(&self, key: u64, rows: usize, width: usize, first: f32) -> Draft {
        let values: Vec<f32> = (0..rows * width).map(|at| first + at as f32).collect();
        let shape = [rows as i64, width as i64];
        self.draft(key).batch(rows as u64).floats(0, &shape, &values).floats(1, &shape, &vec![1.; rows * width])
    }
}

const ADD: &str = r#"max_batch_size: 8
    input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 16 ] }
    input { name: "ARGS[1]" data_type: TYPE_FP32 dims: [ 16 ] }
    output { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 16 ] }
    output { name: "RESULT[0]" data_type: TYPE_FP32 dims: [ 16 ] }"#;

#[test]
fn requests_are_joined_and_the_rows_are_scattered_back() {
    let Some(torch) = Torch::get() else { return };
    let mut rig = torch.rig("add", ADD);
    let requests = [(1, 1, 10.), (2, 4, 100.), (3, 3, 1000.)];
    let drafts: Vec<_> = requests.map(|(key, rows, first)| rig.pair(key, rows, 16, first).outputs([1, 0])).into();
    let answers = rig.run(drafts);
    for ((key, answer), (expected, rows, first)) in answers.into_iter().zip(requests) {
        let response = answer.unwrap();
        assert_eq!(key, expected);
        let [sum, difference] = &response.outputs[..] else { panic!("{:?}", response.outputs) };
        assert_eq!((&*sum.name.to_str_lossy(), &sum.shape[..]), ("RESULT[0]", &[rows as i64, 16][..]));
        let numbers = |add: f32| (0..rows * 16).map(|at| first + at as f32 + add).collect::<Vec<f32>>();
        assert_eq!((as_floats(&sum.data), as_floats(&difference.data)), (numbers(1.), numbers(-1.)));
    }
    let counts = rig.instance.context().statistics.snapshot();
    assert_eq!((counts.execution_count, counts.inference_count), (1, 8));
}

#[test]
fn a_tensor_that_the_model_does_not_take_is_an_error_and_not_read_past_its_end() {
    let Some(torch) = Torch::get() else { return };
    let narrow = ADD.replace("dims: [ 16 ]", "dims: [ 8 ]");
    let mut rig = torch.rig("add", &narrow);
    let request = rig.pair(1, 2, 8, 0.).outputs([0]);
    let error = rig.run_one(request).unwrap_err();
    let text = error.message;
    assert!(text.starts_with("Inductor model instance \"m_0\" execution failure: "), "{text}");
    assert!(text.contains("expected: 16") && text.contains("but got: 8"), "{text}");
    // The type, too.
    let integers = ADD.replace("TYPE_FP32", "TYPE_INT32");
    let mut rig = torch.rig("add", &integers);
    let bytes = Slice::copy_of(&[0; 64]);
    let draft = rig.draft(1).batch(1).input(0, DataType::Int32, &[1, 16], std::slice::from_ref(&bytes));
    let request = draft.input(1, DataType::Int32, &[1, 16], &[bytes]).outputs([0]);
    let text = rig.run_one(request).unwrap_err().message;
    assert!(text.contains("unmatched dtype"), "{text}");
    // Each is of another size: the library would read past the end of the smaller one.
    let any = ADD.replace("dims: [ 16 ]", "dims: [ -1 ]");
    let mut rig = torch.rig("variable", &any);
    let draft = rig.draft(1).batch(2).floats(0, &[2, 100], &[1.; 200]).floats(1, &[2, 7], &[1.; 14]);
    let text = rig.run_one(draft.outputs([0])).unwrap_err().message;
    assert!(text.contains("expected"), "{text}");
    // More rows than the program was exported for.
    let more = ADD.replace("max_batch_size: 8", "max_batch_size: 9");
    let mut rig = torch.rig("add", &more);
    let request = rig.pair(1, 9, 16, 0.).outputs([0]);
    let text = rig.run_one(request).unwrap_err().message;
    assert!(text.contains("too large"), "{text}");
    // It still works.
    let request = rig.pair(1, 2, 16, 0.).outputs([0]);
    assert!(rig.run_one(request).is_ok());
}

/// Where a group of the configuration does not say otherwise, an instance is on a GPU if PyTorch can use one.
#[test]
fn an_instance_on_a_gpu_computes_where_its_package_does() {
    let Some(torch) = Torch::get() else { return };
    let (model, mut context) = torch.model(Path::new(""), "add.pt2", ADD);
    context.kind = Kind::Gpu;
    let mut rig = Rig { instance: model.instance(context).unwrap(), answers: Arc::default() };
    let response = rig.run_one(rig.pair(1, 2, 16, 5.).outputs([1])).unwrap();
    let expected: Vec<f32> = (0..32).map(|at| 6. + at as f32).collect();
    assert_eq!(as_floats(&response.outputs[0].data), expected);
}

#[test]
fn a_single_row_is_computed_even_if_the_package_is_compiled_for_two() {
    let Some(torch) = Torch::get() else { return };
    for (package, doubles) in [("add", true), ("lowest", false)] {
        let mut rig = torch.rig(package, ADD);
        for first in [5., 6.] {
            let request = rig.pair(1, 1, 16, first).outputs([1]);
            let response = rig.run_one(request).unwrap();
            let expected: Vec<f32> = (0..16).map(|at| first + at as f32 + 1.).collect();
            assert_eq!(
                (&response.outputs[0].shape[..], as_floats(&response.outputs[0].data)),
                (&[1, 16][..], expected)
            );
            assert_eq!(rig.instance.doubles_rows(), doubles, "{package}");
        }
    }
}

#[test]
fn arguments_and_results_of_every_form_have_names() {
    let Some(torch) = Torch::get() else { return };
    let tensor = |kind: &str, name: &str| format!("{kind} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ 16 ] }}\n");
    let by_place = ["ARGS[0]", "ARGS[1]", "ARGS[2][o1]", "ARGS[2][o2]", "KWARGS[kw1]"];
    let by_position = ["INPUT__0", "INPUT__1", "INPUT__2", "INPUT__3", "INPUT__4"];
    let mixed = ["INPUT__0", "ARGS[1]", "INPUT__2", "ARGS[2][o2]", "KWARGSkw1"];
    let results = [
        "RESULT[AAA]",
        "RESULT[ZZZ]",
        "RESULT[BBB][0]",
        "RESULT[BBB][1]",
        "RESULT[CCC][0]",
        "RESULT[CCC][1]",
        "RESULT[DDD]",
    ];
    for inputs in [by_place, by_position, mixed] {
        let inputs: String = inputs.iter().map(|name| tensor("input", name)).collect();
        let positions: Vec<String> = (0..results.len()).map(|at| format!("OUTPUT__{at}")).collect();
        for outputs in [results.map(str::to_owned).to_vec(), positions] {
            let outputs: String = outputs.iter().map(|name| tensor("output", name)).collect();
            let mut rig = torch.rig("names", &format!("max_batch_size: 8 {inputs} {outputs}"));
            let draft = (0..5).fold(rig.draft(1).batch(1), |draft, at| {
                draft.floats(at, &[1, 16], &[2f32.powi(i32::try_from(at).unwrap()); 16])
            });
            let response = rig.run_one(draft.outputs(0..7)).unwrap();
            let found: Vec<f32> = response.outputs.iter().map(|output| as_floats(&output.data)[15]).collect();
            // a 1, b 2, o1 4, o2 8, kw1 16
            assert_eq!(found, [3., -1., 2., 6., 8., 20., 112.]);
        }
    }
}

#[test]
fn every_type_of_element_goes_in_and_comes_out() {
    let Some(torch) = Torch::get() else { return };
    let types = [
        (DataType::Bool, vec![1u8, 0, 1, 0], vec![0, 1, 0, 1]),
        (DataType::Uint8, vec![1, 2, 3, 4], vec![2, 4, 6, 8]),
        (DataType::Int8, vec![1, 2, 3, 0xff], vec![2, 4, 6, 0xfe]),
        (DataType::Int16, le([1i16, -2, 3, 300].map(i16::to_le_bytes)), le([2i16, -4, 6, 600].map(i16::to_le_bytes))),
        (DataType::Int32, le([1i32, -2, 3, 9].map(i32::to_le_bytes)), le([2i32, -4, 6, 18].map(i32::to_le_bytes))),
        (DataType::Int64, le([1i64, -2, 3, 9].map(i64::to_le_bytes)), le([2i64, -4, 6, 18].map(i64::to_le_bytes))),
        // 1, 2, 0.5, -1
        (
            DataType::Fp16,
            le([0x3c00u16, 0x4000, 0x3800, 0xbc00].map(u16::to_le_bytes)),
            le([0x4000u16, 0x4400, 0x3c00, 0xc000].map(u16::to_le_bytes)),
        ),
        (
            DataType::Bf16,
            le([0x3f80u16, 0x4000, 0x3f00, 0xbf80].map(u16::to_le_bytes)),
            le([0x4000u16, 0x4080, 0x3f80, 0xc000].map(u16::to_le_bytes)),
        ),
        (DataType::Fp32, le([1f32, 2., 0.5, -1.].map(f32::to_le_bytes)), le([2f32, 4., 1., -2.].map(f32::to_le_bytes))),
        (DataType::Fp64, le([1f64, 2., 0.5, -1.].map(f64::to_le_bytes)), le([2f64, 4., 1., -2.].map(f64::to_le_bytes))),
    ];
    let tensors: String = types
        .iter()
        .enumerate()
        .map(|(at, (datatype, ..))| {
            let rest = format!("data_type: {} dims: [ 4 ]", crate::element::config_name(*datatype));
            format!("input {{ name: \"INPUT__{at}\" {rest} }} output {{ name: \"OUTPUT__{at}\" {rest} }}\n")
        })
        .collect();
    let mut rig = torch.rig("types", &format!("max_batch_size: 8 {tensors}"));
    for rows in [1, 4, 8] {
        let draft = types.iter().enumerate().fold(rig.draft(1).batch(rows), |draft, (at, (datatype, given, _))| {
            let given = Slice::copy_of(&given.repeat(usize::try_from(rows).unwrap()));
            draft.input(at, *datatype, &[i64::try_from(rows).unwrap(), 4], &[given])
        });
        let response = rig.run_one(draft.outputs(0..types.len())).unwrap();
        for (output, (datatype, _, expected)) in response.outputs.iter().zip(&types) {
            let found: Vec<u8> = output.data.iter().flat_map(|piece| piece.to_vec()).collect();
            let expected = expected.repeat(usize::try_from(rows).unwrap());
            assert_eq!((output.datatype, found), (*datatype, expected), "{datatype:?} {rows}");
        }
    }
}

fn le<const N: usize>(numbers: [[u8; N]; 4]) -> Vec<u8> {
    numbers.concat()
}

#[test]
fn results_are_read_as_they_are() {
    let Some(torch) = Torch::get() else { return };
    let views = |outputs: &str| {
        let input = r#"input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 5 ] }"#;
        torch.rig("views", &format!("{input} {outputs}"))
    };
    let values: Vec<f32> = (0..15).map(|at| at as f32).collect();
    let request =
        |rig: &Rig, outputs: &[usize]| rig.draft(1).floats(0, &[3, 5], &values).outputs(outputs.iter().copied());
    let mut rig = views(
        r#"output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 5, 3 ] },
        { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 3, 5 ] } ]"#,
    );
    let response = rig.run_one(request(&rig, &[0, 1])).unwrap();
    let [turned, same] = &response.outputs[..] else { panic!("{:?}", response.outputs) };
    assert_eq!((&turned.shape[..], as_floats(&turned.data)[..4].to_vec()), (&[5, 3][..], vec![0., 5., 10., 1.]));
    assert_eq!((&same.shape[..], as_floats(&same.data)), (&[3, 5][..], values.clone()));
    for (output, text) in [
        (r#"output { name: "OUTPUT__2" data_type: TYPE_FP32 dims: [ 1 ] }"#, "is a scalar which is not supported."),
        (
            r#"output { name: "OUTPUT__2" data_type: TYPE_INT32 dims: [ 1 ] }"#,
            "has datatype TYPE_FP32 but model configuration expects TYPE_INT32.",
        ),
    ] {
        let mut rig = views(output);
        let error = rig.run_one(request(&rig, &[0])).unwrap_err();
        let expected = format!(
            "Failed to read output tensors for model instance \"m_0\": Inductor model instance \"m_0\" output tensor \
             \"OUTPUT__2\" {text}"
        );
        assert_eq!((error.code, &*error.message), (Code::Internal, &*expected));
    }
}

#[test]
fn weights_come_with_the_package_in_any_form_that_has_them() {
    let Some(torch) = Torch::get() else { return };
    let linear = r#"max_batch_size: 8 input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 16 ] }
        output { name: "RESULT" data_type: TYPE_FP32 dims: [ 4 ] }"#;
    for package in ["weights", "weights_mapped", "weights_blob"] {
        let mut rig = torch.rig(package, linear);
        let values: Vec<f32> = (0..32).map(|at| at as f32).collect();
        let request = rig.draft(1).batch(2).floats(0, &[2, 16], &values).outputs([0]);
        let response = rig.run_one(request).unwrap();
        let expected = [19.375, 50.375, 81.375, 112.375, 49.375, 144.375, 239.375, 334.375];
        assert_eq!(as_floats(&response.outputs[0].data), expected, "{package}");
    }
    let refused = |file| torch.refusal(Path::new(""), file).1;
    assert!(refused("weights_pickled.pt2").contains("its weights are pickled"));
    assert!(refused("weights_absent.pt2").contains("it contains 0 of its 1 weights"));
    assert!(refused("exported.pt2").contains("an exported program that was not compiled"));
}

/// Each instance of a model runs at the same time as the others.
#[test]
fn instances_share_one_container_unless_the_configuration_says_otherwise() {
    let Some(torch) = Torch::get() else { return };
    let group = "instance_group { name: \"m\" count: 2 kind: KIND_CPU }";
    let weights = |value: &str| {
        format!("{ADD} {group} parameters {{ key: \"ENABLE_WEIGHT_SHARING\" value {{ string_value: \"{value}\" }} }}")
    };
    for (more, shared) in [(format!("{ADD} {group}"), true), (weights("true"), true), (weights("false"), false)] {
        let (model, context) = torch.model(Path::new(""), "add.pt2", &more);
        let instances = [model.instance(context.clone()).unwrap(), model.instance(context.clone()).unwrap()];
        let [a, b] = instances.each_ref().map(|instance| std::ptr::from_ref(instance.runner().of()));
        assert_eq!(a == b, shared, "{more}");
        // One more than the configuration has.
        let third = model.instance(context.clone()).unwrap();
        assert_ne!(std::ptr::from_ref(third.runner().of()), a);
        if shared {
            // The runner of an instance that is gone is used again.
            let of_third = std::ptr::from_ref(third.runner().of());
            drop(third);
            let fourth = model.instance(context).unwrap();
            assert_eq!(std::ptr::from_ref(fourth.runner().of()), of_third);
        }
    }
}

#[test]
fn the_threads_of_an_instance_are_those_of_the_parameter() {
    let Some(torch) = Torch::get() else { return };
    let threads = "parameters { key: \"INTRA_OP_THREAD_COUNT\" value { string_value: \"3\" } }";
    let rig = torch.rig("add", &format!("{ADD} {threads}"));
    assert_eq!(rig.instance.api().threads(), 3);
}

#[test]
fn the_threads_of_an_instance_are_not_those_of_the_next_one() {
    let Some(torch) = Torch::get() else { return };
    let rig = torch.rig("add", ADD);
    let api = rig.instance.api();
    let of_new_thread = |count: i32, then: &(dyn Fn() + Sync)| {
        let prepared = || {
            api.prepare_thread(count);
            then();
            api.threads()
        };
        std::thread::scope(|scope| scope.spawn(prepared).join().unwrap())
    };
    assert_eq!(of_new_thread(3, &|| assert_eq!(of_new_thread(2, &|| ()), 2)), 3);
}

#[test]
fn files_that_are_no_package_for_this_host_are_refused() {
    let Some(torch) = Torch::get() else { return };
    let scratch = Scratch::new("aoti-refused");
    let text =
        |path: &Path| format!("PyTorch inductor model file \"{}\" is unreachable or inaccessible.", path.display());
    let refused = |file: &str| torch.refusal(&scratch.path(""), file);
    assert_eq!(refused("model.pt2"), (Code::Unavailable, text(&scratch.path("").join("model.pt2"))));
    scratch.write("text.pt2", b"no archive");
    assert!(refused("text.pt2").1.contains("it is not a zip archive"));
    assert!(refused("../model.pt2").1.contains("is outside its version directory"));
    let metadata = |text: &[u8]| text.to_vec();
    for (name, from, to, expected) in [
        ("isa", "\"AOTI_CPU_ISA\": \"", "\"AOTI_CPU_ISA\": \"AVX1024 ", "the CPU of this host lacks AVX1024"),
        ("machine", "\"AOTI_MACHINE\": \"", "\"AOTI_MACHINE\": \"not-", "compiled for the machine \"not-"),
        ("device", "\"AOTI_DEVICE_KEY\": \"cpu\"", "\"AOTI_DEVICE_KEY\": \"cuda\"", "compiled for the device \"cuda\""),
    ] {
        let path = scratch.path(format!("{name}.pt2"));
        rewrite(&torch.packages.join("add.pt2"), &path, "wrapper_metadata.json", |bytes| {
            let changed = String::from_utf8(bytes).unwrap().replace(from, to);
            metadata(changed.as_bytes())
        });
        let (code, found) = refused(&format!("{name}.pt2"));
        assert_eq!(code, Code::Internal);
        assert!(found.contains(expected) && found.ends_with("compile it on this kind of host"), "{found}");
    }
    let path = scratch.path("library.pt2");
    rewrite(&torch.packages.join("add.pt2"), &path, "wrapper.so", |bytes| bytes[..bytes.len() / 8].to_vec());
    let (_, found) = refused("library.pt2");
    assert!(found.contains("its library cannot be opened"), "{found}");
}

/// Writes the archive `from` to `to`, with the members whose names end with `ending` changed.
fn rewrite(from: &Path, to: &Path, ending: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(from).unwrap()).unwrap();
    let mut writer = zip::ZipWriter::new(std::fs::File::create(to).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).unwrap();
        let (name, mut bytes) = (member.name().unwrap().into_owned(), Vec::new());
        member.read_to_end(&mut bytes).unwrap();
        let bytes = if name.ends_with(ending) { change(bytes) } else { bytes };
        writer.start_file(name, stored).unwrap();
        writer.write_all(&bytes).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_model_that_is_loaded_again_and_again_opens_its_library_once() {
    let Some(torch) = Torch::get() else { return };
    let counts = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        (files, maps.lines().filter(|line| line.contains("memfd:nereid-aoti")).count())
    };
    let run = || {
        let mut rig = torch.rig(
            "single",
            r#"max_batch_size: 8
            input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 16 ] }
            output { name: "RESULT" data_type: TYPE_FP32 dims: [ 16 ] }"#,
        );
        let request = rig.draft(1).batch(1).floats(0, &[1, 16], &[3.; 16]).outputs([0]);
        assert_eq!(as_floats(&rig.run_one(request).unwrap().outputs[0].data), [6.; 16]);
    };
    run();
    let (_, before) = counts();
    (0..100).for_each(|_| run());
    // Other tests of this process may open their libraries meanwhile, each with five mappings or so.
    let (_, after) = counts();
    assert!(after < before + 100, "{before} mappings became {after}");
}
