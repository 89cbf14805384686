//! Flags of the client: connections, threads, timeouts.

use super::Flag;
use nereid_shard::EngineKind;

const CONNECTIONS_MAX: usize = 1 << 16;
const THREADS_MAX: usize = 1024;
const OUTSTANDING_MAX: usize = 1 << 20;
/// Mail and timers wait meanwhile.
const RING_SPIN_US_MAX: u64 = 10_000;

pub static FLAGS: &[Flag] = &[
    Flag::set(
        "connections",
        "count",
        "Connections in all. Default: over HTTP one for each request in flight, over gRPC a few that share them, of \
         rings one for each thread.",
        |g, v| {
            g.client.connections = Some(v.number(1..=CONNECTIONS_MAX)?);
            Ok(())
        },
    )
    .own(),
    Flag::switch("unique-connections", "A connection for each request in flight over gRPC, too.", |g| {
        g.client.unique_connections = true;
    })
    .own(),
    Flag::set("threads", "count", "Threads that send and receive. Default: 1.", |g, v| {
        g.threads = Some(v.number(1..=THREADS_MAX)?);
        Ok(())
    })
    .own(),
    Flag::set(
        "max-threads",
        "count",
        "Threads that send and receive, of as many as there are cores. Without it and --threads there is one.",
        |g, v| {
            g.threads_max = Some(v.number(1..=THREADS_MAX)?);
            Ok(())
        },
    ),
    Flag::set("pin", "cores", "Cores that the threads are confined to, one each, like 2-5,7.", |g, v| {
        g.client.pin_to = cores(v.text()?).ok_or_else(|| v.wrong("a list of cores like 0,2-3"))?;
        Ok(())
    })
    .own(),
    Flag::set("io-engine", "auto|io_uring|epoll", "How sockets are driven. Default: auto.", |g, v| {
        let engines = [("auto", None), ("io_uring", Some(EngineKind::IoUring)), ("epoll", Some(EngineKind::Epoll))];
        g.client.engine = v.one_of(&engines)?;
        Ok(())
    })
    .own(),
    Flag::set(
        "request-timeout",
        "ms",
        "A request without an answer for so long failed. Default: 60000, for openai 600000.",
        |g, v| {
            g.request_timeout = Some(std::time::Duration::from_millis(v.number(1..=86_400_000)?));
            Ok(())
        },
    )
    .own(),
    Flag::set(
        "max-outstanding",
        "requests",
        "Open loop: with more than so many unanswered, the load point ends as one that cannot be sustained. Default: \
         16384.",
        |g, v| {
            g.client.outstanding_max = v.number(1..=OUTSTANDING_MAX)?;
            Ok(())
        },
    )
    .own(),
    Flag::set(
        "ipc-spin-us",
        "us",
        "With -i ipc: how long a thread that waits for answers polls its rings before it sleeps. Polling is counted \
         apart from the thread's work. Default: 0.",
        |g, v| {
            g.client.ring_spin = std::time::Duration::from_micros(v.number(0..=RING_SPIN_US_MAX)?);
            Ok(())
        },
    )
    .own(),
];

/// `0,2-3`; no core twice.
fn cores(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        if first > last || last >= THREADS_MAX * 8 || (first..=last).any(|core| cores.contains(&core)) {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::cores;

    #[test]
    fn lists_of_cores() {
        assert_eq!(cores("0,2-4"), Some(vec![0, 2, 3, 4]));
        assert_eq!(cores("7"), Some(vec![7]));
        for wrong in ["", "a", "1,", "3-2", "1,1", "1-3,2", "-1", "0-99999999"] {
            assert_eq!(cores(wrong), None, "{wrong}");
        }
    }
}
