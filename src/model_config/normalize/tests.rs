//! The rules of contract/model_config.md section 5, row by row.

use super::super::SupportedGpus;
use super::super::layout::Entry;
use super::*;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::model_sequence_batching::{StrategyDirect, StrategyOldest};
use nereid_wire::inference::{
    ModelDynamicBatching, ModelEnsembling, ModelInstanceGroup, ModelOptimizationPolicy, ModelSequenceBatching,
};

fn layout(entries: &[&str]) -> Layout {
    let entry = |name: &&str| Entry { name: name.trim_end_matches('/').into(), is_directory: name.ends_with('/') };
    Layout { first_subdirectory: Some(entries.iter().map(entry).collect()), ..Default::default() }
}

/// (backend, platform, default_model_filename)
type Known<'a> = (&'a str, &'a str, &'a str);

fn infer(known: Known<'_>, files: &[&str]) -> Result<(String, String, String), Error> {
    let mut config = ModelConfig {
        backend: known.0.into(),
        platform: known.1.into(),
        default_model_filename: known.2.into(),
        ..Default::default()
    };
    normalize(&mut config, "m", &layout(files))?;
    assert_eq!(config.name, "m");
    Ok((config.backend, config.platform, config.default_model_filename))
}

#[test]
fn backends_are_inferred() {
    let onnx = ("onnxruntime", "onnxruntime_onnx", "model.onnx");
    let graphdef = ("tensorflow", "tensorflow_graphdef", "model.graphdef");
    let savedmodel = ("tensorflow", "tensorflow_savedmodel", "model.savedmodel");
    let plan = ("tensorrt", "tensorrt_plan", "model.plan");
    let torch = ("pytorch", "pytorch_libtorch", "model.pt");
    let aoti = ("pytorch", "torch_aoti", "model.pt2");
    let cases: [(Known<'_>, &[&str], Known<'_>); 46] = [
        (("", "tensorflow_graphdef", ""), &[], graphdef),
        (("", "tensorflow_savedmodel", ""), &[], savedmodel),
        (("", "", "model.graphdef"), &[], graphdef),
        (("", "", "model.savedmodel"), &[], savedmodel),
        (("", "", ""), &["model.graphdef"], graphdef),
        (("", "", ""), &["model.savedmodel/"], savedmodel),
        (("", "", ""), &["model.graphdef", "model.savedmodel/"], graphdef),
        (("tensorflow", "", ""), &["model.savedmodel/"], savedmodel),
        (("tensorflow", "", ""), &["other"], ("tensorflow", "", "")),
        (("tensorflow", "tensorflow_graphdef", "x"), &[], ("tensorflow", "tensorflow_graphdef", "x")),
        (("", "tensorrt_plan", ""), &[], plan),
        (("", "", "model.plan"), &[], plan),
        (("", "", ""), &["model.plan"], plan),
        (("tensorrt", "", ""), &[], plan),
        (("tensorrt", "", "x"), &[], ("tensorrt", "tensorrt_plan", "x")),
        (("", "onnxruntime_onnx", ""), &[], onnx),
        (("", "onnxruntime_onnx", "a.onnx"), &["model.plan"], ("onnxruntime", "onnxruntime_onnx", "a.onnx")),
        (("", "", "model.onnx"), &["model.plan"], onnx),
        (("", "", ""), &["model.onnx"], onnx),
        (("", "", ""), &["model.onnx/"], onnx),
        (("onnxruntime", "", ""), &["model.plan"], onnx),
        (("onnxruntime", "x", ""), &[], ("onnxruntime", "x", "model.onnx")),
        (("", "", "model.xml"), &[], ("openvino", "", "model.xml")),
        (("", "", ""), &["model.xml", "model.bin"], ("openvino", "", "model.xml")),
        (("openvino", "", ""), &[], ("openvino", "", "model.xml")),
        (("", "pytorch_libtorch", ""), &[], torch),
        (("", "libtorch", ""), &[], ("pytorch", "libtorch", "model.pt")),
        (("", "", "model.pt"), &[], torch),
        (("", "", ""), &["model.pt"], torch),
        (("", "", ""), &["model.pt", "model.pt2"], torch),
        (("pytorch", "", ""), &[], torch),
        (("pytorch", "", "x.pt"), &[], ("pytorch", "pytorch_libtorch", "x.pt")),
        (("", "torch_aoti", ""), &[], aoti),
        (("", "", "model.pt2"), &[], aoti),
        (("", "", ""), &["model.pt2"], aoti),
        (("pytorch", "", ""), &["model.pt2"], aoti),
        (("pytorch", "torch_aoti", ""), &["model.pt"], aoti),
        (("", "", "model.py"), &[], ("python", "", "model.py")),
        (("", "", ""), &["model.py"], ("python", "", "model.py")),
        (("python", "", ""), &["model.onnx"], ("python", "", "model.py")),
        (("python", "", "serve.py"), &[], ("python", "", "serve.py")),
        // No values are set for backends that are not in the table.
        (("identity", "", ""), &["model.onnx"], ("identity", "", "")),
        (("", "ensemble", ""), &[], ("", "ensemble", "")),
        (("", "", "x.bin"), &["model.onnx"], ("", "", "x.bin")),
        (("", "x", ""), &["model.onnx"], ("", "x", "")),
        // A file where a directory is expected, and the other way round, is no hint; see below for the error.
        (("x", "", ""), &["model.savedmodel", "model.plan/"], ("x", "", "")),
    ];
    for (known, files, expected) in cases {
        let expected = (expected.0.into(), expected.1.into(), expected.2.into());
        assert_eq!(infer(known, files), Ok(expected), "{known:?} with {files:?}");
    }
}

#[test]
fn a_model_that_configures_no_backend_is_named_after_it() {
    let text = "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. \
                Expected model name of the form 'model.<backend_name>'.";
    for files in [&[][..], &["model.savedmodel"], &["model.graphdef/"], &["model.plan/"], &["model.py/"]] {
        assert_eq!(infer(("", "", ""), files), Err(Error::invalid(text)), "{files:?}");
    }
    let mut config = ModelConfig::default();
    normalize(&mut config, "echo.identity", &Layout::default()).unwrap();
    assert_eq!((config.name.as_str(), config.backend.as_str()), ("echo.identity", "identity"));
    assert_eq!(config.default_model_filename, "model.identity");
    let mut config = ModelConfig::default();
    normalize(&mut config, "a.b.c", &Layout::default()).unwrap();
    assert_eq!(config.backend, "b.c");
    let mut config = ModelConfig { name: "other".into(), backend: "x".into(), ..Default::default() };
    normalize(&mut config, "m", &Layout::default()).unwrap();
    assert_eq!(config.name, "other");
}

#[test]
fn defaults_are_filled_once() {
    let mut config = ModelConfig { max_batch_size: 8, ..Default::default() };
    fill_defaults(&mut config);
    let latest = Some(PolicyChoice::Latest(Latest { num_versions: 1 }));
    assert_eq!(config.version_policy.as_ref().unwrap().policy_choice, latest);
    let optimization = config.optimization.as_ref().unwrap();
    assert_eq!(optimization.input_pinned_memory, Some(PinnedMemoryBuffer { enable: true }));
    assert_eq!(optimization.output_pinned_memory, Some(PinnedMemoryBuffer { enable: true }));
    assert_eq!(config.scheduling_choice, None);
    let once = config.clone();
    fill_defaults(&mut config);
    assert_eq!(config, once);

    let off = Some(PinnedMemoryBuffer { enable: false });
    let mut config = ModelConfig {
        optimization: Some(ModelOptimizationPolicy { input_pinned_memory: off, ..Default::default() }),
        version_policy: Some(ModelVersionPolicy {
            policy_choice: Some(PolicyChoice::Latest(Latest { num_versions: 0 })),
        }),
        ..Default::default()
    };
    fill_defaults(&mut config);
    assert_eq!(config.optimization.unwrap().input_pinned_memory, off);
    let unchanged = Some(PolicyChoice::Latest(Latest { num_versions: 0 }));
    assert_eq!(config.version_policy.unwrap().policy_choice, unchanged);
}

#[test]
fn schedulers_get_their_defaults() {
    let with = |max_batch_size, choice| {
        let mut config = ModelConfig { max_batch_size, scheduling_choice: Some(choice), ..Default::default() };
        fill_defaults(&mut config);
        config
    };
    let dynamic = |sizes: &[i32]| {
        SchedulingChoice::DynamicBatching(ModelDynamicBatching {
            preferred_batch_size: sizes.to_vec(),
            ..Default::default()
        })
    };
    assert_eq!(with(8, dynamic(&[])).scheduling_choice, Some(dynamic(&[8])));
    assert_eq!(with(8, dynamic(&[4])).scheduling_choice, Some(dynamic(&[4])));
    assert_eq!(with(0, dynamic(&[])).scheduling_choice, Some(dynamic(&[])));

    let sequence = |idle, strategy| {
        SchedulingChoice::SequenceBatching(ModelSequenceBatching {
            max_sequence_idle_microseconds: idle,
            strategy_choice: strategy,
            ..Default::default()
        })
    };
    let oldest = |sizes: &[i32]| {
        Some(StrategyChoice::Oldest(StrategyOldest { preferred_batch_size: sizes.to_vec(), ..Default::default() }))
    };
    let direct = || Some(StrategyChoice::Direct(StrategyDirect::default()));
    assert_eq!(with(4, sequence(0, None)).scheduling_choice, Some(sequence(1_000_000, None)));
    assert_eq!(with(4, sequence(7, direct())).scheduling_choice, Some(sequence(7, direct())));
    assert_eq!(with(4, sequence(7, oldest(&[]))).scheduling_choice, Some(sequence(7, oldest(&[4]))));
    assert_eq!(with(0, sequence(7, oldest(&[]))).scheduling_choice, Some(sequence(7, oldest(&[]))));

    let ensemble = with(0, SchedulingChoice::EnsembleScheduling(ModelEnsembling::default()));
    assert_eq!(ensemble.optimization, None);
    assert!(ensemble.version_policy.is_some());
}

#[test]
fn instance_groups_are_resolved() {
    let group = |name: &str, kind: Kind, count| ModelInstanceGroup {
        name: name.into(),
        kind: kind.into(),
        count,
        ..Default::default()
    };
    let preferred = PreferredGroup::new;
    type Case<'a> = (&'a str, Vec<ModelInstanceGroup>, Vec<PreferredGroup>, Vec<ModelInstanceGroup>);
    let cases: [Case<'_>; 11] = [
        ("identity", vec![], vec![], vec![group("m", Kind::Cpu, 1)]),
        ("onnxruntime", vec![], vec![], vec![group("m", Kind::Cpu, 2)]),
        ("tensorflow", vec![], vec![], vec![group("m", Kind::Cpu, 2)]),
        ("x", vec![], vec![preferred(Kind::Gpu, 4), preferred(Kind::Cpu, 3)], vec![group("m", Kind::Cpu, 3)]),
        ("x", vec![], vec![preferred(Kind::Model, 0)], vec![group("m", Kind::Model, 1)]),
        ("onnxruntime", vec![group("", Kind::Auto, 0)], vec![], vec![group("m_0", Kind::Cpu, 2)]),
        ("onnxruntime", vec![group("", Kind::Cpu, 1)], vec![], vec![group("m_0", Kind::Cpu, 1)]),
        ("onnxruntime", vec![group("", Kind::Model, -3)], vec![], vec![group("m_0", Kind::Model, 1)]),
        ("x", vec![group("", Kind::Cpu, 0)], vec![preferred(Kind::Cpu, 5)], vec![group("m_0", Kind::Cpu, 5)]),
        (
            "x",
            vec![group("named", Kind::Cpu, 2), group("", Kind::Auto, 3)],
            vec![preferred(Kind::Cpu, 5)],
            vec![group("named", Kind::Cpu, 2), group("m_1", Kind::Cpu, 3)],
        ),
        // Refused later, with its own words.
        ("x", vec![group("", Kind::Gpu, 0)], vec![], vec![group("m_0", Kind::Gpu, 1)]),
    ];
    for (backend, groups, preferred, expected) in cases {
        let mut config = ModelConfig {
            name: "m".into(),
            backend: backend.into(),
            instance_group: groups.clone(),
            ..Default::default()
        };
        instance_groups(&mut config, &preferred, &SupportedGpus::NoDriver);
        assert_eq!(config.instance_group, expected, "{backend} {groups:?}");
        instance_groups(&mut config, &preferred, &SupportedGpus::NoDriver);
        assert_eq!(config.instance_group, expected, "twice: {backend} {groups:?}");
    }
    let mut ensemble = ModelConfig {
        scheduling_choice: Some(SchedulingChoice::EnsembleScheduling(ModelEnsembling::default())),
        ..Default::default()
    };
    instance_groups(&mut ensemble, &[], &on(&[0]));
    assert!(ensemble.instance_group.is_empty());
}

fn on(ids: &[i32]) -> SupportedGpus {
    SupportedGpus::Found { ids: ids.iter().copied().collect(), capability_min: 7.5 }
}

#[test]
fn groups_move_to_the_gpus_that_are_there() {
    let group = |name: &str, kind: Kind, count, gpus: &[i32]| ModelInstanceGroup {
        name: name.into(),
        kind: kind.into(),
        count,
        gpus: gpus.to_vec(),
        ..Default::default()
    };
    let auto = |gpus: &[i32]| vec![group("", Kind::Auto, 0, gpus)];
    let gpu = |gpus: &[i32]| vec![group("", Kind::Gpu, 0, gpus)];
    let prefers = |kind, count, gpus: &[i32]| PreferredGroup { kind, count, gpus: gpus.to_vec() };
    let cpu = || prefers(Kind::Cpu, 3, &[]);
    type Case<'a> = (&'a [i32], Vec<ModelInstanceGroup>, Vec<PreferredGroup>, ModelInstanceGroup);
    let cases: [Case<'_>; 18] = [
        // No group is configured: the best preference that can be met, else any device.
        (&[0, 2], vec![], vec![], group("m", Kind::Gpu, 1, &[0, 2])),
        (&[], vec![], vec![], group("m", Kind::Cpu, 2, &[])),
        (&[0, 2], vec![], vec![cpu()], group("m", Kind::Cpu, 3, &[])),
        (&[0, 2], vec![], vec![prefers(Kind::Gpu, 4, &[]), cpu()], group("m", Kind::Gpu, 4, &[0, 2])),
        (&[], vec![], vec![prefers(Kind::Gpu, 4, &[]), cpu()], group("m", Kind::Cpu, 3, &[])),
        (&[0, 2], vec![], vec![prefers(Kind::Gpu, 4, &[1, 2, 3]), cpu()], group("m", Kind::Gpu, 4, &[2])),
        (&[0, 2], vec![], vec![prefers(Kind::Gpu, 4, &[1, 3]), cpu()], group("m", Kind::Cpu, 3, &[])),
        (&[0, 2], vec![], vec![prefers(Kind::Auto, 4, &[]), cpu()], group("m", Kind::Gpu, 4, &[0, 2])),
        // "Auto" is a GPU where all named devices exist.
        (&[0, 2], auto(&[]), vec![], group("m_0", Kind::Gpu, 1, &[0, 2])),
        (&[0, 2], auto(&[2]), vec![], group("m_0", Kind::Gpu, 1, &[2])),
        (&[0, 2], auto(&[2, 1]), vec![], group("m_0", Kind::Cpu, 2, &[2, 1])),
        (&[], auto(&[]), vec![], group("m_0", Kind::Cpu, 2, &[])),
        // Devices that are named stay; others come from the preference, or are all.
        (&[0, 2], gpu(&[2]), vec![prefers(Kind::Gpu, 4, &[0])], group("m_0", Kind::Gpu, 4, &[2])),
        (&[0, 2], gpu(&[]), vec![cpu(), prefers(Kind::Gpu, 4, &[0, 1])], group("m_0", Kind::Gpu, 4, &[0])),
        (&[0, 2], gpu(&[]), vec![prefers(Kind::Gpu, 4, &[1])], group("m_0", Kind::Gpu, 1, &[0, 2])),
        (&[0, 2], gpu(&[1]), vec![], group("m_0", Kind::Gpu, 1, &[1])),
        (&[], gpu(&[]), vec![], group("m_0", Kind::Gpu, 1, &[])),
        (&[0], vec![group("n", Kind::Gpu, 2, &[0, 0])], vec![], group("n", Kind::Gpu, 2, &[0, 0])),
    ];
    for (ids, groups, preferred, expected) in cases {
        let mut config = ModelConfig {
            name: "m".into(),
            backend: "onnxruntime".into(),
            instance_group: groups.clone(),
            ..Default::default()
        };
        for _ in 0..2 {
            instance_groups(&mut config, &preferred, &on(ids));
            // A group that was made keeps the model's name.
            assert_eq!(config.instance_group, std::slice::from_ref(&expected), "{ids:?} {groups:?} {preferred:?}");
        }
    }
}
