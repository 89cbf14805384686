//! Tests of violations: each kind is found, and the nearest correct program is none.

use super::*;

#[test]
fn accesses_that_nothing_orders() {
    type Do = fn(&Rig, StreamHandle, DeviceAddress, &mut [u8]) -> Result<()>;
    let write: Do = |rig, stream, at, _| rig.fill(stream, at, 1);
    let read: Do = |rig, stream, at, host| rig.copy_out(stream, host, at);
    let change: Do = |rig, stream, at, _| rig.add(stream, at, 1);
    let cases: [(Do, Do, Option<&str>); 6] = [
        (write, write, Some("a fill writes 1000 bytes at")),
        (write, read, Some("a copy out reads 1000 bytes at")),
        (read, write, Some("that a copy out reads, and no stream, event or wait orders the two")),
        (change, read, Some("that add writes, and no stream, event or wait orders the two")),
        (read, change, Some("add writes")),
        (read, read, None),
    ];
    for (number, (first, second, expected)) in cases.into_iter().enumerate() {
        for is_ordered in [false, true] {
            // Before the rig, so that they outlive it: no call waits for work that a refused step leaves under way.
            let (mut one, mut two) = (vec![0; LEN], vec![0; LEN]);
            let rig = Rig::new(7);
            let at = rig.memory();
            first(&rig, rig.one, at, &mut one).unwrap();
            if is_ordered {
                rig.order(rig.one, rig.two).unwrap();
            } else {
                // It may be complete by now, but the host has not queried it.
                rig.driver.record(0, rig.event, rig.one).unwrap();
            }
            let done = second(&rig, rig.two, at, &mut two);
            match expected.filter(|_| !is_ordered) {
                None => {
                    done.unwrap();
                    rig.finish(rig.two).unwrap();
                    rig.assert_correct();
                }
                Some(expected) => {
                    assert_eq!(done.unwrap_err().code, 700);
                    assert!(rig.violation().contains(expected), "case {number}: {}", rig.violation());
                }
            }
        }
    }
}

#[test]
fn work_after_a_seen_event_comes_after_it() {
    let rig = Rig::new(1);
    let at = rig.memory();
    rig.fill(rig.one, at, 1).unwrap();
    rig.driver.record(0, rig.event, rig.one).unwrap();
    while !rig.driver.query(0, rig.event).unwrap() {
        std::thread::yield_now();
    }
    rig.fill(rig.two, at, 2).expect("the host has seen it complete");
    rig.driver.wait(0, rig.one, rig.event).unwrap();
    rig.fill(rig.one, at, 3).expect_err("the host has not seen the second fill complete");
    assert!(rig.violation().starts_with("cuMemsetD8Async: a fill writes"));
}

#[test]
fn an_event_stands_for_what_was_there_when_it_was_recorded() {
    let rig = Rig::new(1);
    let at = rig.memory();
    rig.driver.record(0, rig.event, rig.one).unwrap();
    rig.fill(rig.one, at, 1).unwrap();
    rig.driver.wait(0, rig.two, rig.event).unwrap();
    rig.fill(rig.two, at, 2).expect_err("the event is older than the fill");
    rig.violation();
}

#[test]
fn memory_of_the_host_is_checked_too() {
    let mut bytes = vec![1; LEN];
    let rig = Rig::new(1);
    let (at, other) = (rig.memory(), rig.memory());
    rig.copy_in(rig.one, at, &bytes).unwrap();
    rig.copy_in(rig.two, other, &bytes).expect("two read");
    rig.copy_out(rig.two, &mut bytes, other).expect_err("the first copy may still read");
    assert!(rig.violation().contains("a copy out writes 1000 bytes"), "{}", rig.violation());
}

#[test]
fn memory_that_is_not_there() {
    type Do = fn(&Rig, DeviceAddress) -> Result<()>;
    let cases: [(&str, Do); 9] = [
        ("uses memory that is freed", |rig, at| {
            // SAFETY: nothing uses it.
            unsafe { rig.driver.free(0, at)? };
            rig.fill(rig.one, at, 1)
        }),
        ("uses memory that was never allocated", |rig, _| rig.fill(rig.one, DeviceAddress(64), 1)),
        ("leaves the 1000 bytes at", |rig, at| rig.fill(rig.one, at.offset(1), 1)),
        ("leaves the 1000 bytes at", |rig, at| {
            let before = DeviceAddress(at.0 - 1);
            rig.copy(rig.one, before, at, LEN)
        }),
        ("add gets", |rig, at| {
            let kernel = rig.driver.load(0, &ADD)?;
            let arguments = [Argument::Address(at), Argument::U64(LEN as u64), Argument::U32(1)];
            // SAFETY: the driver refuses it.
            unsafe { rig.driver.launch(0, rig.one, kernel, Extent { blocks: 1, threads: 1 }, &arguments, &[]) }
        }),
        ("takes memory of a device for the host's", |rig, at| {
            let from = super::super::memory::pointer(at.0);
            // SAFETY: the driver refuses it.
            unsafe { rig.driver.copy_in(0, rig.one, rig.memory(), from, 10) }
        }),
        ("runs over the edge of pinned memory", |rig, at| {
            let pinned = rig.driver.allocate_pinned(10)?;
            // SAFETY: the driver refuses it.
            unsafe { rig.driver.copy_in(0, rig.one, at, pinned, 11) }
        }),
        ("uses pinned memory that is freed", |rig, at| {
            let pinned = rig.driver.allocate_pinned(10)?;
            // SAFETY: nothing uses it, and the driver refuses the rest.
            unsafe {
                rig.driver.free_pinned(pinned)?;
                rig.driver.copy_in(0, rig.one, at, pinned, 10)
            }
        }),
        ("from or to no memory at all", |rig, at| {
            // SAFETY: the driver refuses it.
            unsafe { rig.driver.copy_out(0, rig.one, std::ptr::null_mut(), at, 1) }
        }),
    ];
    for (expected, case) in cases {
        let rig = Rig::new(1);
        assert_eq!(case(&rig, rig.memory()).unwrap_err().code, 700, "{expected}");
        assert!(rig.violation().contains(expected), "{expected}: {}", rig.violation());
    }
}

#[test]
fn memory_of_other_devices() {
    type Do = fn(&Rig, DeviceAddress, DeviceAddress) -> Result<()>;
    let fill: Do = |rig, _, far| rig.fill(rig.one, far, 1);
    // SAFETY: both live as long as the driver, which refuses one of the two.
    let copy: Do = |rig, near, far| unsafe { rig.driver.copy_across(0, rig.one, (0, near), (1, far), LEN) };
    let mistaken: Do = |rig, near, far| rig.copy(rig.one, near, far, LEN);
    for (case, reaches, expected) in [
        (fill, false, Some("touches memory of device 1, which device 0 does not reach")),
        (fill, true, None),
        (copy, false, None),
        (mistaken, true, Some("takes memory of another device for that of device 0")),
    ] {
        let rig = Rig::new(1);
        let (near, far) = (rig.memory(), rig.driver.allocate(1, LEN).unwrap());
        if reaches {
            assert_eq!(rig.driver.enable_peer_access(0, 1), Ok(true));
        }
        let done = case(&rig, near, far);
        match expected {
            None => {
                done.unwrap();
                rig.finish(rig.one).unwrap();
                rig.assert_correct();
            }
            Some(expected) => assert!(done.is_err() && rig.violation().contains(expected), "{}", rig.violation()),
        }
    }
}

#[test]
fn memory_goes_only_when_its_users_are_seen_complete() {
    for is_seen in [false, true] {
        let bytes = vec![0; LEN];
        let rig = Rig::new(1);
        let at = rig.memory();
        rig.copy_in(rig.one, at, &bytes).unwrap();
        if is_seen {
            rig.finish(rig.one).unwrap();
        } else {
            rig.driver.record(0, rig.event, rig.one).unwrap();
        }
        // SAFETY: the driver refuses it where something uses it.
        let freed = unsafe { rig.driver.free(0, at) };
        assert_eq!(freed.is_ok(), is_seen);
        if is_seen {
            rig.assert_correct();
        } else {
            assert!(rig.violation().ends_with("the memory goes, and the host has not seen a copy in on it complete"));
        }
    }
    let rig = Rig::new(1);
    let pinned = rig.driver.allocate_pinned(LEN).unwrap();
    // SAFETY: the driver refuses what is wrong.
    unsafe {
        rig.driver.copy_in(0, rig.one, rig.memory(), pinned, LEN).unwrap();
        assert!(rig.driver.free_pinned(pinned).is_err());
    }
    assert!(rig.violation().starts_with("cuMemFreeHost: the memory goes"));
}

#[test]
fn memory_is_freed_once_and_as_it_was_allocated() {
    type Do = fn(&Rig, DeviceAddress) -> Result<()>;
    // SAFETY: nothing uses any of it, and the driver refuses what is wrong.
    let cases: [Do; 5] = unsafe {
        [
            |rig, at| rig.driver.free(0, at).and_then(|()| rig.driver.free(0, at)),
            |rig, at| rig.driver.free(0, at.offset(1)),
            |rig, at| rig.driver.free_pinned(super::super::memory::pointer(at.0)),
            |rig, at| rig.driver.ipc_close(0, at),
            |rig, _| rig.driver.free(0, DeviceAddress(rig.driver.allocate_pinned(1)?.expose_provenance() as u64)),
        ]
    };
    for case in cases {
        let rig = Rig::new(1);
        assert_eq!(case(&rig, rig.memory()).unwrap_err().code, 700);
        assert!(rig.violation().contains("memory that is"), "{}", rig.violation());
    }
}

#[test]
fn handles_that_are_gone() {
    type Do = fn(&Rig);
    let cases: [(&str, Do); 7] = [
        ("cuEventRecord: an event that is destroyed, or another device's, or none", |rig| {
            // SAFETY: the driver finds the use afterwards.
            unsafe { rig.driver.destroy_event(0, rig.event) };
            rig.driver.record(0, rig.event, rig.one).unwrap_err();
        }),
        ("cuStreamWaitEvent: an event that is destroyed, or none", |rig| {
            // SAFETY: the driver finds the use afterwards.
            unsafe { rig.driver.destroy_event(0, rig.event) };
            rig.driver.wait(0, rig.one, rig.event).unwrap_err();
        }),
        ("cuEventQuery: an event that is destroyed, or another device's, or none", |rig| {
            rig.driver.query(0, EventHandle(12_345)).unwrap_err();
        }),
        ("cuEventDestroy: an event that is destroyed, or another device's, or none", |rig| {
            // SAFETY: the driver finds the use afterwards.
            unsafe { (0..2).for_each(|_| rig.driver.destroy_event(0, rig.event)) };
        }),
        ("cuMemsetD8Async: a stream that is destroyed, or another device's, or none", |rig| {
            // SAFETY: the driver finds the use afterwards.
            unsafe { rig.driver.destroy_stream(0, rig.one) };
            rig.fill(rig.one, rig.memory(), 0).unwrap_err();
        }),
        ("cuLaunchKernel: a kernel of another device, or none", |rig| {
            let kernel = rig.driver.load(1, &ADD).unwrap();
            // SAFETY: the driver finds the use afterwards.
            unsafe { rig.driver.launch(0, rig.one, kernel, Extent { blocks: 1, threads: 1 }, &[], &[]).unwrap_err() };
        }),
        ("cuStreamDestroy: a stream that is destroyed, or another device's, or none", |rig| {
            // SAFETY: the driver finds the use afterwards.
            unsafe { (0..2).for_each(|_| rig.driver.destroy_stream(0, rig.two)) };
        }),
    ];
    for (expected, case) in cases {
        let rig = Rig::new(1);
        case(&rig);
        assert_eq!(rig.violation(), expected);
    }
}

#[test]
fn a_destroyed_stream_runs_to_its_end_and_is_dropped() {
    let rig = Rig::of(Spec { delay_us_max: 100, ..Spec::prompt(1, 1) });
    let at = rig.memory();
    let started = rig.driver.shared.lock().streams.len();
    for value in 0..100 {
        let stream = rig.driver.create_stream(0).unwrap();
        rig.driver.wait(0, stream, rig.event).unwrap();
        rig.fill(stream, at, value).unwrap();
        rig.driver.record(0, rig.event, stream).unwrap();
        // SAFETY: it is not used afterwards.
        unsafe { rig.driver.destroy_stream(0, stream) };
    }
    rig.driver.synchronize(0, rig.event).unwrap();
    assert_eq!(rig.read(at), [99; LEN]);
    rig.assert_correct();
    assert_eq!(rig.driver.shared.lock().streams.len(), started);
}

#[test]
fn the_host_reads_a_device_only_when_all_is_complete() {
    let rig = Rig::new(1);
    let at = rig.memory();
    assert!(rig.driver.host_view(DeviceAddress(64), 1).is_none());
    rig.fill(rig.one, at, 5).unwrap();
    rig.finish(rig.one).unwrap();
    let seen = rig.driver.host_view(at.offset(9), LEN - 9).expect("a view");
    // SAFETY: nothing writes it.
    assert_eq!(unsafe { *seen }, 5);
    rig.assert_correct();
    rig.fill(rig.one, at, 6).unwrap();
    assert!(rig.driver.host_view(at, 1).is_none());
    assert_eq!(rig.violation(), "host_view: the host has not seen a fill on what it uses complete");
}

#[test]
fn a_violation_breaks_the_device_for_all_that_comes() {
    let rig = Rig::of(Spec { delay_us_max: 1_000_000, ..Spec::prompt(1, 1) });
    let at = rig.memory();
    rig.fill(rig.one, at, 1).unwrap();
    rig.driver.record(0, rig.event, rig.one).unwrap();
    rig.fill(rig.two, at, 1).unwrap_err();
    let failure = rig.driver.synchronize(0, rig.event).unwrap_err();
    assert!(failure.is_sticky());
    assert_eq!((failure.code, failure.name.as_str()), (700, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    // What was under way does not keep the driver from closing.
    drop(rig);
}

/// Memory of the host outlives a device that used it.
#[test]
fn pending_work_of_a_broken_device_delays_no_call() {
    let rig = Rig::new(11);
    let at = rig.memory();
    let bytes = rig.driver.allocate_pinned(LEN).unwrap();
    // SAFETY: no other code has them.
    let pinned = || unsafe { std::slice::from_raw_parts_mut(bytes, LEN) };
    rig.fill(rig.one, at, 1).unwrap();
    rig.driver.fail_after(1, 700);
    let hold = rig.driver.hold();
    rig.add(rig.one, at, 1).unwrap();
    rig.copy_out(rig.one, pinned(), at).unwrap();
    drop(hold);
    assert!(rig.finish(rig.one).is_err());
    let (stream, other) = (rig.driver.create_stream(1).unwrap(), rig.driver.allocate(1, LEN).unwrap());
    let event = rig.driver.create_event(1, EventOptions::default()).unwrap();
    // SAFETY: all of it lives until the work is complete.
    unsafe {
        rig.driver.fill(1, stream, other, 9, LEN).unwrap();
        rig.driver.copy_out(1, stream, pinned().as_mut_ptr(), other, LEN).unwrap();
    }
    rig.driver.record(1, event, stream).unwrap();
    rig.driver.synchronize(1, event).unwrap();
    assert_eq!(pinned()[LEN - 1], 9);
    rig.assert_correct();
}
