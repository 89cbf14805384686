//! The threads of libraries: as many as there are cores for workers, unless a model asks for others.

use super::bench::{Bench, repository_of};
use super::table::{Framework, ModelKind, ONNXRUNTIME, SAVEDMODEL};
use super::tensors::Form;
use nereid_test_support::variant::is_second_run;

/// Libraries that start their threads with the first model, and the parameters that set how many.
const COUNTED: [(&Framework, &[&str]); 2] =
    [(&ONNXRUNTIME, &["intra_op_thread_count"]), (&SAVEDMODEL, &["TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"])];

/// The threads of a server with one model that has these parameters, once it has executed.
fn threads_with(framework: &Framework, keys: &[&str], count: Option<usize>) -> Option<usize> {
    let parameter =
        |count: usize, key: &&str| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{count}\" }} }}\n");
    let parameters: String =
        count.map(|count| keys.iter().map(|key| parameter(count, key)).collect()).unwrap_or_default();
    let repository = repository_of(framework, &[ModelKind::Network], &parameters)?;
    let mut bench = Bench::start(&[framework], &repository, &["--io-cores=1"])?;
    bench.check_rows(framework, Form::Binary, &framework.model(ModelKind::Network), 8, 1);
    let threads = bench.server.threads();
    bench.stop();
    Some(threads)
}

#[test]
fn a_library_has_as_many_threads_as_there_are_cores_for_workers() {
    if is_second_run() {
        return;
    }
    let cores = std::thread::available_parallelism().expect("the number of cores").get();
    // One core is for I/O, if there is another one.
    let workers = cores.saturating_sub(1).max(1);
    for (framework, keys) in COUNTED {
        let Some(usual) = threads_with(framework, keys, None) else { continue };
        let Some(same) = threads_with(framework, keys, Some(workers)) else { continue };
        let Some(more) = threads_with(framework, keys, Some(workers + 2)) else { continue };
        assert_eq!(usual, same, "{}: {workers} cores for workers", framework.name);
        assert!(more > usual, "{}: threads are counted", framework.name);
    }
}
