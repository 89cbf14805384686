//! Ten thousand models in one repository, and room for few of them.

use super::*;
use nereid_test_support::random::Random;

const MODELS: usize = 10_000;
const ROOM: usize = 16;
const REQUESTS: usize = 200;

#[test]
fn ten_thousand_models_are_served_with_room_for_few() {
    let repository = Repository::new();
    (0..MODELS).for_each(|at| add_identity(&repository, &format!("m{at}")));
    let room = format!("--model-count-max={ROOM}");
    let server = start(&repository, &[&room, "--model-load-wait-secs=600"]);
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    assert_eq!(metric(&server, "nereid_models_resident"), 0.0);
    assert_eq!(index(&mut peer).len(), MODELS);
    let mut random = Random::new(7);
    let mut names = std::collections::BTreeSet::new();
    for at in 0..REQUESTS {
        let (name, value) = (format!("m{}", random.below(MODELS)), at as i32);
        match at % 2 {
            0 => must_infer(&mut peer, &name, value),
            _ => assert_eq!(grpc_infer(&mut grpc, &name, value), Ok(()), "{name}"),
        }
        names.insert(name);
    }
    let rows = index(&mut peer);
    assert_eq!(rows.len(), MODELS, "the index lists all");
    let count = |wanted: &str| rows.iter().filter(|(_, state, _)| state == wanted).count();
    assert_eq!((count("READY"), count("UNAVAILABLE")), (ROOM, names.len() - ROOM));
    assert_eq!(metric(&server, "nereid_models_resident"), ROOM as f64);
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let models =
        page.lines().filter(|line| line.contains("model=\"m") && line.starts_with("nv_inference_count")).count();
    assert_eq!(models, ROOM, "the page shows what is loaded");
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    server.stop();
}
