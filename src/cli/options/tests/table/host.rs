//! Flags of metrics, traces, backends, memory and the host, the deprecated ones and Nereid's own.

use std::time::Duration;

use super::*;
use crate::server::options::Options;
use nereid_observe::trace::{Levels, Mode};

pub const ROWS: &[Row] = &[
    Row {
        flag: "allow-metrics",
        beside: "",
        good: &[
            ("false", |o| {
                (o.metrics.allowed, o.allow_cpu_metrics, o.allow_gpu_metrics) = (false, false, false);
            }),
            ("true", |_| {}),
        ],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "allow-gpu-metrics",
        beside: "",
        good: &[("false", |o| o.allow_gpu_metrics = false), ("true", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "allow-cpu-metrics",
        beside: "",
        good: &[("false", |o| o.allow_cpu_metrics = false), ("true", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row { flag: "metrics-address", beside: "", good: &[("m", |o| o.metrics.address = "m".into())], bad: &[] },
    Row {
        flag: "metrics-port",
        beside: "",
        good: &[("9", |o| o.metrics.port = 9)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "metrics-interval-ms",
        beside: "",
        good: &[("1.5", |o| o.metrics_interval_ms = 1), ("500", |o| o.metrics_interval_ms = 500)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
            ("-1", "Provided option value is out of bound. Got -1"),
        ],
    },
    Row {
        flag: "metrics-config",
        beside: "",
        good: &[
            ("counter_latencies=false", |o| setting(o, "counter_latencies", "false")),
            ("summary_latencies=TRUE", |o| setting(o, "summary_latencies", "TRUE")),
            ("summary_quantiles=0.5:0.05,0.9:0.01", |o| setting(o, "summary_quantiles", "0.5:0.05,0.9:0.01")),
            ("other=1=2", |o| setting(o, "other", "1=2")),
        ],
        bad: &[
            ("", "--metrics-config option format is <setting>=<value>. Got "),
            ("a", "--metrics-config option format is <setting>=<value>. Got a"),
            ("=x", "--metrics-config option format is <setting>=<value>. Got =x"),
            ("x=", "--metrics-config option format is <setting>=<value>. Got x="),
            ("a,b=c", "--metrics-config option format is <setting>=<value>. Got a,b=c"),
        ],
    },
    Row {
        flag: "trace-config",
        beside: "",
        good: &[
            ("level=OFF", |_| {}),
            ("level=TIMESTAMPS", |o| o.traces.levels = Levels::TIMESTAMPS),
            ("level=tensors", |o| o.traces.levels = Levels::TENSORS),
            ("level=max", |o| o.traces.levels = Levels::TIMESTAMPS),
            ("rate=5", |o| o.traces.rate = 5),
            ("rate=0", |o| o.traces.rate = 0),
            ("count=-1", |_| {}),
            ("count=7", |o| o.traces.count = 7),
            ("mode=Triton", |_| {}),
            ("mode=opentelemetry", |o| {
                o.traces.mode = Mode::OpenTelemetry;
                let defaults = [
                    ("bsp_max_queue_size", "2048"),
                    ("bsp_schedule_delay", "5000"),
                    ("bsp_max_export_batch_size", "512"),
                ];
                o.traces.echoed = defaults.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
            }),
            ("triton,file=/x", |o| o.traces.file = "/x".to_owned()),
            ("triton,log-frequency=3", |o| o.traces.log_frequency = 3),
            ("opentelemetry,url=http://x", |_| {}),
            ("opentelemetry,bsp_schedule_delay=x", |_| {}),
            ("triton,other=1", |o| o.traces.echoed = vec![("other".to_owned(), "1".to_owned())]),
            ("Other=1", |_| {}),
        ],
        bad: &[
            ("", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got "),
            ("x", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got x"),
            ("triton,x", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got triton,x"),
            ("triton,x=", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got triton,x="),
            ("triton,=x", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got triton,=x"),
            ("level=", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got level="),
            (
                ",a=b",
                "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or \
                 <setting>=<value>. Got ,a=b",
            ),
            (
                "Zipkin,a=b",
                "invalid value for trace mode option: zipkin. Available options are \"triton\" and \"opentelemetry\"",
            ),
        ],
    },
    Row { flag: "backend-directory", beside: "", good: &[("/b", |o| o.backend_directory = "/b".into())], bad: &[] },
    Row {
        flag: "backend-config",
        beside: "",
        good: &[
            ("python,a=b", |o| {
                o.backend_settings =
                    vec![BackendSetting { backend: Some("python".into()), key: "a".into(), value: "b".into() }]
            }),
            ("a=b=c", |o| {
                o.backend_settings = vec![BackendSetting { backend: None, key: "a".into(), value: "b=c".into() }]
            }),
        ],
        bad: &[
            ("", "--backend-config option format is '<backend name>,<setting>=<value>'. Got "),
            ("python", "--backend-config option format is '<backend name>,<setting>=<value>'. Got python"),
            ("python,=b", "--backend-config option format is '<backend name>,<setting>=<value>'. Got python,=b"),
            ("python,a=", "--backend-config option format is '<backend name>,<setting>=<value>'. Got python,a="),
            ("a=b,c", "--backend-config option format is '<backend name>,<setting>=<value>'. Got a=b,c"),
            (
                ",a=b",
                "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or \
                 <setting>=<value>. Got ,a=b",
            ),
        ],
    },
    Row {
        flag: "repoagent-directory",
        beside: "",
        good: &[("/opt/tritonserver/repoagents", |_| {}), ("/x", |o| o.agent_directory = "/x".into())],
        bad: &[],
    },
    Row {
        flag: "cache-directory",
        beside: "",
        good: &[("/opt/tritonserver/caches", |_| {}), ("/x", |o| o.cache_directory = "/x".into())],
        bad: &[],
    },
    Row {
        flag: "cache-config",
        beside: "",
        good: &[
            ("local,size=1048576", |o| o.cache_settings.push(cache("local", "size", "1048576"))),
            ("redis,password=a=b,c", |o| o.cache_settings.push(cache("redis", "password", "a=b,c"))),
        ],
        bad: &[
            ("local,size", "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size"),
            ("local,=1", "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,=1"),
            ("local,size=", "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size="),
            ("", "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got "),
            (",a=b", "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got ,a=b"),
            (
                "size=1",
                "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got size=1",
            ),
        ],
    },
    Row {
        flag: "rate-limit",
        beside: "",
        good: &[
            ("off", |_| {}),
            ("OFF", |_| {}),
            ("execution_count", |o| o.rate_limit = true),
            ("EXECUTION_COUNT", |o| o.rate_limit = true),
        ],
        bad: &[("on", "invalid argument for --rate-limit")],
    },
    Row {
        flag: "rate-limit-resource",
        beside: "",
        good: &[
            ("R:4", |o| o.rate_limit_resources.push(resource("R", 4, None))),
            ("R:-4:1", |o| o.rate_limit_resources.push(resource("R", -4, Some(1)))),
            ("R:4:-1", |o| o.rate_limit_resources.push(resource("R", 4, None))),
        ],
        bad: &[
            (
                "",
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
                 '<resource_name>:<count>'. Got ",
            ),
            (
                "R",
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
                 '<resource_name>:<count>'. Got R",
            ),
            (
                "R:1:2:3",
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or \
                 '<resource_name>:<count>'. Got R:1:2:3",
            ),
            ("R:x", "Invalid option value. Got x"),
            ("R:1:x", "Invalid option value. Got x"),
        ],
    },
    Row {
        flag: "pinned-memory-pool-byte-size",
        beside: "",
        good: &[
            ("0", |o| o.pinned_memory_pool_byte_size = 0),
            ("-1", |o| o.pinned_memory_pool_byte_size = 0),
            ("5000000000", |o| o.pinned_memory_pool_byte_size = 5_000_000_000),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
        ],
    },
    Row {
        flag: "cuda-memory-pool-byte-size",
        beside: "",
        good: &[("0:1024", |o| o.cuda_memory_pools = [(0, 1024)].into())],
        bad: &[
            (
                "0",
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires \
                 format <first>:<second>. Found: 0",
            ),
            ("x:1", "Invalid option value. Got x"),
            ("0:x", "Invalid option value. Got x"),
            ("0:-5", "Provided option value is out of bound. Got -5"),
        ],
    },
    Row {
        flag: "cuda-virtual-address-size",
        beside: "",
        good: &[("0:1024", |_| {})],
        bad: &[
            (
                "0",
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires \
                 format <first>:<second>. Found: 0",
            ),
            ("x:1", "Invalid option value. Got x"),
            ("0:x", "Invalid option value. Got x"),
            ("0:-5", "Provided option value is out of bound. Got -5"),
        ],
    },
    Row {
        flag: "min-supported-compute-capability",
        beside: "",
        good: &[("7.5", |o| o.min_compute_capability = 7.5), (" 8e0x", |o| o.min_compute_capability = 8.0)],
        bad: &[
            ("x", "Invalid option value. Got x"),
            ("", "Invalid option value. Got "),
            ("1e999", "Provided option value is out of bound. Got 1e999"),
        ],
    },
    Row {
        flag: "buffer-manager-thread-count",
        beside: "",
        good: &[("0", |_| {}), ("4", |_| {})],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "host-policy",
        beside: "",
        good: &[
            ("p,numa-node=0", |o| {
                o.host_policies =
                    vec![HostPolicySetting { policy: "p".into(), key: "numa-node".into(), value: "0".into() }]
            }),
            ("p,cpu-cores=0-1,3-4", |o| {
                o.host_policies =
                    vec![HostPolicySetting { policy: "p".into(), key: "cpu-cores".into(), value: "0-1,3-4".into() }]
            }),
        ],
        bad: &[
            ("", "--host-policy option format is '<policy name>,<setting>=<value>'. Got "),
            ("p", "--host-policy option format is '<policy name>,<setting>=<value>'. Got p"),
            ("a=b", "--host-policy option format is '<policy name>,<setting>=<value>'. Got a=b"),
            (",a=b", "--host-policy option format is '<policy name>,<setting>=<value>'. Got ,a=b"),
            ("p,a", "--host-policy option format is '<policy name>,<setting>=<value>'. Got p,a"),
            ("p,=b", "--host-policy option format is '<policy name>,<setting>=<value>'. Got p,=b"),
            ("p,a=", "--host-policy option format is '<policy name>,<setting>=<value>'. Got p,a="),
        ],
    },
    Row {
        flag: "allow-client-shm",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.allow_client_shm = true), ("1", |o| o.allow_client_shm = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "strict-model-config",
        beside: "",
        good: &[("true", |o| o.auto_complete_config = false), ("false", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "response-cache-byte-size",
        beside: "",
        good: &[
            ("0", |o| o.cache_settings.push(cache("local", "size", "0"))),
            ("1048576", |o| o.cache_settings.push(cache("local", "size", "1048576"))),
        ],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
        ],
    },
    Row { flag: "trace-file", beside: "", good: &[("/x", |o| o.traces.file = "/x".to_owned())], bad: &[] },
    Row {
        flag: "trace-level",
        beside: "",
        good: &[
            ("OFF", |_| {}),
            ("false", |_| {}),
            ("TIMESTAMPS", |o| o.traces.levels = Levels::TIMESTAMPS),
            ("on", |o| o.traces.levels = Levels::TIMESTAMPS),
            ("MIN", |o| o.traces.levels = Levels::TIMESTAMPS),
            ("tensors", |o| o.traces.levels = Levels::TENSORS),
        ],
        bad: &[("Some", "invalid value for trace level option: some")],
    },
    Row {
        flag: "trace-rate",
        beside: "",
        good: &[("5", |o| o.traces.rate = 5), ("-5", |o| o.traces.rate = 4_294_967_291)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "trace-count",
        beside: "",
        good: &[("-1", |_| {}), ("3", |o| o.traces.count = 3)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "trace-log-frequency",
        beside: "",
        good: &[("5", |o| o.traces.log_frequency = 5)],
        bad: &[
            ("x1", "Invalid option value. Got x1"),
            ("", "Invalid option value. Got "),
            ("99999999999999999999", "Provided option value is out of bound. Got 99999999999999999999"),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
        ],
    },
    Row {
        flag: "io-cores",
        beside: "",
        good: &[("4", |o| o.io_cores = Some(IoCores::Count(4)))],
        bad: &[("0", "Provided option value is out of bound. Got 0"), ("few", "Invalid option value. Got few")],
    },
    Row {
        flag: "io-engine",
        beside: "",
        good: &[
            ("auto", |_| {}),
            ("IO_uring", |o| o.io_engine = IoEngine::IoUring),
            ("epoll", |o| o.io_engine = IoEngine::Epoll),
        ],
        bad: &[("kqueue", "invalid argument for --io-engine")],
    },
    Row {
        flag: "spin-us",
        beside: "",
        good: &[("0", |o| o.spin_us = Some(0)), ("1000000", |o| o.spin_us = Some(1_000_000))],
        bad: &[
            ("-1", "Provided option value is out of bound. Got -1"),
            ("1000001", "Provided option value is out of bound. Got 1000001"),
            ("some", "Invalid option value. Got some"),
        ],
    },
    Row {
        flag: "spin-percent",
        beside: "",
        good: &[("0", |o| o.spin_percent = Some(0)), ("100", |o| o.spin_percent = Some(100))],
        bad: &[
            ("-1", "Provided option value is out of bound. Got -1"),
            ("101", "Provided option value is out of bound. Got 101"),
            ("some", "Invalid option value. Got some"),
        ],
    },
    Row {
        flag: "drain-delay",
        beside: "",
        good: &[
            ("0", |_| {}),
            ("2.5", |o| o.drain_delay = Duration::from_millis(2500)),
            ("86400", |o| o.drain_delay = Duration::from_secs(86_400)),
        ],
        bad: &[
            ("soon", "Invalid option value. Got soon"),
            ("-1", "Provided option value is out of bound. Got -1"),
            ("86401", "Provided option value is out of bound. Got 86401"),
        ],
    },
    Row {
        flag: "take-over",
        beside: "",
        good: &[("", |_| {}), ("/run/nereid.sock", |o| o.take_over = Some("/run/nereid.sock".into()))],
        bad: &[],
    },
    Row {
        flag: "run-to-completion",
        beside: "",
        good: &[
            ("auto", |_| {}),
            ("declared", |o| o.run_to_completion = RunToCompletion::Declared),
            ("OFF", |o| o.run_to_completion = RunToCompletion::Off),
            ("measured", |o| o.run_to_completion = RunToCompletion::Measured),
        ],
        bad: &[("on", "invalid argument for --run-to-completion")],
    },
    Row {
        flag: "request-plan-cache",
        beside: "",
        good: &[("on", |_| {}), ("OFF", |o| o.request_plan_cache = false)],
        bad: &[("false", "invalid argument for --request-plan-cache")],
    },
    Row {
        flag: "orca",
        beside: "",
        good: &[("on-request", |_| {}), ("OFF", |o| o.orca = Orca::Off), ("always", |o| o.orca = Orca::Always)],
        bad: &[("on", "invalid argument for --orca"), ("", "invalid argument for --orca")],
    },
    Row {
        flag: "http-metrics",
        beside: "",
        good: &[("true", |o| o.http_metrics = true), ("false", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "allow-ui",
        beside: "",
        good: &[("false", |o| o.allow_ui = false), ("true", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "engine-metrics",
        beside: "",
        good: &[
            ("none", |_| {}),
            ("vllm", |o| o.engine_metrics = EngineMetrics::Vllm),
            ("triton", |o| o.engine_metrics = EngineMetrics::Triton),
            ("TRTLLM", |o| o.engine_metrics = EngineMetrics::Trtllm),
            ("sglang", |o| o.engine_metrics = EngineMetrics::Sglang),
        ],
        bad: &[("trtllm-serve", "invalid argument for --engine-metrics")],
    },
    Row {
        flag: "stall-timeout",
        beside: "",
        good: &[
            ("600", |_| {}),
            ("0", |o| o.stall_timeout = None),
            ("2.5", |o| o.stall_timeout = Some(Duration::from_millis(2500))),
        ],
        bad: &[
            ("soon", "Invalid option value. Got soon"),
            ("", "Invalid option value. Got "),
            ("-1", "Provided option value is out of bound. Got -1"),
            ("1e10", "Provided option value is out of bound. Got 1e10"),
        ],
    },
    Row {
        flag: "strict-device-liveness",
        beside: "",
        good: &[("true", |o| o.strict_device_liveness = true), ("false", |_| {})],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "python-execute-timeout",
        beside: "",
        good: &[
            ("0", |o| python(o, "execute-timeout", "0")),
            ("2.5", |o| python(o, "execute-timeout", "2.5")),
            ("1e9", |o| python(o, "execute-timeout", "1000000000")),
        ],
        bad: &[
            ("soon", "Invalid option value. Got soon"),
            ("", "Invalid option value. Got "),
            ("-1", "Provided option value is out of bound. Got -1"),
            ("1e10", "Provided option value is out of bound. Got 1e10"),
        ],
    },
    Row {
        flag: "python-restart",
        beside: "",
        good: &[("OFF", |o| python(o, "restart", "false")), ("true", |o| python(o, "restart", "true"))],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "slow-peer-secs",
        beside: "",
        good: &[("60", |_| {}), ("5", |o| o.slow_peers.window_s = 5)],
        bad: &[
            ("0", "Provided option value is out of bound. Got 0"),
            ("1000001", "Provided option value is out of bound. Got 1000001"),
            ("soon", "Invalid option value. Got soon"),
        ],
    },
    Row {
        flag: "slow-peer-min-rate",
        beside: "",
        good: &[("500", |_| {}), ("0", |o| o.slow_peers.rate_min = 0)],
        bad: &[
            ("-1", "Provided option value is out of bound. Got -1"),
            ("1073741825", "Provided option value is out of bound. Got 1073741825"),
        ],
    },
    Row {
        flag: "request-receive-secs",
        beside: "",
        good: &[("3600", |_| {}), ("0", |o| o.slow_peers.request_s = 0), ("7", |o| o.slow_peers.request_s = 7)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("", "Invalid option value. Got ")],
    },
    Row {
        flag: "http-use-ssl",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.http_tls.allowed = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "http-use-ssl-mutual",
        beside: "",
        good: &[("false", |_| {}), ("true", |o| o.http_tls.credentials.mutual = true)],
        bad: &[("maybe", "invalid value for bool option: maybe"), ("", "invalid value for bool option: ")],
    },
    Row {
        flag: "http-server-cert",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.http_tls.credentials.certificate = "/x.pem".into())],
        bad: &[],
    },
    Row {
        flag: "http-server-key",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.http_tls.credentials.key = "/x.pem".into())],
        bad: &[],
    },
    Row {
        flag: "http-root-cert",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.http_tls.credentials.roots = "/x.pem".into())],
        bad: &[],
    },
    Row {
        flag: "http-unix-socket",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.http_unix_socket = Some("/x.pem".into()))],
        bad: &[],
    },
    Row {
        flag: "grpc-unix-socket",
        beside: "",
        good: &[("", |_| {}), ("/x.pem", |o| o.grpc_unix_socket = Some("/x.pem".into()))],
        bad: &[],
    },
    Row {
        flag: "http-restricted-api-file",
        beside: "",
        good: &[("", |_| {}), ("/keys", |o| o.http_restricted_file = Some("/keys".into()))],
        bad: &[],
    },
    Row {
        flag: "grpc-restricted-protocol-file",
        beside: "",
        good: &[("", |_| {}), ("/keys", |o| o.grpc_restricted_file = Some("/keys".into()))],
        bad: &[],
    },
    Row {
        flag: "audit-log",
        beside: "",
        good: &[
            ("", |_| {}),
            ("-", |o| o.audit_log = Some("-".into())),
            ("/audit", |o| o.audit_log = Some("/audit".into())),
        ],
        bad: &[],
    },
    Row {
        flag: "request-memory-byte-size",
        beside: "",
        good: &[("0", |_| {}), ("5000000000", |o| o.request_memory_byte_size = 5_000_000_000)],
        bad: &[
            ("-1", "Provided option value is out of bound. Got -1"),
            ("much", "Invalid option value. Got much"),
            ("", "Invalid option value. Got "),
        ],
    },
    Row {
        flag: "request-memory-connection-share",
        beside: "",
        good: &[("0.5", |_| {}), ("1", |o| o.request_memory_connection_share = 1.0)],
        bad: &[
            ("0", "Provided option value is out of bound. Got 0"),
            ("1.5", "Provided option value is out of bound. Got 1.5"),
            ("all", "Invalid option value. Got all"),
        ],
    },
    Row {
        flag: "request-memory-client-share",
        beside: "",
        good: &[("0.75", |_| {}), ("0.25", |o| o.request_memory_client_share = 0.25)],
        bad: &[("-1", "Provided option value is out of bound. Got -1"), ("", "Invalid option value. Got ")],
    },
    Row {
        flag: "grpc-max-receive-message-size",
        beside: "",
        good: &[("2147483647", |_| {}), ("1000", |o| o.grpc_max_receive_message_size = 1000)],
        bad: &[
            ("0", "Error: --grpc-max-receive-message-size must be greater than 0."),
            ("2147483648", "Provided option value is out of bound. Got 2147483648"),
            ("x1", "Invalid option value. Got x1"),
        ],
    },
];

fn cache(cache: &str, key: &str, value: &str) -> CacheSetting {
    CacheSetting { cache: cache.into(), key: key.into(), value: value.into() }
}

fn resource(name: &str, count: i64, device: Option<i32>) -> RateLimitResource {
    RateLimitResource { name: name.into(), count, device }
}

/// A `--backend-config` of the Python backend.
fn python(options: &mut Options, key: &str, value: &str) {
    let backend = Some("python".to_owned());
    options.backend_settings.push(BackendSetting { backend, key: key.to_owned(), value: value.to_owned() });
}

/// A `--metrics-config`.
fn setting(options: &mut Options, name: &str, value: &str) {
    options.metrics_settings.push((name.to_owned(), value.to_owned()));
}
