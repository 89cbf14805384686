//! `tuning/`: the reports of `check` for simulated hosts, the changes of `apply` and their undo, the files beside them,
//! which must agree, and the notification of a supervisor when the server is ready.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{OTHER_SERVER, PATIENCE, Server};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

/// A host with eight cores, two of them the shards': each file with what it says when tuned and when not, and the knob
/// that looks at it. `""` counts for the host alone.
const FILES: &[(&str, &str, &str, &str)] = &[
    ("", "/sys/devices/system/cpu/online", "0-7", "0-7"),
    ("governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance", "powersave"),
    ("", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3500000", "1200000"),
    ("", "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000", "3500000"),
    ("", "/sys/devices/system/cpu/cpu0/cpufreq/base_frequency", "2500000", "2500000"),
    (
        "energy-preference",
        "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference",
        "performance",
        "balance_power",
    ),
    ("turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo", "0", "1"),
    ("idle-states", "/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1", "0"),
    ("", "/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "133", "133"),
    ("", "/sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C6", "C6"),
    ("", "/sys/devices/system/cpu/cpu7/cpuidle/state3/disable", "0", "0"),
    ("", "/sys/devices/system/cpu/cpu7/cpuidle/state3/latency", "133", "133"),
    ("siblings", "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0", "0,4"),
    ("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc", "hpet"),
    ("", "/sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet", "tsc hpet acpi_pm"),
    ("", "/sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected", "Mitigation: PTI"),
    ("isolated-cores", "/sys/devices/system/cpu/isolated", "0-1", "\n"),
    ("", "/sys/devices/system/cpu/nohz_full", "0-1", "(null)"),
    ("rcu-callbacks", "/proc/cmdline", "quiet rcu_nocbs=0-1", "quiet"),
    ("interrupts", "/proc/irq/42/smp_affinity_list", "2-7", "0-7"),
    ("", "/proc/irq/42/effective_affinity_list", "2", "1"),
    ("", "/proc/irq/default_smp_affinity", "fc", "ff"),
    (
        "",
        "/proc/interrupts",
        "   CPU0 CPU1 CPU2\n 42: 0 0 9 PCI-MSI eth0-rx-0",
        "   CPU0 CPU1\n 42: 3 70 PCI-MSI eth0-rx-0",
    ),
    ("irqbalance", "/proc/77/comm", "irqbalance", "irqbalance"),
    ("", "/etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=0-1", "#IRQBALANCE_BANNED_CPULIST="),
    ("cpu-quota", "/sys/fs/cgroup/a/cpu.max", "max 100000", "150000 100000"),
    ("", "/sys/fs/cgroup/a/cpu.stat", "nr_throttled 0", "usage_usec 7\nnr_throttled 19"),
    ("", "/proc/self/cgroup", "0::/a/b", "0::/a/b"),
    ("workqueues", "/sys/devices/virtual/workqueue/cpumask", "fc", "ff"),
    ("watchdogs", "/proc/sys/kernel/nmi_watchdog", "0", "1"),
    ("timer-migration", "/proc/sys/kernel/timer_migration", "0", "1"),
    ("statistics-interval", "/proc/sys/vm/stat_interval", "10", "1"),
    ("huge-pages", "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never", "always madvise [never]"),
    (
        "huge-pages",
        "/sys/kernel/mm/transparent_hugepage/defrag",
        "always defer defer+madvise [madvise] never",
        "[always] defer defer+madvise madvise never",
    ),
    ("", "/proc/sys/vm/nr_hugepages", "0", "512"),
    ("numa-balancing", "/proc/sys/kernel/numa_balancing", "0", "1"),
    ("numa-nodes", "/sys/class/net/eth0/device/numa_node", "0", "1"),
    ("", "/sys/devices/system/node/node0/cpulist", "0-3", "0-3"),
    ("", "/sys/devices/system/node/node1/cpulist", "4-7", "4-7"),
    ("page-merging", "/sys/kernel/mm/ksm/run", "0", "1"),
    ("swap", "/proc/swaps", "Filename Type Size Used Priority", "Filename Type Size\n/dev/sda2 partition 1"),
    ("swap", "/proc/sys/vm/swappiness", "1", "60"),
    ("zone-reclaim", "/proc/sys/vm/zone_reclaim_mode", "0", "1"),
    ("memory-lock", "/proc/self/limits", LIMITS[0], LIMITS[1]),
    ("open-files", "/proc/self/limits", LIMITS[0], LIMITS[1]),
    ("network-queues", "/sys/class/net/eth0/queues/rx-0/rps_cpus", "fc", "00000000,00000000"),
    ("", "/sys/class/net/eth0/queues/tx-0/xps_cpus", "ff", "00"),
    ("", "/sys/class/net/eth0/napi_defer_hard_irqs", "2", "0"),
    ("", "/sys/class/net/eth0/gro_flush_timeout", "200000", "0"),
    ("", "/proc/sys/net/core/busy_poll", "50", "0"),
    ("", "/proc/sys/net/core/busy_read", "50", "0"),
    ("accept-queue", "/proc/sys/net/core/somaxconn", "4096", "128"),
    ("handshake-queue", "/proc/sys/net/ipv4/tcp_max_syn_backlog", "4096", "512"),
    ("slow-start", "/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0", "1"),
    ("socket-buffers", "/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t16777216", "4096\t131072\t6291456"),
    ("socket-buffers", "/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t16777216", "4096\t16384\t4194304"),
    ("", "/proc/sys/net/ipv4/tcp_notsent_lowat", "131072", "4294967295"),
    ("", "/proc/sys/net/ipv4/tcp_congestion_control", "cubic", "cubic"),
    ("dropped-packets", "/proc/net/softnet_stat", "000000ff 00000000 00000003 0", "000000ff 0000001a 00000003 0"),
    ("dropped-packets", "/proc/sys/net/core/netdev_max_backlog", "10000", "1000"),
    ("", "/proc/sys/net/core/netdev_budget", "600", "300"),
    ("connection-tracking", "/proc/sys/net/netfilter/nf_conntrack_count", "10", "260000"),
    ("", "/proc/sys/net/netfilter/nf_conntrack_max", "262144", "262144"),
    ("io-uring", "/proc/sys/kernel/io_uring_disabled", "0", "2"),
    ("", "/proc/sys/kernel/osrelease", "6.8.0-40-generic", "6.8.0-40-generic"),
    ("autogroup", "/proc/sys/kernel/sched_autogroup_enabled", "0", "1"),
    ("", "/sys/kernel/debug/sched/base_slice_ns", "3000000", "3000000"),
    ("console", "/proc/sys/kernel/printk", "4\t4\t1\t7", "7\t4\t1\t7"),
    ("stolen-time", "/proc/stat", "cpu 100 0 100 900 0 0 0 1 0 0", "cpu 100 0 100 900 0 0 0 50 0 0"),
];

const LIMITS: [&str; 2] = [
    "Limit Soft Hard Units\nMax open files 1048576 1048576 files\nMax locked memory unlimited unlimited bytes",
    "Limit Soft Hard Units\nMax open files 1024 524288 files\nMax locked memory 65536 65536 bytes",
];

/// What stays a choice whatever a host says.
const CHOICES: [&str; 8] = [
    "mitigations",
    "reserved-huge-pages",
    "interrupt-coalescing",
    "busy-polling",
    "deferred-interrupts",
    "unsent-bytes",
    "congestion",
    "scheduler-slice",
];

struct Host(PathBuf);

impl Host {
    fn empty(name: &str) -> Host {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("host-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).expect("make a root");
        Host(root)
    }

    fn made(name: &str, choose: impl Fn(&'static str, &'static str) -> String) -> Host {
        let host = Host::empty(name);
        FILES.iter().for_each(|(_, path, tuned, untuned)| host.write(path, &choose(tuned, untuned)));
        host
    }

    fn tuned(name: &str) -> Host {
        Host::made(name, |tuned, _| tuned.into())
    }

    fn untuned(name: &str) -> Host {
        Host::made(name, |_, untuned| untuned.into())
    }

    fn place(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let place = self.place(path);
        std::fs::create_dir_all(place.parent().expect("a directory")).expect("make directories");
        std::fs::write(&place, format!("{text}\n")).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.place(path)).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
    }

    /// Every file with what it says.
    fn all(&self) -> BTreeMap<&'static str, String> {
        FILES.iter().map(|(_, path, ..)| (*path, self.read(path))).collect()
    }

    fn run(&self, program: &str, words: &[&str]) -> Output {
        let root = format!("--root={}", self.0.display());
        let words: Vec<&str> = [&*root].into_iter().chain(words.iter().copied()).collect();
        run(program, &words)
    }

    fn findings(&self, words: &[&str]) -> BTreeMap<String, Value> {
        let words: Vec<&str> = ["--json"].into_iter().chain(words.iter().copied()).collect();
        findings(&self.run("check", &words)).1
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

fn tuning(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning").join(name)
}

fn run(program: &str, words: &[&str]) -> Output {
    Command::new("python3").arg(tuning(program)).args(words).output().expect("python3")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The whole of what was said, and each finding by its name.
fn findings(output: &Output) -> (Value, BTreeMap<String, Value>) {
    let whole: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(output)));
    let found = whole["findings"].as_array().expect("findings").iter();
    let named = found.map(|finding| (finding["id"].as_str().expect("an id").to_owned(), finding.clone())).collect();
    (whole, named)
}

fn has_python() -> bool {
    let has = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        skip("there is no python3");
    }
    has
}

fn knobs() -> Vec<&'static str> {
    let mut knobs: Vec<&str> = FILES.iter().map(|(knob, ..)| *knob).filter(|knob| !knob.is_empty()).collect();
    knobs.dedup();
    knobs
}

#[test]
fn a_tuned_host_has_nothing_to_do() {
    if !has_python() {
        return;
    }
    let host = Host::tuned("tuned");
    let output = host.run("check", &["--json", "--strict"]);
    let (whole, found) = findings(&output);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(whole["cores"]["io"], "0-1", "a quarter of eight");
    assert_eq!((&whole["counts"]["untuned"], &whole["counts"]["unreadable"]), (&0.into(), &0.into()), "{whole:#}");
    let two_sides = |knob: &str| CHOICES.contains(&knob) || knob == "connection-tracking";
    for (knob, finding) in &found {
        let wanted = if two_sides(knob) { "choice" } else { "tuned" };
        assert_eq!(finding["state"], wanted, "{knob}: {finding:#}");
    }
    assert_eq!(
        text(&host.run("apply", &["--dry-run"])),
        "nothing to set: all that can be written now is as it should be\n"
    );
}

#[test]
fn an_untuned_host_is_told_what_to_do() {
    if !has_python() {
        return;
    }
    let host = Host::untuned("untuned");
    let found = host.findings(&[]);
    for knob in knobs() {
        let finding = &found[knob];
        assert_eq!(finding["state"], "untuned", "{knob}: {finding:#}");
        for part in ["what", "found", "wanted", "gain", "basis", "risk"] {
            assert!(finding[part].as_str().is_some_and(|text| !text.is_empty()), "{knob} has no {part}: {finding:#}");
        }
        assert!(finding["commands"].as_array().is_some_and(|commands| !commands.is_empty()), "{finding:#}");
    }
    for (knob, part) in [
        ("governor", "34 %"),
        ("idle-states", "133 us"),
        ("turbo", "40 %"),
        ("cpu-quota", "1.5 cores (/a), stopped 19 times"),
        ("interrupts", "42 eth0-rx-0 (73)"),
        ("dropped-packets", "26 dropped"),
        ("stolen-time", "20.0 %"),
        ("numa-nodes", "eth0 on node 1"),
    ] {
        assert!(found[knob].to_string().contains(part), "expected {part:?} in {:#}", found[knob]);
    }
    assert_eq!(host.run("check", &[]).status.code(), Some(0), "without --strict it only tells");
    let strict = host.run("check", &["--strict"]);
    assert_eq!(strict.status.code(), Some(1));
    for part in ["TUNE   governor", "PLACEMENT", "set    echo performance > ", "risk ", "latency]"] {
        assert!(text(&strict).contains(part), "expected {part:?} in\n{}", text(&strict));
    }
    assert!(text(&strict).lines().all(|line| line.len() <= 140), "a line is too long");
    // Other cores, other interrupts.
    assert_eq!(host.findings(&["--cores=6-7"])["interrupts"]["state"], "tuned");
    for (words, part) in
        [(["--cores=8"], "this host has cores 0-7"), (["--cores=x"], "is no list"), (["--pid=99999999"], "no process")]
    {
        let output = host.run("check", &words);
        assert!(output.status.code() == Some(2) && text(&output).contains(part), "{words:?}: {}", text(&output));
    }
}

/// Nothing there, directories where files should be, and files that say nothing sensible.
#[test]
fn what_cannot_be_read_is_said() {
    if !has_python() {
        return;
    }
    let (nothing, shut) = (Host::empty("nothing"), Host::empty("shut"));
    FILES.iter().for_each(|(_, path, ..)| std::fs::create_dir_all(shut.place(path)).expect("make a directory"));
    std::fs::remove_dir(shut.place("/sys/devices/system/cpu/online")).expect("remove it");
    shut.write("/sys/devices/system/cpu/online", "0-7");
    let strange = ["", "-", "x y z", "0-", "[", "99999999999999999999", "\u{1}\u{fffd}:", "cpu\n1: 2\n", "max", "-1 0"];
    let strange: Vec<Host> = strange
        .iter()
        .enumerate()
        .map(|(at, text)| Host::made(&format!("strange-{at}"), |_, _| (*text).to_owned()))
        .collect();
    for host in strange.iter().chain([&nothing, &shut]) {
        let output = host.run("check", &["--json", "--cores=0"]);
        assert_ne!(output.status.code(), Some(1), "{}", text(&output));
        let plain = if output.status.success() { output } else { host.run("check", &["--json"]) };
        assert_eq!(plain.status.code(), Some(0), "{}", text(&plain));
        let (_, found) = findings(&plain);
        assert!(found.len() > 40, "only {} findings", found.len());
        let failed =
            found.values().find(|finding| finding["what"].as_str().is_some_and(|what| what.contains("failed")));
        assert!(failed.is_none(), "{failed:#?}\n{:?}", host.0);
        assert_eq!(host.run("check", &["--all"]).status.code(), Some(0));
    }
    let states = |host: &Host, state: &str| {
        let found = host.findings(&[]);
        found.into_iter().filter(|(_, finding)| finding["state"] == state).map(|(knob, _)| knob).collect::<Vec<_>>()
    };
    assert_eq!(states(&nothing, "untuned"), [""; 0]);
    let hidden = shut.findings(&[]);
    for knob in ["governor", "clocksource", "isolated-cores", "watchdogs", "huge-pages", "slow-start", "io-uring"] {
        assert_eq!(hidden[knob]["state"], "unreadable", "{:#}", hidden[knob]);
        let told = hidden[knob]["found"].as_str().unwrap_or_default();
        assert!(told.starts_with("/sys/") || told.starts_with("/proc/"), "{told} names no file");
        assert!(told.contains("directory"), "{told} has no reason");
    }
}

#[test]
fn what_is_applied_can_be_taken_back() {
    if !has_python() {
        return;
    }
    let host = Host::untuned("apply");
    let before = host.all();
    let dry = host.run("apply", &["--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{}", text(&dry));
    assert!(text(&dry).contains("governor: echo performance > "), "{}", text(&dry));
    assert_eq!(host.all(), before, "a dry run writes nothing");
    let state = host.place("/var/lib/nereid/tuning.json");
    assert!(!state.exists());

    let done = host.run("apply", &["--skip=watchdogs"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    assert!(state.exists());
    for (path, wanted) in [
        ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
        ("/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1"),
        ("/sys/devices/system/cpu/cpu7/cpuidle/state3/disable", "0"),
        ("/proc/irq/42/smp_affinity_list", "2-7"),
        ("/proc/irq/default_smp_affinity", "fc"),
        ("/sys/devices/virtual/workqueue/cpumask", "fc"),
        ("/proc/sys/kernel/printk", "4 4 1 7"),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 16777216"),
        ("/proc/sys/kernel/nmi_watchdog", "1"),
        // With a risk that needs a decision.
        ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
        ("/proc/sys/net/core/busy_poll", "0"),
        ("/proc/sys/kernel/io_uring_disabled", "2"),
    ] {
        assert_eq!(host.read(path), wanted, "{path}");
    }
    let also = host.run("apply", &["--only=watchdogs", "--also=clocksource,busy-polling"]);
    assert_eq!(also.status.code(), Some(0), "{}", text(&also));
    assert_eq!(host.read("/proc/sys/kernel/nmi_watchdog"), "0");
    assert_eq!(host.read("/proc/sys/net/core/busy_read"), "50");
    assert_eq!(host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource"), "tsc");
    let again = host.run("apply", &["--also=io-uring"]);
    assert_eq!(text(&again).lines().count(), 1, "only what is left: {}", text(&again));

    let dry = host.run("apply", &["--undo", "--dry-run"]);
    assert!(dry.status.success() && host.read("/proc/sys/kernel/nmi_watchdog") == "0", "{}", text(&dry));
    // Somebody else's change is not undone.
    host.write("/proc/sys/vm/stat_interval", "120");
    let undone = host.run("apply", &["--undo"]);
    assert_eq!(undone.status.code(), Some(0), "{}", text(&undone));
    assert!(
        text(&undone).contains("/proc/sys/vm/stat_interval was changed since, to 120: left alone"),
        "{}",
        text(&undone)
    );
    assert!(!state.exists(), "nothing is left to take back");
    let after = host.all();
    for (path, text) in before {
        // The kernel would put the brackets back itself.
        let text =
            text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text.clone(), |it| it.0.into());
        let wanted = if path.ends_with("stat_interval") { "120".to_owned() } else { text.replace('\t', " ") };
        let now = after[path].replace('\t', " ");
        let now = now.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(now.clone(), |it| it.0.into());
        assert_eq!(now, wanted, "{path}");
    }
    let unknown = host.run("apply", &["--only=govenor"]);
    assert!(
        unknown.status.code() == Some(1) && text(&unknown).contains("no knobs called govenor"),
        "{}",
        text(&unknown)
    );
    std::fs::create_dir_all(state.parent().expect("a directory")).expect("make it");
    std::fs::write(&state, "[]").expect("spoil the state");
    let spoiled = host.run("apply", &["--undo"]);
    assert!(spoiled.status.code() == Some(1) && text(&spoiled).contains("move it away"), "{}", text(&spoiled));
}

/// The values of the files beside the scripts are those that `check` asks for, under names that it knows and that the
/// documentation explains.
#[test]
fn the_files_say_what_the_check_asks_for() {
    if !has_python() {
        return;
    }
    let read = |path: PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let host = Host::untuned("files");
    let names: Vec<String> = host.findings(&[]).into_keys().collect();
    let documentation = read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tuning.md"));
    for name in &names {
        assert!(documentation.contains(&format!("`{name}`")), "docs/tuning.md does not explain {name}");
    }
    let mut set = Vec::new();
    for file in ["sysctl.conf", "modprobe.conf", "kernel-command-line.conf"] {
        let text = read(tuning(file));
        let bracketed: Vec<&str> =
            text.split('[').skip(1).filter_map(|rest| rest.split_once(']')).map(|it| it.0).collect();
        assert!(bracketed.len() > 1);
        for name in bracketed {
            assert!(names.iter().any(|known| known == name), "{file} names {name}, which is no knob");
        }
        let settings = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
        settings
            .for_each(|(name, value)| set.push((format!("/proc/sys/{}", name.replace('.', "/")), value.to_owned())));
    }
    assert!(set.len() > 10);
    for (path, value) in &set {
        assert!(FILES.iter().any(|(_, known, ..)| known == path), "nothing looks at {path}");
        host.write(path, value);
    }
    let found = host.findings(&[]);
    for (knob, path, ..) in FILES.iter().filter(|(knob, ..)| !knob.is_empty()) {
        // What does not count dropped packets cannot undo them.
        if set.iter().any(|(written, _)| written == path) {
            assert_eq!(found[*knob]["state"], "tuned", "{:#}", found[*knob]);
        }
    }
}

#[test]
fn the_unit_is_one() {
    let unit = std::fs::read_to_string(tuning("nereid.service")).expect("the unit");
    if !Command::new("systemd-analyze").arg("--version").output().is_ok_and(|output| output.status.success()) {
        skip("there is no systemd-analyze");
        return;
    }
    let host = Host::empty("unit");
    let program = env!("CARGO_BIN_EXE_nereid");
    let unit = unit.replace("/opt/nereid/bin/nereid", program);
    assert!(unit.contains(program), "the unit starts something else");
    let place = host.0.join("nereid.service");
    std::fs::write(&place, unit).expect("write the unit");
    let output = Command::new("systemd-analyze").arg("verify").arg(&place).output().expect("systemd-analyze");
    // What it says of other units of this host is not ours.
    let said = text(&output);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("nereid")).collect();
    assert!(ours.is_empty(), "{}", text(&output));
    // The lower the number, the less the service can reach: from 0.0 to 10.0.
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold=22"]).arg(&place);
    let output = security.output().expect("systemd-analyze");
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_running_server_is_looked_at() {
    if !has_python() || std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let output = run("check", &["--json", &format!("--pid={}", server.pid())]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let (whole, found) = findings(&output);
    assert_eq!(whole["pid"], server.pid());
    assert!(found["threads"]["found"].as_str().is_some_and(|text| text.contains("shard-0")), "{:#}", found["threads"]);
    for port in [server.http, server.grpc, server.metrics] {
        let told = found["sockets"]["found"].as_str().unwrap_or_default();
        assert!(told.contains(&port.port().to_string()), "{told} does not name {port}");
    }
    assert_eq!(found["server-memory"]["state"], "tuned", "{:#}", found["server-memory"]);
    assert!(found["preemptions"]["found"].as_str().is_some_and(|text| text.contains("shard-0")));
    server.stop();
}

/// The host that the tests run on, whatever it is.
#[test]
fn this_host_is_looked_at_and_left_alone() {
    if !has_python() {
        return;
    }
    let output = run("check", &["--json", "--measure"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let (whole, found) = findings(&output);
    let failed = found.values().find(|finding| finding["what"].as_str().is_some_and(|what| what.contains("failed")));
    assert!(failed.is_none(), "{failed:#?}");
    let measured = whole["measured"].as_array().expect("rows");
    assert!(!measured.is_empty() && measured.iter().all(|row| row["late_p99_us"].is_u64()), "{measured:#?}");
    let state = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("tuning-state-{}", std::process::id()));
    let dry = run("apply", &["--dry-run", &format!("--state={}", state.display())]);
    assert!(dry.status.code().is_some_and(|code| code < 2) && !state.exists(), "{}", text(&dry));
}

#[test]
fn a_supervisor_is_told_when_the_server_is_ready_and_when_it_stops() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let host = Host::empty("supervisor");
    // A path of a socket has 107 bytes at most.
    let path = std::env::temp_dir().join(format!("nereid-notify-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).expect("bind");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let place = path.display().to_string();
    let environment = [("NOTIFY_SOCKET", &*place)];
    let server = Server::start_in(usual(), repository.path(), &[], "/v2/health/ready", &environment);
    let told = || {
        let mut text = [0; 64];
        let len = loop {
            match socket.recv(&mut text) {
                // A signal for another test of this process.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.expect("the server tells nothing"),
            }
        };
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    server.terminate();
    assert_eq!(told(), "STOPPING=1");
    // Clients that it routes here get time to see that this server is not ready; a second signal ends that.
    server.wait_for_log("Serving for 5 s more (--drain-delay)");
    server.terminate();
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    std::fs::remove_file(&path).expect("remove the socket");
    drop(host);
}
