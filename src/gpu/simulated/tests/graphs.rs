//! Tests of recordings and their launches.

use super::super::super::driver::GraphHandle;
use super::*;

/// Two streams: a fill, then an addition beside a copy, and both together again.
fn record(rig: &Rig, at: DeviceAddress, other: DeviceAddress, third: DeviceAddress) -> Result<GraphHandle> {
    rig.driver.begin_capture(0, rig.one)?;
    rig.add(rig.one, at, 1)?;
    rig.order(rig.one, rig.two)?;
    rig.copy(rig.two, other, at, LEN)?;
    rig.copy(rig.one, third, at, LEN)?;
    rig.order(rig.two, rig.one)?;
    rig.add(rig.one, other, 10)?;
    rig.driver.end_capture(0, rig.one)
}

#[test]
fn a_graph_repeats_what_was_recorded() {
    for seed in 0..20 {
        let rig = Rig::of(Spec { delay_us_max: 10, ..Spec::prompt(1, seed) });
        let (at, other, third) = (rig.memory(), rig.memory(), rig.memory());
        rig.fill(rig.one, at, 0).unwrap();
        let graph = record(&rig, at, other, third).unwrap();
        rig.finish(rig.one).unwrap();
        assert_eq!(rig.read(at), [0; LEN], "recording is not running");
        for launch in 1..=5u8 {
            // SAFETY: all of it is kept until the end.
            unsafe { rig.driver.launch_graph(0, rig.one, graph).unwrap() };
            rig.add(rig.one, third, 100).unwrap();
            if launch % 2 == 0 {
                rig.finish(rig.one).unwrap();
            }
        }
        assert_eq!((rig.read(at), rig.read(other)), (vec![5; LEN], vec![15; LEN]));
        assert_eq!(rig.read(third), [105; LEN]);
        // SAFETY: no launch is incomplete.
        unsafe { rig.driver.destroy_graph(0, graph) };
        rig.assert_correct();
    }
}

#[test]
fn launches_of_one_graph_come_one_after_the_other_in_any_streams() {
    for seed in 0..20 {
        let rig = Rig::of(Spec { delay_us_max: 10, ..Spec::prompt(1, seed) });
        let (at, other, third) = (rig.memory(), rig.memory(), rig.memory());
        rig.fill(rig.one, at, 0).unwrap();
        rig.order(rig.one, rig.two).unwrap();
        let graph = record(&rig, at, other, third).unwrap();
        for stream in [rig.one, rig.two, rig.one, rig.two] {
            // SAFETY: all of it is kept until the end.
            unsafe { rig.driver.launch_graph(0, stream, graph).unwrap() };
        }
        rig.finish(rig.two).unwrap();
        assert_eq!((rig.read(at), rig.read(other)), (vec![4; LEN], vec![14; LEN]));
        rig.assert_correct();
    }
}

#[test]
fn a_graph_may_be_part_of_another() {
    let rig = Rig::new(1);
    let (at, other, third) = (rig.memory(), rig.memory(), rig.memory());
    let inner = record(&rig, at, other, third).unwrap();
    rig.driver.begin_capture(0, rig.one).unwrap();
    rig.fill(rig.one, at, 40).unwrap();
    // SAFETY: all of it is kept until the end.
    unsafe { rig.driver.launch_graph(0, rig.one, inner).unwrap() };
    rig.add(rig.one, other, 1).unwrap();
    let outer = rig.driver.end_capture(0, rig.one).unwrap();
    // SAFETY: all of it is kept until the end.
    unsafe { rig.driver.launch_graph(0, rig.two, outer).unwrap() };
    rig.finish(rig.two).unwrap();
    assert_eq!((rig.read(at), rig.read(other), rig.read(third)), (vec![41; LEN], vec![52; LEN], vec![41; LEN]));
    rig.assert_correct();
}

#[test]
fn what_may_not_be_done_while_a_graph_is_recorded() {
    type Do = fn(&Rig, DeviceAddress) -> Result<()>;
    let cases: [(&str, Do); 10] = [
        ("cuMemAlloc: not while this thread records a graph", |rig, _| rig.driver.allocate(0, 1).map(|_| ())),
        ("cuMemFree: not while this thread records a graph", |rig, at| {
            // SAFETY: the driver refuses it.
            unsafe { rig.driver.free(0, at) }
        }),
        ("cuEventQuery: not while this thread records a graph", |rig, _| rig.driver.query(0, rig.event).map(|_| ())),
        ("cuStreamBeginCapture: the stream is recorded already", |rig, _| rig.driver.begin_capture(0, rig.one)),
        ("cuStreamEndCapture: no recording began in the stream", |rig, _| {
            rig.driver.end_capture(0, rig.two).map(|_| ())
        }),
        ("cuStreamWaitEvent: a stream that is recorded waits for an event that is not", |rig, _| {
            rig.driver.record(0, rig.event, rig.two)?;
            rig.driver.wait(0, rig.one, rig.event)
        }),
        ("cuStreamEndCapture: a recording ends, and a stream that joined it has not come back", |rig, at| {
            rig.order(rig.one, rig.two)?;
            rig.fill(rig.two, at, 1)?;
            rig.driver.end_capture(0, rig.one).map(|_| ())
        }),
        ("cuMemsetD8Async: a fill that is recorded conflicts with add, and nothing orders the two", |rig, at| {
            rig.order(rig.one, rig.two)?;
            rig.add(rig.one, at, 1)?;
            rig.fill(rig.two, at, 1)
        }),
        ("cuStreamEndCapture: another thread began the recording", |rig, _| {
            std::thread::scope(|scope| {
                scope.spawn(|| rig.driver.end_capture(0, rig.one).map(|_| ())).join().expect("no panic")
            })
        }),
        ("cuStreamDestroy: a stream goes while it is recorded", |rig, at| {
            // SAFETY: the driver finds it.
            unsafe { rig.driver.destroy_stream(0, rig.one) };
            rig.fill(rig.two, at, 0)
        }),
    ];
    for (expected, case) in cases {
        let rig = Rig::new(1);
        let at = rig.memory();
        rig.driver.begin_capture(0, rig.one).unwrap();
        assert_eq!(case(&rig, at).unwrap_err().code, 700, "{expected}");
        assert_eq!(rig.violation(), expected);
    }
}

#[test]
fn an_event_of_a_recording_is_no_event_of_the_host() {
    let rig = Rig::new(1);
    rig.driver.begin_capture(0, rig.one).unwrap();
    rig.driver.record(0, rig.event, rig.one).unwrap();
    rig.driver.end_capture(0, rig.one).unwrap();
    assert_eq!(rig.driver.query(0, rig.event).unwrap_err().code, 700);
    assert_eq!(rig.violation(), "cuEventQuery: an event that was recorded into a graph");
    let rig = Rig::new(1);
    rig.driver.begin_capture(0, rig.one).unwrap();
    rig.driver.record(0, rig.event, rig.one).unwrap();
    rig.driver.end_capture(0, rig.one).unwrap();
    rig.driver.wait(0, rig.two, rig.event).unwrap_err();
    assert_eq!(rig.violation(), "cuStreamWaitEvent: an event of another recording, or of one that is over");
}

#[test]
fn a_launch_is_checked_like_what_it_repeats() {
    for is_freed in [false, true] {
        let rig = Rig::new(1);
        let (at, other, third) = (rig.memory(), rig.memory(), rig.memory());
        let graph = record(&rig, at, other, third).unwrap();
        if is_freed {
            // SAFETY: nothing uses it; the driver finds that something will.
            unsafe { rig.driver.free(0, third).unwrap() };
        } else {
            rig.fill(rig.two, third, 1).unwrap();
        }
        // SAFETY: the driver refuses it.
        let launched = unsafe { rig.driver.launch_graph(0, rig.one, graph) };
        assert_eq!(launched.unwrap_err().code, 700);
        let expected = if is_freed { "memory that is freed" } else { "that a fill writes" };
        assert!(rig.violation().contains(expected), "{}", rig.violation());
    }
    let rig = Rig::new(1);
    let (at, other, third) = (rig.memory(), rig.memory(), rig.memory());
    let graph = record(&rig, at, other, third).unwrap();
    let hold = rig.driver.hold();
    // SAFETY: the driver finds it.
    unsafe {
        rig.driver.launch_graph(0, rig.one, graph).unwrap();
        rig.driver.destroy_graph(0, graph);
    }
    drop(hold);
    assert_eq!(rig.violation(), "cuGraphExecDestroy: a graph goes while it runs");
}
