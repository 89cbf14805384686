//! Generations (docs/generations.md): ids in the route and in metrics, roll-backs by id, what polling and loads do to
//! them, and loads that do not pass their warm-up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::control::{BODY, EVERY_SECOND, EXPLICIT, POLL, make_old, parameter, touch};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const KEEP: &str = "--keep-generations=2";

/// The configuration of an identity, with a parameter that says which one it is.
fn config(generation: &str, more: &str) -> String {
    let more = format!("{}{more}", parameter("generation", generation));
    identity_config("identity", "m", 0, &[Pair::new("INT32", "-1")], &more)
}

/// Puts a configuration in the place of the present one, newer than all before.
fn write(repository: &Repository, generation: &str, more: &str) {
    static SECONDS: AtomicUsize = AtomicUsize::new(0);
    repository.file("m/config.pbtxt", config(generation, more));
    touch(repository, "m/config.pbtxt", 10 * (1 + SECONDS.fetch_add(1, Ordering::Relaxed)) as i64);
}

fn repository() -> Repository {
    let repository = Repository::new();
    repository.model("m", &config("a", ""));
    make_old(&repository.path().join("m"));
    repository
}

fn get(server: &Server, path: &str) -> Answer {
    Peer::connect(server.http).get(path)
}

fn post(server: &Server, path: &str) -> Answer {
    Peer::connect(server.http).post(path, &[], b"")
}

fn load(server: &Server) -> Answer {
    post(server, "/v2/repository/models/m/load")
}

fn must_load(server: &Server) {
    let answer = load(server);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn activate(server: &Server, id: &str) -> Answer {
    post(server, &format!("/v2/models/m/generations/{id}/activate"))
}

fn must_activate(server: &Server, id: &str) {
    let answer = activate(server, id);
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
}

fn generations(server: &Server) -> Value {
    let answer = get(server, "/v2/models/m/generations");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn ids(server: &Server) -> Vec<String> {
    let shown = generations(server);
    let all = shown["generations"].as_array().expect("a list").iter();
    all.map(|generation| generation["id"].as_str().expect("an id").to_owned()).collect()
}

fn present(server: &Server) -> String {
    generations(server)["present"].as_str().expect("a generation serves").to_owned()
}

/// The parameter `generation` of the configuration that serves.
fn serves(server: &Server) -> String {
    let answer = get(server, "/v2/models/m/config");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["parameters"]["generation"]["string_value"].as_str().expect("the parameter").to_owned()
}

fn hash(id: &str) -> &str {
    id.split_once('-').expect("a hash and a number").0
}

#[test]
fn ids_follow_the_content_and_bring_it_back() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[EXPLICIT, "--load-model=m", KEEP]);
        let metadata = get(&server, "/v2/models/m").text();
        let first = present(&server);
        assert!(hash(&first).len() == 12 && first.ends_with("-1"), "{first}");
        server.wait_for_log(&format!("model 'm' is at generation {first}"));
        // Nothing changed.
        must_load(&server);
        assert_eq!(ids(&server), std::slice::from_ref(&first));
        write(&repository, "b", "");
        must_load(&server);
        let second = present(&server);
        assert!(hash(&second) != hash(&first) && second.ends_with("-2"), "{second}");
        assert_eq!((serves(&server).as_str(), ids(&server)), ("b", vec![second.clone(), first.clone()]));
        let page = Peer::connect(server.metrics).get("/metrics").text();
        let line = format!("nereid_model_generation_info{{generation=\"{second}\",model=\"m\",version=\"1\"}} 1");
        assert!(page.contains(&line), "{page}");

        must_activate(&server, &first);
        assert_eq!((serves(&server).as_str(), present(&server)), ("a", first.clone()));
        assert_eq!(generations(&server)["rolled_back"], json!(true));
        let page = Peer::connect(server.metrics).get("/metrics").text();
        let line = format!("nereid_model_generation_info{{generation=\"{first}\",model=\"m\",version=\"1\"}} 1");
        assert!(page.contains(&line) && !page.contains(&second), "{page}");
        assert_eq!(get(&server, "/v2/models/m").text(), metadata, "metadata have no more members");
        // The one that serves is activated at once, and the hash alone names a generation too.
        must_activate(&server, &first);
        must_activate(&server, hash(&second));
        assert_eq!((serves(&server).as_str(), present(&server)), ("b", second.clone()));
        must_activate(&server, &first);

        let answer = activate(&server, "0123-9");
        let text = format!("model 'm' has no generation '0123-9', known: {first}, {second}");
        assert_eq!((answer.status, answer.error()), (404, text));
        assert_eq!(serves(&server), "a");
        let answer = post(&server, "/v2/models/absent/generations/x/activate");
        assert_eq!((answer.status, answer.error().as_str()), (404, "Request for unknown model: 'absent' is not found"));
        assert_eq!(get(&server, "/v2/models/absent/generations").status, 404);
        assert_eq!(get(&server, &format!("/v2/models/m/generations/{first}/activate")).status, 405);

        // A load brings what the repository has.
        must_load(&server);
        let third = present(&server);
        assert_eq!((serves(&server).as_str(), hash(&third)), ("b", hash(&second)));
        assert!(third.ends_with("-3"));
        assert_eq!(generations(&server)["rolled_back"], json!(false));
        assert_eq!(ids(&server), [third, first.clone()], "each content once");

        // After an unload it can be loaded again by its id.
        assert_eq!(post(&server, "/v2/repository/models/m/unload").status, 200);
        assert_eq!(generations(&server)["present"], Value::Null);
        must_activate(&server, &first);
        assert_eq!((serves(&server).as_str(), present(&server)), ("a", first));
        server.stop();
    });
}

/// Ends the clients of a test, also when it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_roll_back_under_load_loses_no_request() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[EXPLICIT, "--load-model=m", KEEP]);
        write(&repository, "b", "");
        must_load(&server);
        let ids = ids(&server);
        let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut peer = Peer::connect(server.http);
                    while !is_over.load(Ordering::Relaxed) {
                        let answer = peer.post("/v2/models/m/infer", &[], BODY.as_bytes());
                        assert_eq!(answer.status, 200, "{}", answer.text());
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for turn in 0..8 {
                let until = answered.load(Ordering::Relaxed) + 20;
                server.wait_until("requests are answered", || answered.load(Ordering::Relaxed) >= until);
                let id = &ids[(turn + 1) % 2];
                must_activate(&server, id);
                assert_eq!(present(&server), *id);
            }
        });
        server.stop();
    });
}

/// Waits until a poll that began after this call has ended: a model that was added now serves.
fn next_poll(server: &Server, repository: &Repository, marker: &str) {
    repository.identity(marker, 0, &[Pair::new("INT32", "-1")]);
    server.wait_until("the next poll", || get(server, &format!("/v2/models/{marker}/ready")).status == 200);
}

#[test]
fn polling_leaves_a_roll_back_until_the_repository_changes() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[POLL, EVERY_SECOND, KEEP]);
        let first = present(&server);
        write(&repository, "b", "");
        server.wait_until("the change", || serves(&server) == "b");
        must_activate(&server, &first);
        next_poll(&server, &repository, "marker1");
        assert_eq!(serves(&server), "a", "polled, and nothing had changed");
        // Copied once more: new times, the same content.
        write(&repository, "b", "");
        next_poll(&server, &repository, "marker2");
        assert_eq!((serves(&server).as_str(), present(&server)), ("a", first));
        assert_eq!(generations(&server)["rolled_back"], json!(true));
        write(&repository, "c", "");
        server.wait_until("the next change", || serves(&server) == "c");
        assert_eq!(generations(&server)["rolled_back"], json!(false));
        server.stop();
    });
}

const WARMUP: &str = "model_warmup [ { name: \"zero\" batch_size: 1 \
     inputs { key: \"INPUT0\" value { data_type: TYPE_INT32 dims: [ 2 ] zero_data: true } } } ]\n";

#[test]
fn what_fails_its_warm_up_never_serves() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[EXPLICIT, "--load-model=m", KEEP]);
        let first = present(&server);
        let still = |what: &str| {
            assert_eq!((serves(&server).as_str(), present(&server)), ("a", first.clone()), "{what}");
            let answer = Peer::connect(server.http).post("/v2/models/m/infer", &[], BODY.as_bytes());
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        };
        // An input that the model does not have.
        write(&repository, "b", &WARMUP.replace("INPUT0", "OTHER"));
        let answer = load(&server);
        assert_eq!(answer.status, 400, "{}", answer.text());
        still("a warm-up that fails");
        for (expected, why) in [
            (
                &[0, 0, 0, 0, 0, 9, 0, 0][..],
                "output 'OUTPUT0' differs from 'warmup_expected/zero/OUTPUT0' at byte 5 of 8",
            ),
            (&[0; 4], "output 'OUTPUT0' has 8 bytes, and 'warmup_expected/zero/OUTPUT0' has 4"),
        ] {
            repository.file("m/warmup_expected/zero/OUTPUT0", expected);
            write(&repository, "b", WARMUP);
            let answer = load(&server);
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(
                answer.error().contains(&format!("failed to run warmup sample 'zero': {why}; ")),
                "{}",
                answer.text()
            );
            still(why);
        }
        repository.file("m/warmup_expected/zero/OUTPUT0", [0; 8]);
        write(&repository, "b", WARMUP);
        must_load(&server);
        assert_eq!((serves(&server).as_str(), ids(&server).len()), ("b", 2));
        must_activate(&server, &first);
        still("rolled back");
        server.stop();
    });
}

#[test]
fn a_roll_back_needs_the_key_of_loads_and_a_mode_with_changes() {
    let repository = repository();
    let audit = repository.path().with_extension("audit");
    let flags = [
        EXPLICIT,
        "--load-model=m",
        KEEP,
        "--http-restricted-api=model-repository:key=value",
        &format!("--audit-log={}", audit.display()),
    ];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    let key = [("key", "value")];
    assert_eq!(peer.get("/v2/models/m/generations").status, 403);
    assert_eq!(peer.post("/v2/models/m/generations/x/activate", &[], b"").status, 403);
    assert_eq!(peer.post("/v2/models/m/generations/x/activate", &key, b"").status, 404);
    server.stop();
    let lines = std::fs::read_to_string(&audit).expect("the audit log");
    let _ = std::fs::remove_file(&audit);
    assert!(lines.contains("\"action\":\"activate-generation\",\"subject\":\"m\""), "{lines}");

    let server = Server::start(usual(), repository.path(), &[]);
    let shown = generations(&server);
    assert_eq!((&shown["kept_max"], &shown["generations"][0]["is_kept"]), (&json!(0), &json!(false)));
    let answer = activate(&server, &present(&server));
    let text = "generations cannot be activated in the model control mode NONE; use explicit or poll";
    assert_eq!((answer.status, answer.error().as_str()), (503, text));
    server.stop();
}

/// Copies go with the server.
#[test]
fn no_copy_stays_behind() {
    let (repository, place) = (repository(), Repository::new());
    let variable = ("TMPDIR", place.path().to_str().expect("UTF-8"));
    let flags = [EXPLICIT, "--load-model=m", KEEP];
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", &[variable]);
    let entries = || std::fs::read_dir(place.path()).expect("a directory").count();
    assert!(entries() > 0, "a copy and the lock of its directory");
    server.stop();
    assert_eq!(entries(), 0);
}
