//! Runs of made-up times.

use super::*;

const LIMIT_NS: u64 = 20_000;
const ONE: Size = Size { requests: 1, bytes: 64 };

/// Judges runs of one time until there is a verdict: how many it takes, at most `most`.
fn until_verdict(judge: &mut Judge, run_ns: u64, most: u32) -> (u32, Option<Verdict>) {
    (1..=most)
        .find_map(|run| judge.judge(run_ns, true, ONE).map(|verdict| (run, Some(verdict))))
        .unwrap_or((most, None))
}

/// Lets runs pass that are not measured.
fn rested(judge: &mut Judge) -> u32 {
    let mut rests = 0;
    while matches!(judge.begin(), Run::Unmeasured) {
        rests += 1;
    }
    rests
}

fn earned() -> Judge {
    let mut judge = Judge::new(LIMIT_NS);
    assert_eq!(until_verdict(&mut judge, 5_000, 1_000), (RUNS_MIN, Some(Verdict::Earned)));
    judge
}

#[test]
fn short_runs_earn_it_and_slow_first_runs_only_delay_it() {
    earned();
    let mut judge = Judge::new(LIMIT_NS);
    for _ in 0..5 {
        assert_eq!(judge.judge(3_000_000, true, ONE), None);
    }
    assert_eq!(until_verdict(&mut judge, 5_000, RUNS_MIN - 5), (RUNS_MIN - 5, None));
    assert_eq!(rested(&mut judge), RUNS_MIN * RESTS);
    let (runs, verdict) = until_verdict(&mut judge, 5_000, 1_000);
    assert_eq!((runs, verdict), (2 * RUNS_MIN, Some(Verdict::Earned)));
}

#[test]
fn one_long_run_does_not_end_it_and_many_do() {
    let mut judge = earned();
    for _ in 0..100 {
        assert_eq!(judge.judge(10 * LIMIT_NS, true, ONE), None, "a tenth of a percent");
        assert_eq!(until_verdict(&mut judge, 5_000, 1_000).1, None);
    }
    let (runs, verdict) = until_verdict(&mut judge, 3 * LIMIT_NS, 1_000);
    assert_eq!(verdict, Some(Verdict::Lost));
    assert!((10..100).contains(&runs), "{runs}");
    assert!(!judge.admits(1), "sizes are learned again");
    assert_eq!(judge.judge(1_000 * LIMIT_NS, true, ONE), None);
    assert_eq!(earned().judge(1_000 * LIMIT_NS, true, ONE), Some(Verdict::Lost), "one that is far too long");
}

#[test]
fn what_only_looks_long_is_measured_closely_and_not_judged() {
    let mut judge = earned();
    let average_ns = judge.average_ns();
    assert!(matches!(judge.begin(), Run::Timed { .. }));
    for _ in 0..1_000 {
        assert_eq!(judge.judge(4_000_000, false, ONE), None);
    }
    assert_eq!(judge.average_ns(), average_ns);
    for _ in 0..CLOSE_RUNS {
        assert!(matches!(judge.begin(), Run::Close { .. }));
    }
    assert!(matches!(judge.begin(), Run::Timed { .. }));
}

#[test]
fn what_was_lost_comes_back_later_each_time() {
    let mut judge = earned();
    let mut needed = RUNS_MIN;
    for _ in 0..10 {
        assert_eq!(until_verdict(&mut judge, 3 * LIMIT_NS, 1_000).1, Some(Verdict::Lost));
        needed = (needed * 2).min(RUNS_MAX);
        let (runs, verdict) = until_verdict(&mut judge, 5_000, 10 * RUNS_MAX);
        assert_eq!((runs, verdict), (needed, Some(Verdict::Earned)));
    }
    assert_eq!(needed, RUNS_MAX);
    // A long time without a loss makes it easy again.
    assert_eq!(until_verdict(&mut judge, 5_000, 2 * RESTS * RUNS_MAX).1, None);
    assert_eq!(judge.needed, RUNS_MIN);
}

#[test]
fn a_long_model_is_measured_seldom() {
    let mut judge = Judge::new(LIMIT_NS);
    let (mut measured, mut rests) = (0, 0);
    while measured < 100_000 {
        rests += rested(&mut judge);
        assert_eq!(judge.judge(300_000, true, ONE), None);
        measured += 1;
    }
    assert!(rests > 14 * measured, "{measured} of {rests}");
}

#[test]
fn larger_requests_and_batches_count_only_if_they_are_short() {
    let mut judge = earned();
    assert!(judge.admits(64) && !judge.admits(65));
    let average_ns = judge.average_ns();
    for size in [Size { requests: 1, bytes: 65 }, Size { requests: 8, bytes: 64 }] {
        for _ in 0..1_000 {
            assert_eq!(judge.judge(10 * LIMIT_NS, true, size), None);
        }
    }
    assert_eq!(judge.average_ns(), average_ns);
    assert_eq!(judge.judge(LIMIT_NS, true, Size { requests: 8, bytes: 512 }), None);
    assert!(judge.admits(512) && !judge.admits(513));
}

#[test]
fn the_kernel_says_how_long_a_thread_waited() {
    let Some(before_ns) = waited_for_a_core_ns() else { return };
    assert!(waited_for_a_core_ns().unwrap() >= before_ns);
    let mut judge = Judge::new(LIMIT_NS);
    judge.close = 1;
    let run = judge.begin();
    assert!(matches!(run, Run::Close { waited_ns: Some(_), .. }));
    std::thread::sleep(std::time::Duration::from_millis(1));
    judge.end(run, ONE);
    assert!(judge.average_ns() > LIMIT_NS, "a run that sleeps is long: {}", judge.average_ns());
}
