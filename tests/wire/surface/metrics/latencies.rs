//! Summaries and histograms: quantiles, buckets, and what they count.

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};

use nereid_test_support::grpc::Grpc;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

use super::{
    FIRST, NO_GPUS, PHASES, Page, SUMMARIES, ask, body, ensemble, message, one, start, three_models, wait_for,
};

/// As Triton's, whatever is wrong with a pair: the others are shown.
#[test]
fn malformed_quantiles_are_logged_and_left_out() {
    let repository = three_models();
    let flags = [
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.4:0.1,0.5,x:0.1,0.9:0.01",
        "--allow-cpu-metrics=false",
    ];
    let server = start(&repository, &flags);
    let page = Page::of(server.metrics);
    assert_eq!(page.labels("nv_inference_queue_summary_us", "quantile", &[("model", "plain")]), ["0.4", "0.9"]);
    let log = server.stop();
    for line in [
        "Invalid option: [0.5]. No ':' delimiter found. Expected format is <quantile>:<error>",
        "Invalid option: [x:0.1]. Error: stod",
        "No polling metrics (CPU, GPU, Pinned memory) are enabled. Will not poll for them.",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line} in\n{log}");
    }
}

#[test]
fn quantiles_are_those_that_were_asked_for_and_mistakes_are_told() {
    let repository = three_models();
    let quantiles = "--metrics-config=summary_quantiles=0.25:0.1,abc,0.75:0.05,0.3:x,7:0.1";
    let flags = ["--metrics-config=summary_latencies=true", quantiles, "--metrics-config=counter_latencies=maybe"];
    let server = start(&repository, &flags);
    let page = Page::of(server.metrics);
    for quantile in ["0.25", "0.75"] {
        let found = page.all(SUMMARIES[0], &[("model", "plain"), ("quantile", quantile)]);
        assert_eq!(found, ["NaN"], "{quantile}");
    }
    assert_eq!(page.all(SUMMARIES[0], &[("model", "plain")]).len(), 2);
    let log = server.stop();
    for told in [
        "Invalid option: [abc]. No ':' delimiter found. Expected format is <quantile>:<error>",
        "Invalid option: [0.3:x].",
        "Invalid option: [7:0.1].",
        "counter_latencies is 'true' or 'false', not 'maybe'",
    ] {
        assert!(log.contains(told), "{told} in\n{log}");
    }
}

/// contract/metrics.md section 2: from acceptance to the first response, in whole milliseconds; the model's own
/// buckets.
#[test]
fn first_responses_fall_into_the_buckets_of_their_model() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let buckets = |family: &str, bounds: &str| {
            format!(
                "metric_control {{ metric_identifier {{ family: \"{family}\" }} histogram_options {{ buckets: [ \
                 {bounds} ] }} }}\n"
            )
        };
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"40\" } }\n";
        let own = format!(
            "{delay} model_metrics {{ {} {} {} }}",
            buckets(FIRST, "39, 100000"),
            buckets(PHASES[3], "39000, 1e9"),
            buckets("unknown_family", "1"),
        );
        repository.identity_of("identity", "slow", 0, &one(), &own);
        repository.identity("plain", 0, &one());
        repository.model("around", &ensemble("around", "slow", ""));
        let flags = ["--metrics-config=histogram_latencies=true", "--metrics-config=histogram_phases=true"];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        assert_eq!(ask(&server, "slow", &body("[1]", &[1], "")), 200);
        let mut grpc = Grpc::connect(server.grpc);
        let answer: Result<ModelInferResponse, _> = grpc.call("ModelInfer", &message("slow", &[3]));
        assert!(answer.is_ok());
        assert_eq!(ask(&server, "around", &body("[1]", &[1], "")), 200);
        assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
        // Refused at the door: no response of the model.
        assert_eq!(ask(&server, "slow", &body("[1,1]", &[1], "")), 400);
        let page = wait_for(&server, "all of them", |page| {
            [("slow", 3), ("plain", 1), ("around", 1)].into_iter().all(|(model, count)| {
                page.count(&format!("{FIRST}_count"), model) == count
                    && page.count("nv_inference_request_success", model) == count
            }) && page.count(&format!("{}_count", PHASES[3]), "slow") == 3
        });
        let of = |family: &str, model: &str, bound: &str| {
            page.value(&format!("{family}_bucket"), &[("model", model), ("le", bound)])
        };
        let first = ["39", "100000", "+Inf"].map(|bound| of(FIRST, "slow", bound));
        assert_eq!(first, [0.0, 3.0, 3.0], "two requests, and one of the ensemble");
        assert!(page.count(&format!("{FIRST}_sum"), "slow") >= 3 * 40);
        let infer = ["39000", "1000000000", "+Inf"].map(|bound| of(PHASES[3], "slow", bound));
        assert_eq!(infer[2], 3.0);
        assert_eq!(page.all(&format!("{}_bucket", PHASES[3]), &[("model", "slow")]).len(), 3);
        assert_eq!(page.all(&format!("{}_bucket", PHASES[2]), &[("model", "slow")]).len(), 24);
        let bounds = ["100", "500", "2000", "5000", "+Inf"];
        assert_eq!(
            bounds.map(|bound| page.all(&format!("{FIRST}_bucket"), &[("model", "plain"), ("le", bound)]).len()),
            [1; 5]
        );
        assert_eq!(page.count(&format!("{FIRST}_count"), "plain"), 1);
        assert_eq!(page.count(&format!("{FIRST}_count"), "around"), 1);
        let log = server.stop();
        let warned =
            log.lines().filter(|line| line.contains(" in 'metric_identifier' is not a customizable metric in "));
        let warned: Vec<&str> = warned.collect();
        let text = "Metric family 'unknown_family' in 'metric_identifier' is not a customizable metric in Triton core.";
        assert!(warned.len() == 1 && warned[0].contains(text), "{warned:?}");
    });
}

#[test]
fn of_a_decoupled_request_the_first_response_counts() {
    let repository = Repository::new();
    let tensor = |side: &str, name: &str, datatype: &str, dims: &str| {
        format!("{side} [ {{ name: \"{name}\" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]\n")
    };
    let config = [
        "backend: \"repeat\" model_transaction_policy { decoupled: true }\n".to_owned(),
        tensor("input", "IN", "INT32", "-1"),
        tensor("input", "DELAY", "UINT32", "-1"),
        tensor("input", "WAIT", "UINT32", "1"),
        tensor("output", "OUT", "INT32", "1"),
        tensor("output", "IDX", "UINT32", "1"),
    ];
    repository.model("repeat", &config.concat());
    let flags = ["--metrics-config=histogram_latencies=true"];
    let server = start(&repository, &flags);
    let tensor = |name: &str, datatype: &str, shape: &[i64]| InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    };
    let three: Vec<u8> = [1i32, 2, 3].iter().flat_map(|number| number.to_le_bytes()).collect();
    let none = Bytes::from(0u32.to_le_bytes().to_vec());
    let request = ModelInferRequest {
        model_name: "repeat".to_owned(),
        inputs: vec![tensor("IN", "INT32", &[3]), tensor("DELAY", "UINT32", &[3]), tensor("WAIT", "UINT32", &[1])],
        raw_input_contents: vec![Bytes::from(three), Bytes::from(vec![0; 12]), none],
        ..ModelInferRequest::default()
    };
    let mut grpc = Grpc::connect(server.grpc);
    let mut call = grpc.open("/inference.GRPCInferenceService/ModelStreamInfer", &[]);
    grpc.send(&mut call, &request);
    for _ in 0..3 {
        assert!(grpc.next(&mut call).is_some());
    }
    grpc.half_close(&mut call);
    grpc.finish(call);
    let page = wait_for(&server, "a success", |page| page.count("nv_inference_request_success", "repeat") == 1);
    assert_eq!(page.count(&format!("{FIRST}_count"), "repeat"), 1);
    server.stop();
}
