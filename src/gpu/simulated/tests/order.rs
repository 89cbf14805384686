//! Tests of streams, events, time, full memory and faults.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::super::{Counts, POISON};
use super::*;

#[test]
fn what_is_in_a_stream_happens_in_order() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let at = rig.memory();
        rig.copy_in(rig.one, at, &[1; LEN]).unwrap();
        rig.add(rig.one, at, 5).unwrap();
        rig.fill(rig.one, at.offset(LEN), 0).expect_err("beyond the end");
        let rig = Rig::new(seed);
        let (at, other) = (rig.memory(), rig.memory());
        rig.copy_in(rig.one, at, &[1; LEN]).unwrap();
        rig.add(rig.one, at, 5).unwrap();
        rig.copy(rig.one, other, at, LEN).unwrap();
        rig.fill(rig.one, at, 9).unwrap();
        rig.add(rig.one, other, 1).unwrap();
        assert_eq!((rig.read(other), rig.read(at)), (vec![7; LEN], vec![9; LEN]));
        rig.assert_correct();
        let expected =
            Counts { copies_in: 1, copies_out: 2, copies_across: 1, fills: 1, kernels: 2, graphs: 0, streams: 2 };
        assert_eq!(rig.driver.counts(), expected);
    }
}

/// Records its number as the next of its seed.
static NOTE: Program = Program { name: "note", ptx: "", on_host: note };

/// By seed: how many have run, and which.
static RUNS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

unsafe fn note(arguments: &[Argument]) {
    let &[Argument::U32(seed), Argument::U32(number)] = arguments else { return };
    // Six operations, two bits each: which stream it was of.
    let run = &RUNS[seed as usize];
    run.store(run.load(Ordering::SeqCst) << 2 | number, Ordering::SeqCst);
}

#[test]
fn unordered_streams_interleave_by_the_seed() {
    let order_of = |seed: u32| {
        let rig = Rig::new(seed.into());
        let kernel = rig.driver.load(0, &NOTE).unwrap();
        RUNS[seed as usize].store(0, Ordering::SeqCst);
        let hold = rig.driver.hold();
        for _ in 0..3 {
            for (stream, number) in [(rig.one, 1), (rig.two, 2)] {
                let arguments = [Argument::U32(seed), Argument::U32(number)];
                // SAFETY: the kernel takes two numbers.
                unsafe { rig.driver.launch(0, stream, kernel, Extent { blocks: 1, threads: 1 }, &arguments, &[]) }
                    .unwrap();
            }
        }
        drop(hold);
        rig.finish(rig.one).unwrap();
        rig.finish(rig.two).unwrap();
        rig.assert_correct();
        RUNS[seed as usize].load(Ordering::SeqCst)
    };
    let orders: Vec<u32> = (0..64).map(order_of).collect();
    let again: Vec<u32> = (0..64).map(order_of).collect();
    assert_eq!(orders, again, "a seed is an order");
    let different: BTreeSet<u32> = orders.iter().copied().collect();
    // Of the twenty ways in which three and three can mix.
    assert!(different.len() >= 12, "{} orders", different.len());
    for order in different {
        let streams: Vec<u32> = (0..6).map(|place| order >> (2 * place) & 3).collect();
        assert_eq!(streams.iter().filter(|stream| **stream == 1).count(), 3, "{streams:?}");
    }
}

#[test]
fn events_order_streams_and_devices() {
    for seed in 0..20 {
        let rig = Rig::of(Spec { delay_us_max: 30, ..Spec::prompt(2, seed) });
        let (at, far) = (rig.memory(), rig.driver.allocate(1, LEN).unwrap());
        let other = rig.driver.create_stream(1).unwrap();
        let there = rig.driver.create_event(1, EventOptions::default()).unwrap();
        rig.copy_in(rig.one, at, &[3; LEN]).unwrap();
        rig.order(rig.one, rig.two).unwrap();
        rig.add(rig.two, at, 1).unwrap();
        rig.driver.record(0, rig.event, rig.two).unwrap();
        rig.driver.wait(1, other, rig.event).unwrap();
        // SAFETY: all of it is kept until the end.
        unsafe {
            rig.driver.copy_across(1, other, (1, far), (0, at), LEN).unwrap();
            rig.driver.record(1, there, other).unwrap();
            rig.driver.wait(0, rig.one, there).unwrap();
            rig.fill(rig.one, at, 0).unwrap();
            let mut bytes = vec![0; LEN];
            rig.driver.copy_out(1, other, bytes.as_mut_ptr(), far, LEN).unwrap();
            rig.driver.record(1, there, other).unwrap();
            rig.driver.synchronize(1, there).unwrap();
            assert_eq!(bytes, [4; LEN]);
        }
        assert_eq!(rig.read(at), [0; LEN]);
        rig.assert_correct();
    }
}

#[test]
fn what_is_not_complete_reads_as_poison() {
    let rig = Rig::new(1);
    let (at, mut bytes) = (rig.memory(), vec![0; LEN]);
    assert_eq!(rig.read(at), [POISON; LEN], "memory that was not written");
    rig.copy_in(rig.one, at, &[1; LEN]).unwrap();
    rig.finish(rig.one).unwrap();
    let hold = rig.driver.hold();
    rig.copy_out(rig.one, &mut bytes, at).unwrap();
    assert_eq!(bytes, [POISON; LEN], "a destination of the host");
    rig.driver.record(0, rig.event, rig.one).unwrap();
    assert_eq!(rig.driver.query(0, rig.event), Ok(false));
    drop(hold);
    rig.driver.synchronize(0, rig.event).unwrap();
    assert_eq!((rig.driver.query(0, rig.event), bytes), (Ok(true), vec![1; LEN]));

    let pinned = rig.driver.allocate_pinned(LEN).unwrap();
    // SAFETY: it was just allocated, and belongs to this test.
    let pinned = unsafe { std::slice::from_raw_parts_mut(pinned, LEN) };
    assert_eq!(pinned, [POISON; LEN], "pinned memory that was not written");
    // SAFETY: the range was allocated above; host_view is not used since work is under way.
    let on_device = unsafe { std::slice::from_raw_parts(super::super::memory::pointer(at.0), LEN) };
    let hold = rig.driver.hold();
    rig.fill(rig.one, at, 7).unwrap();
    assert_eq!(on_device, [POISON; LEN], "nothing needs what was there");
    drop(hold);
    rig.finish(rig.one).unwrap();
    let hold = rig.driver.hold();
    rig.copy_out(rig.one, pinned, at).unwrap();
    rig.fill(rig.one, at, 8).unwrap();
    assert_eq!(on_device, [7; LEN], "the copy out still needs it");
    drop(hold);
    rig.finish(rig.one).unwrap();
    assert_eq!((&*pinned, on_device), (&[7; LEN][..], &[8; LEN][..]));
    rig.assert_correct();
}

#[test]
fn events_take_the_time_if_they_are_timed() {
    let rig = Rig::new(1);
    let timed = EventOptions { sleeps: true, is_timed: true };
    let (from, to) = (rig.driver.create_event(0, timed).unwrap(), rig.driver.create_event(0, timed).unwrap());
    assert_eq!(rig.driver.query(0, from), Ok(true), "an event of nothing is complete");
    assert_eq!(rig.driver.elapsed(0, from, to).unwrap_err().code, 400);
    let hold = rig.driver.hold();
    rig.driver.record(0, from, rig.one).unwrap();
    rig.driver.record(0, to, rig.one).unwrap();
    rig.driver.record(0, rig.event, rig.one).unwrap();
    assert_eq!(rig.driver.elapsed(0, from, to).unwrap_err().code, 600);
    drop(hold);
    rig.driver.synchronize(0, rig.event).unwrap();
    let elapsed = rig.driver.elapsed(0, from, to).unwrap();
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
    assert_eq!(rig.driver.elapsed(0, to, from), Ok(Duration::ZERO));
    assert_eq!(rig.driver.elapsed(0, from, rig.event).unwrap_err().code, 400, "that one takes no time");
    rig.assert_correct();
}

#[test]
fn memory_ends() {
    let rig = Rig::of(Spec { memory_bytes: 10 * 4096, ..Spec::prompt(1, 1) });
    assert_eq!(rig.driver.memory(0), Ok((40_960, 40_960)));
    let at = rig.driver.allocate(0, 4097).unwrap();
    assert_eq!(rig.driver.memory(0), Ok((32_768, 40_960)), "whole pages");
    assert_eq!(rig.driver.allocate(0, 32_769).unwrap_err().code, 2);
    assert_eq!(rig.driver.allocate(0, usize::MAX).unwrap_err().code, 2);
    assert_eq!(rig.driver.allocate(0, 0).unwrap_err().code, 1);
    let rest = rig.driver.allocate(0, 32_768).unwrap();
    // SAFETY: nothing uses either.
    unsafe { rig.driver.free(0, at).unwrap() };
    assert_eq!(rig.driver.memory(0), Ok((8192, 40_960)));
    assert_eq!(rig.driver.allocation_of(0, rest.offset(32_767)), Ok((rest, 32_768)));
    assert_eq!(rig.driver.allocation_of(0, rest.offset(32_768)).unwrap_err().code, 1);
    rig.assert_correct();
}

#[test]
fn a_launch_that_is_set_to_fail_breaks_the_device_when_it_runs() {
    let rig = Rig::new(1);
    let at = rig.memory();
    rig.driver.fail_after(2, 719);
    rig.fill(rig.one, at, 1).unwrap();
    rig.add(rig.one, at, 1).unwrap();
    rig.finish(rig.one).unwrap();
    let hold = rig.driver.hold();
    rig.add(rig.one, at, 1).expect("the call itself succeeds");
    rig.driver.record(0, rig.event, rig.one).unwrap();
    assert_eq!(rig.driver.query(0, rig.event), Ok(false));
    drop(hold);
    let failure = rig.driver.synchronize(0, rig.event).unwrap_err();
    let expected = "cuEventSynchronize failed: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure";
    assert_eq!((failure.to_string().as_str(), failure.is_sticky()), (expected, true));
    for code in [
        rig.driver.allocate(0, 1).unwrap_err().code,
        rig.fill(rig.two, at, 1).unwrap_err().code,
        rig.driver.create_stream(0).unwrap_err().code,
        rig.driver.memory(0).unwrap_err().code,
        rig.driver.enter(0).unwrap_err().code,
        rig.driver.query(0, rig.event).unwrap_err().code,
    ] {
        assert_eq!(code, 719, "every later call fails");
    }
    assert!(rig.driver.memory(1).is_ok(), "the other device works");
    rig.assert_correct();

    let rig = Rig::new(1);
    let at = rig.memory();
    rig.driver.fail_after(1, 701);
    rig.fill(rig.one, at, 1).unwrap();
    assert_eq!(rig.add(rig.one, at, 1).unwrap_err().code, 701, "nothing is lost: the call fails");
    rig.add(rig.one, at, 1).unwrap();
    assert_eq!(rig.read(at), [2; LEN]);
}

#[test]
fn a_kernel_that_panics_breaks_its_device_only() {
    let rig = Rig::new(1);
    let kernel = rig.driver.load(0, &PANIC).unwrap();
    // SAFETY: it takes nothing.
    unsafe { rig.driver.launch(0, rig.one, kernel, Extent { blocks: 1, threads: 1 }, &[], &[]) }.unwrap();
    assert_eq!(rig.finish(rig.one).unwrap_err().code, 719);
    assert_eq!(rig.driver.violations(), ["cuLaunchKernel: panic panicked"]);
    assert!(rig.driver.memory(1).is_ok());
}

#[test]
fn a_device_is_described() {
    let spec = Spec { capability: (9, 0), numa_nodes: vec![3], has_peers: false, ..Spec::prompt(2, 1) };
    let driver = Simulated::new(spec);
    let described = driver.describe(1).unwrap();
    assert_eq!(described.name, "Simulated GPU");
    assert_eq!(described.uuid, "GPU-5ee1ed00-0000-0000-0000-000000000001");
    assert_eq!((described.compute_capability, described.memory_bytes), ((9, 0), 1 << 30));
    assert_eq!((described.pci_address.as_str(), described.numa_node), ("0000:02:00.0", Some(3)));
    assert_eq!((driver.describe(2).unwrap_err().code, driver.enter(2).unwrap_err().code), (101, 101));
    assert_eq!((driver.enable_peer_access(0, 1), driver.device_count()), (Ok(false), 2));
}
