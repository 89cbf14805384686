//! Regions are created and removed by a run, however it ends.

use std::time::Duration;

use nereid_perf::{Endpoint, Plan, Progress, Protocol, SharedMemory, Step, Window};

use super::plans::{PROTOCOLS, demand_all_good, echoes, measure, plan};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

fn identity() -> Repository {
    let repository = Repository::new();
    repository.identity("identity", 0, &[Pair::new("FP32", "-1")]).identity("other", 0, &[Pair::new("INT8", "-1")]);
    repository
}

fn in_memory(mut plan: Plan) -> Plan {
    plan.work.shared_memory = SharedMemory::System { output_bytes: 4096 };
    plan
}

/// Objects of this process's runs.
fn objects() -> Vec<String> {
    let prefix = format!("nereid-perf-{}-", std::process::id());
    let names = std::fs::read_dir("/dev/shm").expect("shared memory").flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&prefix))
        .collect()
}

/// What the server says of its regions.
fn regions(server: &Server) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.http).expect("connect");
    let request = "GET /v2/systemsharedmemory/status HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.rsplit("\r\n").next().unwrap_or_default().to_owned()
}

/// Looks at the regions while a run lasts, and ends it when it has seen one.
struct Watcher<'a> {
    server: &'a Server,
    seen: usize,
}

impl Progress for Watcher<'_> {
    fn step(&mut self, _step: Step) {
        self.seen = self.seen.max(objects().len().min(regions(self.server).matches("nereid-perf-").count()));
    }

    fn stop_wanted(&mut self) -> bool {
        self.seen > 0
    }
}

/// One test, because the names of all runs of this process begin alike.
#[test]
fn nothing_of_a_run_stays() {
    let repository = identity();
    let server = Server::start(usual(), repository.path(), &["--allow-client-shm=true"]);
    for protocol in PROTOCOLS {
        // Compared where the server wrote them.
        let mut good = in_memory(plan(&server, protocol, "identity", echoes(3, 256), 60));
        good.client.threads = 2;
        let measured = measure(&good);
        demand_all_good(&measured, 60);
        assert!(measured.counts.bytes_sent < 60 * 1024 + 8192, "{protocol:?}: tensors stay in memory");
        assert_eq!((objects().len(), regions(&server).as_str()), (0, "[]"));
        let mut wrong = in_memory(plan(&server, protocol, "identity", echoes(1, 256), 10));
        if let Some(expected) = wrong.work.streams[0][0].expected.as_mut() {
            expected[0].data = nereid_memory::Slice::copy_of(&[9; 1024]);
        }
        let measured = measure(&wrong);
        assert_eq!(measured.errors.counts.keys().collect::<Vec<_>>(), ["output 'OUTPUT0' is not what was expected"]);
        assert_eq!((measured.counts.failed, measured.errors.total()), (10, 10));
        // A run that is stopped while its memory is in use.
        let mut endless = in_memory(plan(&server, protocol, "identity", echoes(1, 256), 0));
        (endless.rules.request_count, endless.rules.window) = (None, Window::Time(Duration::from_secs(3600)));
        let mut watcher = Watcher { server: &server, seen: 0 };
        assert!(nereid_perf::run(&endless, &mut watcher).expect("a run").iter().all(|point| !point.stable));
        assert_eq!((watcher.seen, objects().len(), regions(&server).as_str()), (1, 0, "[]"));
        // One that fails behind the registration.
        let mut failing = good.clone();
        let nobody = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 1 };
        let interval = Duration::from_secs(1);
        failing.metrics = Some(nereid_perf::MetricsSource { endpoint: nobody, path: "/".to_owned(), interval });
        assert!(nereid_perf::run(&failing, &mut ()).is_err());
        assert_eq!((objects().len(), regions(&server).as_str()), (0, "[]"));
    }
    server.stop();
    // A server that takes no regions says so, and nothing is left of the attempt.
    let server = Server::start(usual(), repository.path(), &["--allow-client-shm=false"]);
    let refused = in_memory(plan(&server, Protocol::Http, "identity", echoes(1, 256), 10));
    let error = nereid_perf::run(&refused, &mut ()).expect_err("no regions").to_string();
    assert!(error.starts_with("registration of shared memory"), "{error}");
    assert!(objects().is_empty());
    server.stop();
}
