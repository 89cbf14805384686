//! Tests of devices on the stand-in: which are used, copies that are waited for, and what works when one breaks.

use super::*;
use crate::simulated::{Simulated, Spec};

fn host(spec: Spec, settings: &Settings) -> (Arc<Simulated>, Arc<Gpus>) {
    let simulated = Arc::new(Simulated::new(spec));
    let gpus = Gpus::with(simulated.clone(), settings);
    (simulated, gpus)
}

fn assert_correct(simulated: &Simulated) {
    assert_eq!(simulated.violations(), Vec::<String>::new());
}

#[test]
fn devices_below_the_least_capability_are_left_alone() {
    for (least, expected) in [(0.0, 3), (7.5, 3), (7.51, 0), (8.0, 0)] {
        let settings = Settings { min_compute_capability: least, ..Settings::default() };
        let (_, gpus) = host(Spec { capability: (7, 5), ..Spec::prompt(3, 1) }, &settings);
        assert_eq!((gpus.ids().len(), gpus.is_supported()), (expected, true), "{least}");
        assert_eq!((gpus.get(2).is_some(), gpus.get(3).is_none(), gpus.get(-1).is_none()), (expected == 3, true, true));
    }
    let none = Gpus::default();
    assert_eq!((none.is_supported(), none.ids().len(), none.failure()), (false, 0, None));
    assert!(none.pinned().take(1).is_none());
}

#[test]
fn tensors_go_in_out_and_across() {
    for (seed, has_peers) in [(1, true), (2, false), (3, true)] {
        let spec = Spec { has_peers, delay_us_max: 30, ..Spec::prompt(2, seed) };
        let (simulated, gpus) = host(spec, &Settings::default());
        let (one, two) = (gpus.get(0).unwrap(), gpus.get(1).unwrap());
        let bytes: Vec<u8> = (0..70_000u32).map(|number| number as u8).collect();
        let here = one.put(&bytes).unwrap();
        let there = two.copy_here(&here).unwrap();
        assert!(there.gpu().is_same(two) && !there.same_memory(&here));
        let mut back = vec![0; 100];
        two.fetch(&there.window(500..600), &mut back).unwrap();
        assert_eq!(back, bytes[500..600]);

        let owner = two.put(&[0; 64]).unwrap();
        // SAFETY: the memory is the owner's alone.
        let target = unsafe { DeviceTarget::foreign(two.clone(), owner.address(), 64, Arc::new(owner.clone())) };
        two.copy_to(&target, &here.window(10..40)).unwrap();
        two.put_at(&target.part(30, 34), &[9; 34]).unwrap();
        two.put_at(&target.part(64, 5), &[]).unwrap();
        let mut all = vec![0; 64];
        two.fetch(&target.freeze(), &mut all).unwrap();
        assert_eq!((&all[..30], &all[30..]), (&bytes[10..40], &[9; 34][..]));

        let empty = one.put(&[]).unwrap();
        assert!(empty.is_empty() && two.copy_here(&empty).unwrap().is_empty());
        one.fetch(&empty, &mut []).unwrap();
        drop((here, there, owner, empty));
        assert_correct(&simulated);
    }
}

#[test]
fn threads_may_use_a_device_at_the_same_time() {
    let (simulated, gpus) = host(Spec { delay_us_max: 10, ..Spec::prompt(1, 4) }, &Settings::default());
    let gpu = gpus.get(0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for turn in 0..30u8 {
                    let bytes = vec![thread ^ turn; 1 + 1000 * usize::from(turn)];
                    let slice = gpu.put(&bytes).unwrap();
                    let mut back = vec![0; bytes.len()];
                    gpu.fetch(&slice, &mut back).unwrap();
                    assert_eq!(back, bytes);
                }
            });
        }
    });
    assert_eq!(gpu.pool_usage().0, 0);
    assert_correct(&simulated);
}

#[test]
fn a_copy_does_not_wait_for_another_clients() {
    let (simulated, gpus) = host(Spec::prompt(1, 4), &Settings::default());
    let gpu = gpus.get(0).unwrap();
    let slice = gpu.put(&[5; 10]).unwrap();
    let streams = simulated.counts().streams;
    let hold = simulated.hold();
    std::thread::scope(|scope| {
        let copies = [(); 2].map(|()| scope.spawn(|| gpu.fetch(&slice, &mut [0; 10])));
        // Both are enqueued while neither can be complete.
        while simulated.counts().copies_out < 2 {
            std::thread::yield_now();
        }
        drop(hold);
        copies.into_iter().for_each(|copy| copy.join().unwrap().unwrap());
    });
    for _ in 0..10 {
        gpu.fetch(&slice, &mut [0; 10]).unwrap();
    }
    assert_eq!(simulated.counts().streams, streams + 1, "idle streams are used again");
    assert_correct(&simulated);
}

#[test]
fn a_tensor_keeps_its_memory_until_its_last_window_goes() {
    let (simulated, gpus) = host(Spec::prompt(1, 1), &Settings::default());
    let gpu = gpus.get(0).unwrap();
    let slice = gpu.put(&[5; 1000]).unwrap();
    let window = slice.window(100..200);
    assert_eq!((window.len(), window.address()), (100, slice.address().offset(100)));
    assert!(slice.owner::<DeviceBuffer>().is_some_and(|buffer| buffer.len() == 1000));
    drop(slice);
    assert_eq!(gpu.pool_usage().0, 1024);
    let mut back = [0; 100];
    gpu.fetch(&window, &mut back).unwrap();
    assert_eq!(back, [5; 100]);
    drop(window);
    assert_eq!(gpu.pool_usage().0, 0);
    assert_correct(&simulated);
}

#[test]
fn a_broken_device_is_named_and_the_others_work() {
    let (simulated, gpus) = host(Spec::prompt(2, 1), &Settings::default());
    let (one, two) = (gpus.get(0).unwrap(), gpus.get(1).unwrap());
    let slice = two.put(&[1; 10]).unwrap();
    assert!(matches!(two.allocate(usize::MAX), Err(error) if error.code == DriverError::OUT_OF_MEMORY));
    assert_eq!(gpus.failure(), None, "memory that is full breaks nothing");
    // SAFETY: the driver refuses it.
    unsafe { simulated.free(1, DeviceAddress(64)).unwrap_err() };
    assert_eq!(two.failure(), None, "no call has failed yet");
    let error = two.fetch(&slice, &mut [0; 10]).unwrap_err();
    let text = "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered";
    assert!(error.to_string().ends_with(text), "{error}");
    assert_eq!((one.failure(), two.failure().map(str::to_owned)), (None, Some(error.to_string())));
    assert_eq!(gpus.failure(), Some(format!("GPU 1: {error}")));
    assert!(two.put(&[1]).is_err());
    let other = one.put(&[7; 10]).unwrap();
    let mut back = [0; 10];
    one.fetch(&other, &mut back).unwrap();
    assert_eq!(back, [7; 10]);
}

#[test]
fn pinned_memory_is_one_pool() {
    let settings = Settings { pinned_pool_bytes: 10_000, ..Settings::default() };
    let (simulated, gpus) = host(Spec::prompt(1, 1), &settings);
    let pinned = gpus.pinned();
    assert_eq!(pinned.usage(), (0, 10_000));
    let mut one = pinned.take(1000).unwrap();
    let two = pinned.take(8000).unwrap();
    assert_eq!(pinned.usage().0, 1024 + 8192);
    assert!(pinned.take(1000).is_none(), "there is no more");
    one.fill(3);
    assert!(pinned.holds(&one) && pinned.holds(&two[7999..]) && !pinned.holds(&[0; 10]));
    let slice = one.freeze();
    let part = slice.window(10..20);
    drop((slice, two));
    assert_eq!((pinned.usage().0, &*part), (1024, &[3; 10][..]));
    assert!(pinned.holds(&part));
    drop(part);
    assert_eq!(pinned.usage().0, 0);
    let pool = pinned.clone();
    let last = pool.take(9000).unwrap();
    drop((gpus, pool));
    assert_eq!(last.len(), 9000);
    drop(last);
    assert_correct(&simulated);

    let (_, gpus) = host(Spec::prompt(1, 1), &Settings { pinned_pool_bytes: 0, ..Settings::default() });
    assert_eq!((gpus.pinned().take(1).is_none(), gpus.pinned().usage()), (true, (0, 0)));
}
