//! Every datatype that a backend knows passes through a model unchanged, over each form of the protocols.

use super::bench::{Bench, repository_of};
use super::table::{Framework, ModelKind};
use super::tensors::{FORMS, Tensor, samples};
use nereid_test_support::variant::is_second_run;

pub fn every_datatype_comes_back_as_it_was_sent(framework: &Framework) {
    if is_second_run() || !framework.has(ModelKind::Types) {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::Types], "") else { return };
    let model = framework.model(ModelKind::Types);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[]) else { return };
    let numbered = || framework.datatypes.iter().enumerate();
    let input = |(at, datatype): (usize, &&str)| {
        let elements = samples(datatype, framework.int64_bits);
        Tensor::new(&framework.input(at), datatype, &[3], elements)
    };
    let inputs: Vec<Tensor> = numbered().map(input).collect();
    for form in FORMS {
        // A response in JSON leaves the half floats out.
        let names: Vec<String> =
            numbered().filter(|(_, it)| form.carries(it)).map(|(at, _)| framework.output(at)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = bench.client.infer(form, &model, &inputs, &names);
        let found = found.unwrap_or_else(|refusal| panic!("{model}, {form:?}: {refusal:?}"));
        assert_eq!(found.len(), names.len(), "{model}, {form:?}");
        for (at, datatype) in numbered().filter(|(_, datatype)| form.carries(datatype)) {
            let output = found.iter().find(|output| output.name == framework.output(at));
            let output = output.unwrap_or_else(|| panic!("{model}, {form:?}: no {datatype}"));
            let expected = Tensor { name: framework.output(at), ..inputs[at].clone() };
            assert_eq!(*output, expected, "{model}, {form:?}");
        }
    }
    bench.stop();
}
