//! Faults that a model causes in its worker, and their effects (contract/python_backend.md section 6).

use super::{models, trouble};
use nereid_test_support::http::{self, Answer, Peer};
use nereid_test_support::variant::{self, each, usual};

/// What a model is told to do, the code that its client gets (0: either, as it may be too late), and what the answer
/// says; then whether the worker survives. None: either.
const ACTS: &[(&str, u16, &[&str], Option<bool>)] = &[
    ("echo hello", 200, &["hello"], Some(true)),
    (
        "raise hello",
        500,
        &[
            "Failed to process the request(s) for model 'trouble_0_0', message: ValueError: ",
            "as it was told: hello\n\nAt:\n",
            "/trouble/1/model.py(",
            "): act\n",
            "): execute\n",
        ],
        Some(true),
    ),
    ("sys.exit 3", 500, &["for model 'trouble_0_0', message: SystemExit: 3\n\nAt:\n"], Some(true)),
    (
        "exhaust",
        500,
        &["Failed to process the request(s) for model 'trouble_0_0', message: ", "Unable to allocate"],
        Some(true),
    ),
    ("print", 200, &["done"], Some(true)),
    ("nonsense", 200, &["done"], Some(true)),
    ("signal 15", 200, &["done"], Some(true)),
    ("signal 2", 200, &["done"], Some(true)),
    ("thread", 200, &["done"], Some(true)),
    ("fork", 200, &["the child ended with 1"], Some(true)),
    ("exit 3", 500, &[NOT_HEALTHY, "exited with code 3"], Some(false)),
    ("exit 0", 500, &[NOT_HEALTHY, "exited with code 0"], Some(false)),
    ("signal 9", 500, &[NOT_HEALTHY, "was ended by signal 9 (SIGKILL)"], Some(false)),
    ("crash", 500, &[NOT_HEALTHY, "was ended by signal 11 (SIGSEGV)"], Some(false)),
    ("abort", 500, &[NOT_HEALTHY, "was ended by signal 6 (SIGABRT)"], Some(false)),
    // What it has said before it failed to ring counts; who comes next may come before its end.
    ("close", 0, &[], Some(false)),
    ("exhaust_for_good", 500, &["trouble_0_0"], None),
    // Its own position in the stream to the server.
    ("scribble head", 0, &[], None),
    ("scribble tail", 0, &[], Some(false)),
    ("scribble streams", 0, &[], None),
    ("scribble control", 0, &[], Some(false)),
    // Results of the wrong number, of the wrong form, and a tensor of a type that is none.
    (
        "lie 104 ([], [])",
        500,
        &["model instance 'trouble_0_0', message: a message does not have the form of its kind"],
        Some(false),
    ),
    (
        "lie 104 7",
        500,
        &["model instance 'trouble_0_0', message: a message does not have the form of its kind"],
        Some(false),
    ),
    ("lie 104 ([(((b'', 0), ), (), None)], [])", 500, &["trouble_0_0"], Some(false)),
    ("lie 104 ([((('DONE', 99, (1,), b''), ), (), None)], [])", 500, &["trouble_0_0"], Some(false)),
    ("lie 104 ([None], [1 << 70])", 500, &["a number of a message is too large"], Some(false)),
    // Noticed beside the result, which may be read before.
    ("lie 4242 (None,)", 0, &[], Some(false)),
    ("lie 101 (None,)", 0, &[], Some(false)),
    ("lie 110 (5, True, None)", 0, &[], Some(false)),
    (
        "lie 104 __import__('functools').reduce(lambda inner, _: (inner,), range(40), ())",
        500,
        &["a message is nested too deeply"],
        Some(false),
    ),
    // What it never had, or asks too much of.
    ("lie 108 ([1, 2, 3, 1 << 60],)", 200, &["done"], Some(true)),
    ("lie 106 (64, [1, 2, 3, 1 << 31])", 200, &["done"], Some(true)),
    ("lie 56 (None, 12345678901, None, 1)", 200, &["done"], Some(true)),
    ("lie 106 (1 << 62, [])", 200, &["done"], Some(true)),
    ("children", 200, &[" "], Some(true)),
    ("exit 9", 500, &[NOT_HEALTHY, "exited with code 9"], Some(false)),
];

const NOT_HEALTHY: &str = "Stub process 'trouble_0_0' is not healthy. The process of model 'trouble' ";

#[test]
fn whatever_a_model_does_its_request_is_answered_and_the_next_one_works() {
    let repository = models::repository(&["sums"]);
    trouble::add(&repository, "trouble", 1, "");
    // Deaths follow one another here; the pauses after them are another test's.
    let flags = ["--model-control-mode=explicit", "--load-model=*", "--log-verbose=1"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let mut peer = Peer::connect(server.http);
    let mut bystander = Peer::connect(server.http);
    let mut children = Vec::new();
    for (words, status, texts, survives) in ACTS {
        let before = trouble::worker(&mut peer, "trouble");
        let answer = trouble::act(&mut peer, "trouble", words);
        assert!([answer.status, 0].contains(status), "{words}: {} {}", answer.status, answer.text());
        let text = if answer.status == 200 { trouble::done(&answer) } else { answer.error() };
        for expected in *texts {
            assert!(text.contains(expected), "{words}: {expected:?} is not in {text:?}");
        }
        let answer = bystander.get("/v2/models/sums/ready");
        assert_eq!(answer.status, 200, "{words}: another model has noticed");
        if *words == "children" {
            children = text.split(' ').map(|pid| pid.parse().expect("the number of a process")).collect::<Vec<u32>>();
            assert!(children.iter().all(|pid| trouble::runs(*pid)));
        }
        let after = match status {
            // What was written over may be found only now.
            0 => trouble::worker_after_pauses(&mut peer, "trouble"),
            _ => trouble::worker(&mut peer, "trouble"),
        };
        if let Some(survives) = survives {
            assert_eq!(before == after, *survives, "{words}: before {before}, after {after}");
        }
        if before != after {
            // So that the next death is the first one again, which no pause follows.
            for action in ["unload", "load"] {
                let answer = bystander.post(&format!("/v2/repository/models/trouble/{action}"), &[], b"");
                assert_eq!(answer.status, 200, "{words}: {}", answer.text());
            }
        }
    }
    for child in children {
        trouble::wait_until("what a worker has left behind ends", || !trouble::runs(child));
    }
    let log = server.stop();
    assert!(log.contains("Fatal Python error: Segmentation fault"), "the crash says nothing of where it happened");
    assert!(log.contains("Fatal Python error: Aborted"));
}

/// Memory that the server shares with a worker which cannot take it, because of a limit of the process.
#[test]
fn a_worker_that_cannot_take_its_memory_ends_and_keeps_no_request() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&[]);
        trouble::add(&repository, "trouble", 1, "");
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let mut peer = Peer::connect(server.http);
        // Each time more than the memory that a worker begins with, which is all that the one before had.
        for (limit, length) in [("memory", 6 << 20), ("descriptors", 20 << 20)] {
            let large = format!("length {}", "a".repeat(length));
            let before = trouble::worker_after_pauses(&mut peer, "trouble");
            assert_eq!(trouble::done(&trouble::act(&mut peer, "trouble", &format!("limit {limit}"))), "done");
            let answer = trouble::act(&mut peer, "trouble", &large);
            assert!(answer.error().contains("is not healthy"), "{limit}: {} {}", answer.status, answer.text());
            assert_ne!(before, trouble::worker_after_pauses(&mut peer, "trouble"), "{limit}");
            assert_eq!(trouble::done(&trouble::act(&mut peer, "trouble", &large)), length.to_string(), "{limit}");
        }
        server.stop();
    });
}

#[test]
fn an_execution_that_takes_too_long_is_ended_and_names_its_limit() {
    each(&variant::ALL, |variant| {
        let repository = models::repository(&[]);
        trouble::add(&repository, "trouble", 1, "");
        let Some(server) = models::serve(variant, &repository, &["--python-execute-timeout=1.5"]) else { return };
        let mut peer = Peer::connect(server.http);
        // Idle, without end, deaf, and talking.
        for words in ["sleep 3600", "stop", "flood"] {
            let before = trouble::worker_after_pauses(&mut peer, "trouble");
            let answer = trouble::act(&mut peer, "trouble", words);
            let expected = format!("{NOT_HEALTHY}was ended because it took more than 1.5 s");
            assert_eq!((answer.status, answer.error()), (500, expected), "{words}");
            assert_ne!(trouble::worker_after_pauses(&mut peer, "trouble"), before);
        }
        // A short execution is left alone; on a busy host one or the other may take longer than the limit.
        trouble::wait_until("a short execution ends by itself", || {
            let answer = trouble::act(&mut peer, "trouble", "sleep 0.01");
            answer.status == 200 && trouble::done(&answer) == "done"
        });
        server.stop();
    });
}

#[test]
fn every_request_of_a_batch_is_answered_when_its_worker_dies() {
    let repository = models::repository(&[]);
    let batching =
        "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 3600000000 preferred_batch_size: [ 4 ] }";
    trouble::add(&repository, "trouble", 1, batching);
    let Some(server) = models::serve(usual(), &repository, &[]) else { return };
    let body = |words: &str| String::from_utf8(trouble::body(words)).unwrap().replace("[1]", "[1,1]").into_bytes();
    let path = "/v2/models/trouble/infer";
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::connect(server.http)).collect();
    for (at, peer) in peers.iter_mut().enumerate() {
        let words = if at == 2 { "exit 5" } else { "echo here" };
        peer.send(&nereid_test_support::http::request("POST", path, &[], &body(words)));
    }
    for peer in &mut peers {
        let answer = peer.answer();
        let text = format!("{NOT_HEALTHY}exited with code 5");
        assert_eq!((answer.status, answer.error()), (500, text));
    }
    let statistics = peers[0].get("/v2/models/trouble/stats").json();
    assert_eq!(statistics["model_stats"][0]["inference_stats"]["fail"]["count"], 4);
    server.stop();
}

/// A worker has its next batches before it is through with the last one: those it had not begun when it ended are
/// executed by the next worker, in their order, and nobody is answered twice.
#[test]
fn a_death_ends_only_what_was_being_executed() {
    assert_eq!(die_among_others("--log-verbose=0", "exit 5", "exited with code 5"), Some(()));
}

/// The same with a limit for executions. On a busy host an honest one may take longer than that, too: then the limit is
/// raised.
#[test]
fn a_limit_ends_only_what_was_being_executed() {
    let met = [1, 4, 16, 64].into_iter().any(|secs| {
        let flag = format!("--python-execute-timeout={secs}");
        let text = format!("was ended because it took more than {secs} s");
        die_among_others(&flag, "sleep 3600", &text).is_some()
    });
    assert!(met, "honest executions take more than a minute");
}

/// Requests one behind the other, the last words of the worker among them. None: another one met the limit.
fn die_among_others(flag: &str, last_words: &str, text: &str) -> Option<()> {
    let repository = models::repository(&[]);
    trouble::add(&repository, "trouble", 1, "");
    // Where Python is missing the test was skipped, visibly.
    let Some(server) = models::serve(usual(), &repository, &[flag]) else { return Some(()) };
    let mut peer = Peer::connect(server.http);
    let failure = format!("{NOT_HEALTHY}{text}");
    let is_late = |answer: &Answer| answer.status == 500 && text.contains("more than") && answer.error() == failure;
    let done = |answer: &Answer| if is_late(answer) { None } else { Some(trouble::done(answer)) };
    // Executions are seen to be short: from now on batches are sent ahead.
    for _ in 0..50 {
        assert_eq!(done(&trouble::act(&mut peer, "trouble", "echo here"))?, "here");
    }
    let words = |at: usize| if at == 7 { last_words.to_owned() } else { format!("echo {at}") };
    let request = |at| http::request("POST", "/v2/models/trouble/infer", &[], &trouble::body(&words(at)));
    peer.send(&(0..20).map(request).collect::<Vec<_>>().concat());
    for at in 0..20 {
        let answer = peer.answer();
        match at {
            7 => assert_eq!((answer.status, answer.error()), (500, failure.clone())),
            _ => assert_eq!(done(&answer)?, at.to_string()),
        }
    }
    let statistics = peer.get("/v2/models/trouble/stats").json();
    let counts = |kind: &str| statistics["model_stats"][0]["inference_stats"][kind]["count"].clone();
    assert_eq!((counts("success"), counts("fail")), (69.into(), 1.into()));
    server.stop();
    Some(())
}
