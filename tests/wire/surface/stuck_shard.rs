//! A shard that does not go on: the other shards report that the server is not live, a metric counts it, the log has
//! its stack, and the service manager gets no more notifications that the server lives.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::channel;
use std::time::Duration;

use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, binary};
use nereid_test_support::variant::{self, each};
use nereid_wire::inference::{ServerLiveRequest, ServerLiveResponse};

/// The notifications that have come, of which each says that the server lives or is ready.
fn notifications(socket: &UnixDatagram) -> Vec<String> {
    let mut all = Vec::new();
    let mut text = [0; 64];
    loop {
        match socket.recv(&mut text) {
            Ok(len) => all.push(String::from_utf8_lossy(&text[..len]).into_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_shard_that_hangs_is_noticed_by_all_who_ask() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        repository.file("hangs-while-this-exists", "");
        let hangs = repository.path().join("hangs-while-this-exists");
        let place = repository.path().join("notify");
        let socket = UnixDatagram::bind(&place).unwrap();
        socket.set_nonblocking(true).unwrap();
        let words = [
            "env".to_owned(),
            format!("NEREID_TEST_HANGS_WHILE={}", hangs.display()),
            format!("NOTIFY_SOCKET={}", place.display()),
            "WATCHDOG_USEC=1000000".to_owned(),
            binary().into_string().expect("the binary's path is UTF-8"),
        ];
        let server = Server::start_under(&words, variant, repository.path(), &["--io-cores=2"], "/v2/health/ready");
        server.wait_until("a notification", || notifications(&socket).iter().any(|text| text == "WATCHDOG=1"));
        // Connections go to the shard with the fewest, so each shard has some of these. One makes its shard hang; those
        // of the other shard get an answer.
        let mut peers: Vec<_> = (0..8).map(|_| Peer::connect(server.http)).collect();
        peers.iter_mut().for_each(|peer| assert_eq!(peer.get("/v2/health/live").status, 200));
        let mut hanging = peers.pop().unwrap();
        let body = br#"{"id":"hang:submit","inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[5]}]}"#;
        hanging.send(&request("POST", "/v2/models/plain/infer", &[], body));
        let (not_live, reports) = channel();
        for mut peer in peers {
            let not_live = not_live.clone();
            std::thread::spawn(move || {
                while peer.get("/v2/health/live").status == 200 && not_live.send(None).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                let _ = not_live.send(Some(peer));
            });
        }
        let mut other = reports.iter().flatten().next().unwrap();
        drop(reports);
        assert_eq!(other.get("/v2/health/ready").status, 400);
        server.wait_for_log(" is stuck: it has not read its mail");
        notifications(&socket);
        let log = server.log();
        let line = log
            .lines()
            .find(|line| line.contains(" is stuck: it has not read its mail"))
            .unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains("stack of its thread") && line.matches("nereid").count() > 3, "{line}");
        // One may have been on its way.
        server.wait_until("its watchdog is not fed", || {
            std::thread::sleep(Duration::from_secs(2));
            notifications(&socket).is_empty()
        });
        std::fs::remove_file(&hangs).unwrap();
        assert_eq!(hanging.answer().status, 200);
        server.wait_until("it is live again", || other.get("/v2/health/live").status == 200);
        server.wait_until("a notification", || notifications(&socket).iter().any(|text| text == "WATCHDOG=1"));
        let answer: ServerLiveResponse = Grpc::connect(server.grpc).call("ServerLive", &ServerLiveRequest {}).unwrap();
        assert!(answer.live);
        let page = || Peer::connect(server.metrics).get("/metrics").text();
        server.wait_until("no shard is counted as stuck", || page().contains("nereid_shards_stuck 0\n"));
        server.stop();
    });
}
