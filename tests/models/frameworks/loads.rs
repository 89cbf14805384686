//! A model that is loaded and unloaded again and again.

use super::bench::{Bench, EXPLICIT, repository_of};
use super::table::{Framework, ModelKind};
use super::tensors::Form;
use nereid_test_support::variant::is_second_run;

/// Until pools, arenas and threads of a library have their sizes.
const WARM_UP: usize = 10;
const LOADS: usize = 100;

pub fn a_hundred_loads_leave_nothing_behind(framework: &Framework) {
    if is_second_run() {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::Network], "") else { return };
    let model = framework.model(ModelKind::Network);
    let Some(mut bench) = Bench::start(&[framework], &repository, &[EXPLICIT]) else { return };
    let load = |bench: &mut Bench, at: usize| {
        bench.must_load(&model);
        bench.check_rows(framework, Form::Binary, &model, 1 + at % 4, at);
        bench.unload(&model);
    };
    (0..WARM_UP).for_each(|at| load(&mut bench, at));
    let sizes = |bench: &Bench| (bench.server.resident_kib(), bench.server.threads(), bench.server.descriptors());
    let before = sizes(&bench);
    (0..LOADS).for_each(|at| load(&mut bench, at));
    let after = sizes(&bench);
    let growth_kib = after.0.saturating_sub(before.0);
    println!("{}: {LOADS} loads took {growth_kib} KiB; before {before:?}, after {after:?}", framework.name);
    assert!(growth_kib <= framework.growth_kib_max, "{growth_kib} KiB: before {before:?}, after {after:?}");
    // Other threads of the server come and go; one of each load would stay.
    assert!(after.1 < before.1 + LOADS / 2, "threads: before {before:?}, after {after:?}");
    assert!(after.2 < before.2 + LOADS / 2, "descriptors: before {before:?}, after {after:?}");
    bench.stop();
}
