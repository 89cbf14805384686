//! The threads of libraries: as many as there are cores for workers, unless a model asks for others.

use super::bench::{Bench, repository_of};
use super::table::{Framework, ModelKind, ONNXRUNTIME, SAVEDMODEL};
use super::tensors::Form;
use nereid_test_support::repository::Repository;
use nereid_test_support::variant::is_second_run;

/// Libraries that start their threads with the first model, and the parameters that set how many.
const COUNTED: [(&Framework, &[&str]); 2] =
    [(&ONNXRUNTIME, &["intra_op_thread_count"]), (&SAVEDMODEL, &["TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"])];

/// The cores that this process may use, as the kernel lists them.
fn cores() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of this process");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("its cores");
    let number = |text: &str| text.trim().parse::<usize>().expect("a number");
    let ranges = list.split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    ranges.flat_map(|(first, last)| number(first)..=number(last)).collect()
}

/// A server with one model that has these parameters, once it has executed.
fn serve_with(
    framework: &Framework,
    io_core: usize,
    keys: &[&str],
    count: Option<usize>,
) -> Option<(Repository, Bench)> {
    let parameter =
        |count: usize, key: &&str| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{count}\" }} }}\n");
    let parameters = count.map(|count| keys.iter().map(|key| parameter(count, key)).collect::<String>());
    let repository = repository_of(framework, &[ModelKind::Network], &parameters.unwrap_or_default())?;
    let mut bench = Bench::start(&[framework], &repository, &[&format!("--io-cores={io_core}-{io_core}")])?;
    bench.check_rows(framework, Form::Binary, &framework.model(ModelKind::Network), 8, 1);
    Some((repository, bench))
}

#[test]
fn a_library_has_as_many_threads_as_there_are_cores_for_workers() {
    if is_second_run() {
        return;
    }
    let cores = cores();
    // One core is for I/O, if there is another one.
    let workers = cores.len().saturating_sub(1).max(1);
    for (framework, keys) in COUNTED {
        let serve = |count| serve_with(framework, cores[0], keys, count);
        let Some((_usual, usual)) = serve(None) else { continue };
        let [Some((_same, same)), Some((_more, more))] = [workers, workers + 2].map(|count| serve(Some(count))) else {
            panic!("{}: it ran before", framework.name)
        };
        // Threads of a server that load a model end some time after that.
        usual.server.wait_until(&format!("{} has one for each of {workers} cores", framework.name), || {
            let count = usual.server.threads();
            same.server.threads() == count && more.server.threads() > count
        });
        [usual, same, more].into_iter().for_each(Bench::stop);
    }
}
