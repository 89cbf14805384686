//! Models of this server's own backends behind OpenAI's routes, which are none of a language: embeddings, ranks and
//! scores (contract/openai.md sections 1.8 and 5).

use serde_json::{Value, json};

use super::frontend::{EMBEDDINGS, Frontend, has_run, repository};
use nereid_test_support::http::Peer;
use nereid_test_support::variant::{ALL, each};

const EMBEDDER: &str = "openai_embedding_native";
const RANKER: &str = "openai_rerank_mock";

#[test]
fn texts_become_vectors_of_a_model_with_a_tensor() {
    each(&ALL, |variant| {
        let repository = repository(&[EMBEDDER]);
        let Some(frontend) = Frontend::start_as(variant, &repository, &[]) else { return };
        let ask = |input: Value, more: Value| {
            frontend.asked(EMBEDDINGS, &super::frontend::with(&json!({"model": EMBEDDER, "input": input}), more))
        };
        let answer = ask(json!("aaei"), json!({}));
        assert_eq!(answer["data"][0]["embedding"], json!([0.5, 0.25, 0.25, 0.0]));
        assert_eq!((&answer["object"], &answer["data"][0]["object"]), (&json!("list"), &json!("embedding")));
        let coded = ask(json!("aaei"), json!({"encoding_format": "base64"}));
        assert_eq!(coded["data"][0]["embedding"], "AAAAPwAAgD4AAIA+AAAAAA==");
        // More than a batch, each in its place.
        let texts: Vec<String> = (1..=50).map(|count| format!("a{}", "x".repeat(count - 1))).collect();
        let several = ask(json!(texts), json!({}));
        let data = several["data"].as_array().expect("a list");
        assert_eq!(data.len(), 50);
        for (index, one) in data.iter().enumerate() {
            let share = one["embedding"][0].as_f64().expect("a number");
            assert!((share - 1.0 / (index as f64 + 1.0)).abs() < 1e-6, "{index}: {one}");
            assert_eq!(one["index"], index);
        }
        let failing = frontend.post(EMBEDDINGS, &json!({"model": EMBEDDER, "input": ["a", "<<fail>>", "b"]}));
        assert_eq!((failing.status, &failing.json()["detail"]), (500, &json!("the mock fails")));
        let tokens = frontend.post(EMBEDDINGS, &json!({"model": EMBEDDER, "input": [1, 2]}));
        assert_eq!(tokens.status, 400, "{}", tokens.text());
        let many = frontend.post(EMBEDDINGS, &json!({"model": EMBEDDER, "input": vec!["a"; 2049]}));
        assert_eq!(many.status, 400, "{}", many.text());
        assert_eq!(ask(json!(vec!["a"; 2048]), json!({}))["data"].as_array().map(Vec::len), Some(2048));
        frontend.stop();
    });
}

#[test]
fn documents_are_ranked_and_scored() {
    each(&ALL, |variant| {
        let repository = repository(&[RANKER]);
        let Some(frontend) = Frontend::start_as(variant, &repository, &[]) else { return };
        let documents = json!(["a b", "<<score -3>>", "a b c d", {"text": "a"}, "a b c d"]);
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            let answer = frontend.asked(path, &json!({"model": RANKER, "query": "a b c d", "documents": documents}));
            let results = answer["results"].as_array().expect("a list").clone();
            let order: Vec<u64> = results.iter().filter_map(|one| one["index"].as_u64()).collect();
            assert_eq!(order, [2, 4, 0, 3, 1], "{answer}");
            let scores: Vec<f64> = results.iter().filter_map(|one| one["relevance_score"].as_f64()).collect();
            assert_eq!(scores, [1.0, 1.0, 0.5, 0.25, -3.0]);
            assert_eq!(results[3]["document"]["text"], "a");
        }
        let body =
            json!({"model": RANKER, "query": "a", "documents": documents, "top_n": 2, "return_documents": false});
        let answer = frontend.asked("/rerank", &body);
        assert_eq!(answer["results"].as_array().map(Vec::len), Some(2));
        assert!(answer["results"][0]["document"].is_null(), "{answer}");
        for (left, right, scores) in [
            (json!("a b"), json!("a b"), json!([1.0])),
            (json!("a b"), json!(["a", "b a", "c"]), json!([0.5, 1.0, 0.0])),
            (json!(["a", "b"]), json!(["a", "c"]), json!([1.0, 0.0])),
        ] {
            for path in ["/score", "/v1/score"] {
                let answer = frontend.asked(path, &json!({"model": RANKER, "text_1": left, "text_2": right}));
                let given: Vec<&Value> =
                    answer["data"].as_array().expect("a list").iter().map(|one| &one["score"]).collect();
                assert_eq!(json!(given), scores, "{answer}");
            }
        }
        let uneven = json!({"model": RANKER, "text_1": ["a", "b"], "text_2": ["a", "b", "c"]});
        assert!((400..=422).contains(&frontend.post("/score", &uneven).status));
        let failing = json!({"model": RANKER, "query": "a", "documents": ["a", "<<fail>>"]});
        assert_eq!(frontend.refused(500, "/rerank", &failing), "the mock fails");
        frontend.stop();
    });
}

/// With a flag the HTTP port has OpenAI's routes beside its own.
#[test]
fn the_http_port_serves_the_routes_where_it_is_asked_to() {
    if has_run() {
        return;
    }
    let repository = repository(&[EMBEDDER]);
    let Some(frontend) = Frontend::start(&repository, &["--openai-on-http=true"]) else { return };
    let mut peer = Peer::connect(frontend.server.http);
    assert_eq!(peer.get("/v1/models").json()["data"][0]["id"], EMBEDDER);
    let body = json!({"model": EMBEDDER, "input": "aaaa"}).to_string();
    let answer = peer.post(EMBEDDINGS, &[], body.as_bytes());
    assert_eq!(answer.json()["data"][0]["embedding"][0], 1.0, "{}", answer.text());
    assert_eq!(peer.get("/v2/health/ready").status, 200);
    assert_eq!(peer.get(&format!("/v2/models/{EMBEDDER}/ready")).status, 200);
    frontend.stop();
}
