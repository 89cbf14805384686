//! Settings of models and of the backend, as the log and the threads of the server show them.

use super::{fp32, infer, put, refusal, start, start_probing};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use serde_json::json;

#[test]
fn settings_are_logged_in_the_words_that_are_searched() {
    let repository = Repository::new();
    put(&repository, "set", "add_sub");
    let parameter =
        |key: &str, value: &str| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n");
    let config = [
        parameter("enable_mem_arena", "1"),
        parameter("enable_mem_pattern", "off"),
        parameter("memory.enable_memory_arena_shrinkage", "cpu:0"),
        parameter("session.use_device_allocator_for_initializers", "1"),
        parameter("share_session_between_instances", "true"),
        "backend: \"onnxruntime\" instance_group { name: \"group\" count: 3 kind: KIND_CPU }\n".to_owned(),
    ];
    repository.file("set/config.pbtxt", config.concat());
    let Some(server) = start(&repository, &["--log-verbose=1"]) else { return };
    let mut peer = Peer::connect(server.http);
    let inputs = json!([fp32("INPUT0", &[1, 4], &[1.0; 4]), fp32("INPUT1", &[1, 4], &[2.0; 4])]);
    infer(&mut peer, "set", &inputs, &[]);
    let log = server.stop();
    for line in [
        "Configuring enable_mem_arena to 1",
        "Configuring enable_mem_pattern to off",
        "Configuring memory.enable_memory_arena_shrinkage to cpu:0",
        "Configuring 'session.use_device_allocator_for_initializers' to '1' for 'set'",
        "autofilled max_batch_size to 4 for model 'set' since batching is supporrted but no max_batch_size is \
         specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size",
        "Could not find a session corresponding to instance group: group",
        "Created session for instance: group_",
        "Reusing session for instance: group_",
    ] {
        assert!(log.contains(line), "expected {line:?} in:\n{log}");
    }
    assert_eq!(log.matches("Created session for instance: ").count(), 1, "{log}");
    assert_eq!(log.matches("Reusing session for instance: ").count(), 2, "{log}");
}

#[test]
fn one_pool_of_threads_serves_all_models() {
    let repository = Repository::new();
    let config = "backend: \"onnxruntime\" instance_group { count: 4 kind: KIND_CPU }\n\
                  parameters { key: \"intra_op_thread_count\" value { string_value: \"5\" } }\n";
    for name in ["a", "b"] {
        put(&repository, name, "add_sub");
        repository.file(&format!("{name}/config.pbtxt"), config);
    }
    let serve = |flags: &[&str]| {
        let server = start(&repository, flags)?;
        let mut peer = Peer::connect(server.http);
        let inputs = json!([fp32("INPUT0", &[1, 4], &[1.0; 4]), fp32("INPUT1", &[1, 4], &[2.0; 4])]);
        for name in ["a", "b"] {
            assert_eq!(
                infer(&mut peer, name, &inputs, &["OUTPUT1"])["OUTPUT1"]["data"],
                json!([-1.0, -1.0, -1.0, -1.0])
            );
        }
        Some(server)
    };
    let Some(own) = serve(&[]) else { return };
    let [global, one] = ["--backend-config=onnxruntime,enable-global-threadpool=1", "--backend-config=onnxruntime,x=1"];
    let pool = "--backend-config=onnxruntime,intra_op_thread_count=3";
    let [shared, unpooled] = [global, one].map(|flag| serve(&[flag, pool]).expect("the library was there before"));
    // Threads of a server that load a model end some time after that.
    own.wait_until("threads are as they are to be", || {
        let threads = own.threads();
        // Eight sessions with four threads each beside those that run them, or two threads for all of them; and the
        // size of the pool means nothing without it.
        threads >= shared.threads() + 20 && unpooled.threads() == threads
    });
    for server in [own, shared, unpooled] {
        server.stop();
    }
}

#[test]
fn accelerators_that_the_library_does_not_have_are_refused() {
    let repository = Repository::new();
    for (name, accelerator) in [("openvino", "openvino"), ("magic", "magic")] {
        put(&repository, name, "add_sub");
        let config = format!(
            "backend: \"onnxruntime\" optimization {{ execution_accelerators {{ cpu_execution_accelerator {{ name: \
             \"{accelerator}\" }} }} }}"
        );
        repository.file(&format!("{name}/config.pbtxt"), config);
    }
    let Some(server) = start_probing(&repository, &["--exit-on-error=false"], "/v2/health/live") else { return };
    let mut peer = Peer::connect(server.http);
    let index = peer.post("/v2/repository/index", &[], b"").json().to_string();
    assert!(index.contains("unknown Execution Accelerator 'magic' is requested"), "{index}");
    assert!(index.contains("model 'openvino' asks for the accelerator 'openvino', but ONNX Runtime"), "{index}");
    let text = refusal(&mut peer, "magic", &json!([]), &[]);
    assert!(text.contains("magic"), "{text}");
    server.stop();
}
