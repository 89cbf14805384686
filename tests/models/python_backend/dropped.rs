//! Requests that a model drops without their last response, so that nothing can answer them any more. Triton leaves
//! their clients, and the unload of the model, waiting for ever.

use std::fs;

use super::{models, trouble};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each};

const TEXT: &str = "the model has dropped the request without its last response";

fn serve(variant: Variant) -> Option<Server> {
    let repository = models::repository(&["dropping"]);
    models::add(&repository, "dropping", "decoupled");
    let path = repository.path().join("decoupled/config.pbtxt");
    let config = fs::read_to_string(&path).expect("the model's configuration");
    let policy = "model_transaction_policy { decoupled: true }";
    fs::write(&path, format!("{config}\n{policy}\n")).expect("write the model's configuration");
    models::serve(variant, &repository, &["--model-control-mode=explicit", "--load-model=*"])
}

/// The events of a stream of a decoupled model, until its end.
fn stream(peer: &mut Peer, words: &str) -> String {
    let body = format!(r#"{{"DO":"{words}"}}"#);
    let answer = peer.post("/v2/models/decoupled/generate_stream", &[], body.as_bytes());
    answer.text()
}

#[test]
fn a_request_that_a_model_drops_gets_an_error() {
    each(&variant::ALL, |variant| {
        let Some(server) = serve(variant) else { return };
        let mut peer = Peer::connect(server.http);
        // Those that completed the configurations may still be ending.
        server.wait_until("there are two workers", || trouble::children(server.pid()).len() == 2);
        let before = trouble::children(server.pid());
        for words in ["drop", "drop_each", "drop_senders", "drop_from_list"] {
            let answer = trouble::act(&mut peer, "dropping", words);
            assert_eq!(answer.status, 500, "{words}: {}", answer.text());
            let begin = "Failed to process the request(s) for model 'dropping_0_0', message: ";
            assert!(answer.error().starts_with(&format!("{begin}{TEXT}")), "{words}: {}", answer.text());
            let text = stream(&mut peer, words);
            assert!(text.contains(&format!("model 'decoupled_0_0', message: {TEXT}")), "{words}: {text}");
        }
        // A last response that could not be sent is none.
        let answer = trouble::act(&mut peer, "dropping", "lack_memory");
        assert!(answer.error().contains("MemoryError: none for a message"), "{}", answer.text());
        assert!(stream(&mut peer, "lack_memory").contains("MemoryError: none for a message"));
        let answer = trouble::act(&mut peer, "dropping", "lack_memory_and_go_on");
        assert!(answer.error().contains(TEXT), "{}", answer.text());
        assert!(stream(&mut peer, "lack_memory_and_go_on").contains(TEXT));
        let answer = trouble::act(&mut peer, "dropping", "lack_memory_and_try_again");
        assert_eq!(trouble::done(&answer), "now");
        assert!(stream(&mut peer, "lack_memory_and_try_again").contains(r#""DONE":"now""#));
        // The one response of a model that is not decoupled is complete; the others of a decoupled one are missing.
        for words in ["drop_after_response", "drop_in_thread"] {
            assert_eq!(trouble::done(&trouble::act(&mut peer, "dropping", words)), "one", "{words}");
            let text = stream(&mut peer, words);
            assert!(text.contains(r#""DONE":"one""#) && text.contains(TEXT), "{words}: {text}");
        }
        let text = stream(&mut peer, "drop_in_coroutine");
        assert!(text.contains(TEXT), "{text}");
        server.wait_for_log("a coroutine raised 1");
        // Such a request is answered although its sender was not taken before the end of its execution.
        for words in ["now", "later"] {
            assert_eq!(trouble::done(&trouble::act(&mut peer, "dropping", words)), words);
            assert!(stream(&mut peer, words).contains(words));
        }
        assert_eq!(trouble::children(server.pid()), before, "no worker was ended");
        server.stop();
    });
}

#[test]
fn a_model_that_drops_what_it_kept_can_be_unloaded() {
    each(&variant::ALL, |variant| {
        let Some(server) = serve(variant) else { return };
        let mut peer = Peer::connect(server.http);
        let [mut kept, mut streamed] = [(); 2].map(|()| Peer::connect(server.http));
        kept.send(&request("POST", "/v2/models/dropping/infer", &[], &trouble::body("keep")));
        streamed.send(&request("POST", "/v2/models/decoupled/generate_stream", &[], br#"{"DO":"keep"}"#));
        for model in ["dropping", "decoupled"] {
            server.wait_until("the model has the request", || executions(&mut peer, model) == 1);
        }
        assert_eq!(trouble::done(&trouble::act(&mut peer, "dropping", "forget")), "now");
        assert!(stream(&mut peer, "forget").contains("now"));
        assert!(kept.answer().error().contains(TEXT));
        assert!(streamed.answer().text().contains(TEXT));
        for model in ["dropping", "decoupled"] {
            let answer = peer.post(&format!("/v2/repository/models/{model}/unload"), &[], b"{}");
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        server.wait_until("the workers end", || trouble::children(server.pid()).is_empty());
        server.stop();
    });
}

fn executions(peer: &mut Peer, model: &str) -> u64 {
    let statistics = peer.get(&format!("/v2/models/{model}/stats")).json();
    statistics["model_stats"][0]["execution_count"].as_u64().expect("a count")
}
