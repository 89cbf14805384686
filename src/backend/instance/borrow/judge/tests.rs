//! Runs of made-up times.

use super::*;

const LIMIT_NS: u64 = 20_000;
const ONE: Size = Size { requests: 1, bytes: 64 };

/// Judges runs of one time until there is a verdict: how many it takes, at most `most`.
fn until_verdict(judge: &mut Judge, run_ns: u64, most: u32) -> (u32, Option<Verdict>) {
    (1..=most)
        .find_map(|run| judge.judge(run_ns, ONE, true).map(|verdict| (run, Some(verdict))))
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
        assert_eq!(judge.judge(3_000_000, ONE, true), None);
    }
    assert_eq!(until_verdict(&mut judge, 5_000, RUNS_MIN - 5), (RUNS_MIN - 5, None));
    assert_eq!(rested(&mut judge), RUNS_MIN * RESTS);
    let (runs, verdict) = until_verdict(&mut judge, 5_000, 1_000);
    assert_eq!((runs, verdict), (2 * RUNS_MIN, Some(Verdict::Earned)));
}

#[test]
fn a_few_long_runs_do_not_end_it_and_many_do() {
    let mut judge = earned();
    for _ in 0..100 {
        assert_eq!(judge.judge(10 * LIMIT_NS, ONE, true), None, "a tenth of a percent");
        assert_eq!(until_verdict(&mut judge, 5_000, 1_000).1, None);
    }
    let (runs, verdict) = until_verdict(&mut judge, 3 * LIMIT_NS, 1_000);
    assert_eq!(verdict, Some(Verdict::Lost));
    assert!((10..=2 * PERIOD).contains(&runs), "{runs}");
    assert!(!judge.admits(1), "sizes are learned again");
}

/// None of them follows another one, and none is forgotten: one of seven, each 15 times the limit.
#[test]
fn long_runs_among_short_ones_add_up() {
    let mut judge = earned();
    let lost = (0..1_000).find(|run| {
        let run_ns = if run % 7 == 0 { 15 * LIMIT_NS } else { 1_000 };
        judge.judge(run_ns, ONE, true) == Some(Verdict::Lost)
    });
    assert!(lost.is_some_and(|run| run < PERIOD), "{lost:?}");
    let mut judge = Judge::new(LIMIT_NS);
    for run in 0..10 * RUNS_MAX {
        let run_ns = if run % 7 == 0 { 15 * LIMIT_NS } else { 1_000 };
        assert_eq!(judge.judge(run_ns, ONE, true), None, "they never earn it");
    }
}

#[test]
fn one_run_that_is_far_too_long_ends_it() {
    assert_eq!(earned().judge(FAR * LIMIT_NS, ONE, true), None);
    let mut judge = earned();
    assert_eq!(judge.judge(FAR * LIMIT_NS + 1, ONE, true), Some(Verdict::Lost));
    assert_eq!(judge.decided_ns(), (FAR * LIMIT_NS + 1, FAR * LIMIT_NS + 1));
    // It does not come back while there is one in each period, however many short ones are around it.
    for _ in 0..8 {
        assert_eq!(judge.judge(60 * LIMIT_NS, ONE, true), None);
        let rest = judge.needed - 1;
        assert_eq!(until_verdict(&mut judge, 1_000, rest).1, None);
    }
    assert_eq!(judge.needed, RUNS_MAX);
    assert_eq!(until_verdict(&mut judge, 1_000, RUNS_MAX), (RUNS_MAX, Some(Verdict::Earned)));
}

#[test]
fn what_was_not_executed_says_nothing_by_being_short() {
    let mut judge = Judge::new(LIMIT_NS);
    for _ in 0..10_000 {
        assert_eq!(judge.judge(500, ONE, false), None);
    }
    assert!(!judge.admits(64));
    let mut judge = earned();
    for _ in 0..2 * PERIOD {
        judge.judge(500, Size { requests: 1, bytes: 4_096 }, false);
    }
    assert!(!judge.admits(4_096));
    assert_eq!(judge.judge(60 * LIMIT_NS, ONE, false), Some(Verdict::Lost), "a failure that took its time is long");
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
        assert_eq!(judge.judge(300_000, ONE, true), None);
        measured += 1;
    }
    assert!(rests > 14 * measured, "{measured} of {rests}");
}

#[test]
fn larger_requests_and_batches_count_only_if_they_are_short() {
    let mut judge = earned();
    assert!(judge.admits(64) && !judge.admits(65));
    for size in [Size { requests: 1, bytes: 65 }, Size { requests: 8, bytes: 64 }] {
        for _ in 0..1_000 {
            assert_eq!(judge.judge(10 * LIMIT_NS, size, true), None);
        }
    }
    assert_eq!((judge.period.runs, judge.period.sum_ns), (0, 0));
    assert_eq!(judge.judge(LIMIT_NS, Size { requests: 8, bytes: 512 }, true), None);
    assert!(judge.admits(512) && !judge.admits(513));
}

#[test]
fn the_log_is_told_at_once_and_then_once_a_minute() {
    let mut judge = earned();
    let told: Vec<u64> = (5..200).filter(|second| judge.tells(second * 1_000_000_000)).collect();
    assert_eq!(told, [5, 65, 125, 185]);
}

#[test]
fn a_run_that_sleeps_is_long() {
    if std::fs::read_to_string("/proc/thread-self/schedstat").is_ok_and(|text| !text.trim_end().ends_with(" 0")) {
        let mut judge = Judge::new(LIMIT_NS);
        let run = judge.begin();
        std::thread::sleep(std::time::Duration::from_millis(100));
        judge.end(run, ONE, true);
        assert!(judge.period.longest_ns > 90_000_000, "{:?}", judge.period);
    }
}
