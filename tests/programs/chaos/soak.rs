//! A soak: requests of all kinds for a long time, after which the server holds what it held before.
//!
//! The run has phases. In each the clients of the campaign send requests and one model is reloaded; then they leave,
//! and what the server holds is read at rest. The first phase is the warm-up. The first half of the others is the
//! control: how much its readings differ is the noise. In the second half descriptors, threads and memory files are not
//! above the control's, but for few memory files, and the memory is not above it by more than the noise.

use std::time::{Duration, Instant};

use super::campaign::PROCESSES;
use super::client::Process;
use super::models::generation;
use super::prober;
use super::resources::{LATE_FILES, Resources};
use super::site::Site;
use super::tally::Tally;
use nereid_test_support::random::Random;
use nereid_test_support::variant::usual;

/// Seconds of the whole run.
const SECONDS: &str = "NEREID_TEST_SOAK_SECS";
const SHORT_S: u64 = 60;
/// Phases after the warm-up, and seconds of one at most.
const PHASES: u64 = 10;
const PHASE_S_MAX: u64 = 60;
/// Requests of the warm-up and of each other phase at least, so that pools have their size also on a busy machine.
const WARM_UP_REQUESTS: u64 = 40_000;
const PHASE_REQUESTS: u64 = 5_000;
/// Below this a difference is noise, whatever the control shows: a few arenas of the allocator.
const NOISE_KIB_MIN: u64 = 4096;

struct Reading {
    minute: f64,
    resident_kib: u64,
    requests: u64,
    held: Resources,
}

/// A number of a reading that must not grow.
type Count = fn(&Reading) -> usize;

#[test]
fn hours_of_requests_leave_nothing() {
    let seconds = std::env::var(SECONDS).map_or(SHORT_S, |text| text.parse().expect("seconds"));
    let Some(site) = Site::start(usual(), &[]) else { return };
    let phase = Duration::from_secs((seconds / (PHASES + 1)).clamp(1, PHASE_S_MAX));
    let phases = (seconds / phase.as_secs()).max(PHASES + 1);
    let mut random = Random::new(5);
    let mut tally = Tally::default();
    let mut readings = Vec::new();
    let started = Instant::now();
    println!("| minute | requests | RSS in KiB | descriptors | threads | memory files |\n|---|---|---|---|---|---|");
    for number in 1..=phases {
        run_phase(&site, number, phase, &mut random, &mut tally);
        let held = at_rest(&site);
        let minute = started.elapsed().as_secs_f64() / 60.0;
        let reading =
            Reading { minute, resident_kib: site.server.resident_kib(), requests: tally.asked_in_all(), held };
        println!("{}", row(&reading));
        readings.push(reading);
    }
    check(&readings);
    println!("{} requests, {} refused, 0 lost", tally.asked_in_all(), tally.refused_in_all());
    site.server.stop();
}

fn run_phase(site: &Site, number: u64, time: Duration, random: &mut Random, tally: &mut Tally) {
    let clients = PROCESSES.map(|kinds| Process::start(site, random.next() % 1_000_000, kinds, 0));
    let started = Instant::now();
    std::thread::sleep(time / 2);
    site.generations.begin(number);
    generation(site.repository.path(), number);
    assert!(prober::load(&site.server, "generation"), "{}", site.log());
    site.generations.confirm(number);
    let least = if number == 1 { WARM_UP_REQUESTS } else { PHASE_REQUESTS };
    let asked = || clients.iter().map(|client| client.tally().asked_in_all()).sum::<u64>();
    let is_wrong = || clients.iter().any(|client| !client.tally().wrong.is_empty());
    while (started.elapsed() < time || asked() < least) && !is_wrong() {
        std::thread::sleep(Duration::from_millis(20));
    }
    clients.into_iter().for_each(|client| tally.add(&client.finish()));
    assert!(tally.wrong.is_empty(), "{:#?}\n{}", tally.wrong, site.log());
    prober::wait_until_all_serve(site, tally);
    site.free_disk();
}

/// What the server holds once two readings are the same, and no request is left.
fn at_rest(site: &Site) -> Resources {
    let mut last = Resources::default();
    site.server.wait_until("the server is at rest", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = Resources::of(site);
        std::mem::replace(&mut last, now.clone()) == now && now.pending == 0
    });
    last
}

fn row(reading: &Reading) -> String {
    let Reading { minute, resident_kib, requests, held } = reading;
    let Resources { descriptors, threads, .. } = held;
    let threads: usize = threads.values().sum();
    format!("| {minute:.1} | {requests} | {resident_kib} | {descriptors} | {threads} | {} |", memory_files(held))
}

fn memory_files(held: &Resources) -> usize {
    held.kinds.get("/memfd").copied().unwrap_or(0)
}

fn check(readings: &[Reading]) {
    let table = || readings.iter().map(row).collect::<Vec<_>>().join("\n");
    let (control, later) = readings[1..].split_at((readings.len() - 1) / 2);
    let level: [(&str, Count, usize); 5] = [
        ("other descriptors", |reading| reading.held.descriptors - memory_files(&reading.held), 0),
        ("threads", |reading| reading.held.threads.values().sum(), 0),
        ("memory files", |reading| memory_files(&reading.held), LATE_FILES),
        ("mapped memory files", |reading| reading.held.mapped, LATE_FILES),
        ("entries of /dev/shm", |reading| reading.held.shm, 0),
    ];
    for (what, of, late) in level {
        let most = |part: &[Reading]| part.iter().map(of).max().unwrap_or(0);
        let (before, now) = (most(control), most(later));
        assert!(now <= before + late, "{what}: at most {before} in the first half, {now} in the second:\n{}", table());
    }
    let resident = |part: &[Reading]| part.iter().map(|reading| reading.resident_kib).collect::<Vec<_>>();
    let (first, second) = (resident(control), resident(later));
    let highest = first.iter().max().copied().unwrap_or(0);
    let noise = (highest - first.iter().min().copied().unwrap_or(0)).max(NOISE_KIB_MIN);
    let median = |mut values: Vec<u64>| {
        values.sort_unstable();
        values[values.len() / 2]
    };
    // The median: one reading beside a late arena is no growth.
    let later = median(second);
    assert!(later <= highest + noise, "memory grows by more than {noise} KiB: {later} KiB\n{}", table());
}
