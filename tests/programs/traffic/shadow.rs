//! Shadow versions: their answers are compared and counted, and whatever they do, the client's answer is that of the
//! first version.

use super::{BODY, interpreter, python_model, sample, shown};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

fn send(server: &Server, model: &str, count: usize) {
    let mut peer = Peer::connect(server.http);
    for _ in 0..count {
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], BODY.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        assert_eq!((&answer["model_version"], &answer["outputs"][0]["data"][0]), (&"1".into(), &7.into()), "{answer}");
    }
}

fn counted(server: &Server, model: &str, result: &str) -> u64 {
    shown(server, model)["shadow"][result].as_u64().expect("a count")
}

#[test]
fn answers_of_a_shadow_are_compared_and_its_crashes_counted() {
    let Some(interpreter) = interpreter() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let rule = [("weights", "1:100"), ("shadow", "2:1")];
        for (model, act) in [
            ("equal", "pass"),
            ("different", "value = value + 1"),
            ("failing", "raise ValueError('no')"),
            ("crashing", "os.kill(os.getpid(), 9)"),
        ] {
            python_model(&repository, model, &rule, &["pass", act]);
        }
        let server = Server::start(variant, repository.path(), &[&interpreter]);
        for (model, result) in [("equal", "equal"), ("different", "different"), ("failing", "error")] {
            send(&server, model, 20);
            server.wait_until("every copy is counted", || counted(&server, model, result) == 20);
            assert_eq!(counted(&server, model, "in_flight"), 0);
            let begins = format!("nereid_shadow_requests_total{{model=\"{model}\",result=\"{result}\",version=\"2\"}}");
            assert_eq!(sample(&server, &begins), Some(20.0));
        }
        // A copy that waits while the process starts again may be given up.
        send(&server, "crashing", 5);
        server.wait_until("every copy is counted", || {
            ["error", "timeout"].iter().map(|result| counted(&server, "crashing", result)).sum::<u64>() == 5
        });
        assert!(counted(&server, "crashing", "error") > 0);
        send(&server, "crashing", 5);
        server.stop();
    });
}

/// The shadow version answers nothing: copies take all places that there are, the others are not made.
#[test]
fn a_shadow_that_is_stuck_is_bounded() {
    let Some(interpreter) = interpreter() else { return };
    let repository = Repository::new();
    let gate = repository.path().join("gate");
    let act = format!("while not os.path.exists('{}'): time.sleep(0.05)", gate.display());
    python_model(&repository, "m", &[("weights", "1:100"), ("shadow", "2:1")], &["pass", &act]);
    let server = Server::start(usual(), repository.path(), &[&interpreter]);
    server.wait_until("all places are taken", || {
        send(&server, "m", 10);
        assert!(counted(&server, "m", "in_flight") <= 64);
        counted(&server, "m", "busy") > 0
    });
    // Those that wait too long are given up: what a stuck version holds is let go as far as it can be.
    server.wait_until("copies are given up", || counted(&server, "m", "timeout") > 0);
    send(&server, "m", 10);
    std::fs::write(&gate, "").expect("a file");
    server.wait_until("no place is taken", || counted(&server, "m", "in_flight") == 0);
    send(&server, "m", 1);
    server.wait_until("a copy is compared again", || counted(&server, "m", "equal") > 0);
    server.stop();
}

/// Copies are made of plain requests only, and the shadow gets its share.
#[test]
fn requests_of_sequences_have_no_copy() {
    let repository = Repository::new();
    super::identity(&repository, "m", &[("weights", "1:100"), ("shadow", "3:1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let body = BODY.replacen('{', r#"{"parameters":{"sequence_id":5},"#, 1);
    let answer = Peer::connect(server.http).post("/v2/models/m/infer", &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!((counted(&server, "m", "skipped"), counted(&server, "m", "in_flight")), (1, 0));
    send(&server, "m", 3);
    server.wait_until("the others have", || counted(&server, "m", "equal") == 3);
    server.stop();
}
