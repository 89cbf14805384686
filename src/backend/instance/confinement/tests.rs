//! Host policies on a simulated host.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::HostPolicies;

/// A directory that is removed after the test.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(nodes: &[(usize, &str)]) -> Sysfs {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("nereid-sysfs-{}-{number}", std::process::id()));
        for (node, cpus) in nodes {
            let directory = root.join(format!("devices/system/node/node{node}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cpulist"), format!("{cpus}\n")).unwrap();
        }
        Sysfs(root)
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn policy(settings: &[(&str, &str)]) -> std::sync::Arc<HostPolicy> {
    let owned = settings.iter().map(|(key, value)| ("p".to_owned(), (*key).to_owned(), (*value).to_owned()));
    HostPolicies::new(&owned.collect::<Vec<_>>()).unwrap().get("p")
}

#[test]
fn policies_are_cut_to_what_the_process_may_use() {
    let host = Sysfs::new(&[(0, "0-3,8"), (1, "4-7"), (2, "")]);
    let ours = [0, 1, 2, 4, 8];
    let cpus = |settings: &[(&str, &str)]| {
        Confinement::on(&policy(settings), &ours, &host.0)
            .map(|it| it.cpus)
            .map_err(|status| status.message.into_owned())
    };
    assert_eq!(cpus(&[("numa-node", "0")]), Ok(vec![0, 1, 2, 8]));
    assert_eq!(cpus(&[("numa-node", "1")]), Ok(vec![4]));
    assert_eq!(cpus(&[("cpu-cores", "2-5,99")]), Ok(vec![2, 4]));
    assert_eq!(cpus(&[("numa-node", "0"), ("cpu-cores", "1,4")]), Ok(vec![1]));
    for (settings, text) in [
        (
            &[("cpu-cores", "3,5-7")][..],
            "host policy 'p': none of the cores '3,5-7' is one that this process may use".to_owned(),
        ),
        (
            &[("numa-node", "1"), ("cpu-cores", "0-3")],
            "host policy 'p': none of the cores '0-3' is one of NUMA node 1 that this process may use".to_owned(),
        ),
        (&[("numa-node", "2")], "host policy 'p': this process may not use any core of NUMA node 2".to_owned()),
        (
            &[("numa-node", "3")],
            format!(
                "host policy 'p': NUMA node 3 is not on this host: '{}': No such file or directory (os error 2)",
                host.0.join("devices/system/node/node3/cpulist").display()
            ),
        ),
    ] {
        assert_eq!(cpus(settings), Err(text));
    }
}

#[test]
fn a_list_that_is_none_is_refused() {
    for text in ["x", "0-", "3-x", "99999999", "0-99999999"] {
        let host = Sysfs::new(&[(0, text)]);
        let error = Confinement::on(&policy(&[("numa-node", "0")]), &[0], &host.0).unwrap_err();
        assert!(error.message.contains(&format!("holds '{text}'")), "{error}");
    }
}

#[test]
fn without_a_policy_the_cores_of_workers_count() {
    let other = Confinement::of(&policy(&[("colour", "red")]), &[7, 9], None).unwrap();
    assert_eq!((other.cpus, other.numa_node, other.is_asked_for), (vec![7, 9], None, false));
}

#[test]
fn without_a_policy_an_instance_is_near_its_device() {
    let host = Sysfs::new(&[(0, "0-3"), (1, "4-7"), (2, "8")]);
    let near = |node| {
        let bounds = Confinement::among(&policy(&[("colour", "red")]), &[2, 3, 4, 5], node, &host.0);
        assert!(!bounds.is_asked_for && bounds.is_within(&[2, 3, 4, 5]));
        (bounds.cpus, bounds.numa_node)
    };
    assert_eq!(near(Some(1)), (vec![4, 5], Some(1)));
    assert_eq!(near(Some(0)), (vec![2, 3], Some(0)));
    let anywhere = (vec![2, 3, 4, 5], None);
    for node in [None, Some(2), Some(9)] {
        assert_eq!(near(node), anywhere, "{node:?}");
    }
    let small = Confinement::among(&policy(&[]), &[], Some(1), &host.0);
    assert_eq!((small.cpus, small.numa_node), (vec![], None), "workers have no cores of their own");
    // A node that does not exist costs a line in the log.
    let gone = Confinement { policy: "p".into(), cpus: vec![], numa_node: Some(1000), is_asked_for: false };
    assert_eq!(std::thread::spawn(move || gone.apply()).join().unwrap(), Ok(()));
}

#[test]
fn a_thread_is_confined_to_what_was_asked_for() {
    let ours = sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| ours.is_set(cpu)).unwrap();
    let asked = Confinement::of(&policy(&[("cpu-cores", &last.to_string())]), &[], Some(0)).unwrap();
    let seen = std::thread::spawn(move || {
        asked.apply().unwrap();
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>()
    });
    assert_eq!(seen.join().unwrap(), [last]);
    let free = Confinement { policy: String::new(), cpus: vec![], numa_node: None, is_asked_for: false };
    free.apply().unwrap();
    assert_eq!(sched_getaffinity(None).unwrap().count(), ours.count(), "other threads are not touched");
    // Cores that the process may not use: an error if they were requested, else a warning.
    let foreign = |is_asked_for| {
        let cpus = vec![CpuSet::MAX_CPU - 1];
        let it = Confinement { policy: "p".into(), cpus, numa_node: None, is_asked_for };
        std::thread::spawn(move || it.apply()).join().unwrap()
    };
    assert!(foreign(true).unwrap_err().message.starts_with("host policy 'p': cannot bind the thread to its cores: "));
    assert_eq!(foreign(false), Ok(()));
}

#[test]
fn a_job_is_confined_and_its_thread_is_not() {
    let now = || {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>()
    };
    let before = now();
    let last = vec![*before.last().unwrap()];
    assert_eq!(confined(&last, || (now(), std::thread::spawn(now).join().unwrap())), (last.clone(), last.clone()));
    assert_eq!(now(), before);
    let panicked = std::panic::catch_unwind(|| confined(&last, || panic!("a backend")));
    assert!(panicked.is_err());
    assert_eq!(now(), before);
    assert_eq!(confined(&[], now), before);
    assert_eq!(confined(&[CpuSet::MAX_CPU], now), before, "what cannot be set is left as it is");
}
